#include "faults.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "divide.h"
#include "record.h"

namespace hearth {
namespace {

constexpr int watched[] = {SIGFPE, SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
struct sigaction before[NSIG];

void on_fault(int number, siginfo_t *info, void *context) {
    if (number == SIGFPE && in_kernel && info->si_code == FPE_INTDIV && divide_by_definition(context)) return;
    record_signal(number, info);
    const struct sigaction &last = before[number];
    if ((last.sa_flags & SA_SIGINFO) != 0) {
        last.sa_sigaction(number, info, context);
    } else if (last.sa_handler != SIG_DFL && last.sa_handler != SIG_IGN) {
        last.sa_handler(number);
    } else {  // as if there were no handler: the instruction is tried again, a signal that somebody sent is sent again
        signal(number, SIG_DFL);
        if (info->si_code <= 0) raise(number);
    }
}

bool watch(int number) {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(number, &action, &before[number]) == 0;
}

}  // namespace

void watch_divisions() {
    static const bool once = watch(SIGFPE);
    static_cast<void>(once);
}

void watch_faults() {
    watch_divisions();
    static const bool once = [] {
        for (const int number : watched) {
            if (number != SIGFPE) watch(number);
        }
        return true;
    }();
    static_cast<void>(once);
}

void give_up(const char *text) {
    fflush(stdout);
    fprintf(stderr, "%s\n", text);
    say(text);
    abort();
}

HandlerStack::HandlerStack() {
    stack_t now;
    if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;  // it has one
    size_t least = 32 << 10;
#ifdef _SC_MINSIGSTKSZ
    const long saved = sysconf(_SC_MINSIGSTKSZ);  // what the kernel itself puts there: vector registers
    if (saved > 0) least += static_cast<size_t>(saved);
#endif
    bytes_ = (least + 4095) & ~size_t{4095};
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) memory_ = nullptr;
    if (memory_ == nullptr) return;
    stack_t mine = {};
    mine.ss_sp = memory_;
    mine.ss_size = bytes_;
    sigaltstack(&mine, nullptr);
}

HandlerStack::~HandlerStack() {
    if (memory_ == nullptr) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    munmap(memory_, bytes_);
}

}  // namespace hearth
