#include "faults.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "divide.h"
#include "guards.h"
#include "record.h"

namespace hearth {
namespace {

constexpr int watched[] = {SIGFPE, SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
struct sigaction before[NSIG];

constexpr int write_ms = 100, answer_ms = 500;
std::atomic<int> ask_fd{-1}, answer_fd{-1};
std::atomic<bool> output_sent{false};

void pause_ms(long milliseconds) {
    const timespec pause = {0, milliseconds * 1000000};
    nanosleep(&pause, nullptr);
}

bool ready(int fd, short events, int milliseconds) {
    pollfd one = {fd, events, 0};
    return poll(&one, 1, milliseconds) == 1;
}

// Writes the kernels' output that is still in the buffer of stdout to its descriptor. For signal handlers: never blocks
// on a lock that the interrupted thread could hold, and waits for a reader for a limited time.
void write_stdout() {
    bool locked = false;
    for (int i = 0; i < 20 && !(locked = ftrylockfile(stdout) == 0); ++i) pause_ms(1);
#ifdef __GLIBC__
    const char *at = stdout->_IO_write_base, *const end = stdout->_IO_write_ptr;
    while (at != nullptr && at < end && ready(STDOUT_FILENO, POLLOUT, write_ms)) {
        const size_t left = static_cast<size_t>(end - at);  // a ready pipe accepts PIPE_BUF bytes without blocking
        const ssize_t written = write(STDOUT_FILENO, at, left < PIPE_BUF ? left : size_t{PIPE_BUF});
        if (written <= 0) break;
        at += written;
    }
    if (locked) stdout->_IO_write_ptr = stdout->_IO_write_base;  // no other thread writes it again
#else
    if (locked) fflush(stdout);
#endif
    if (locked) funlockfile(stdout);
}

// Forwards the output of kernels, through the reader of standard output, before the process ends.
void send_output() {
    if (output_sent.exchange(true)) {  // another thread is sending it; ending the process now would cut it off
        pause_ms(answer_ms);
        return;
    }
    write_stdout();
    const int ask = ask_fd.load(), answer = answer_fd.load();
    if (ask < 0 || write(ask, "!", 1) != 1) return;
    ready(answer, POLLIN, answer_ms);
}

void on_fault(int number, siginfo_t *info, void *context) {
    if (number == SIGFPE && in_kernel && info->si_code == FPE_INTDIV && divide_by_definition(context)) return;
    if (number == SIGSEGV && in_kernel && info->si_code == SEGV_ACCERR && open_guard(info->si_addr, context)) return;
    record_signal(number, info);
    if (running_slot != nullptr) send_output();
    const struct sigaction &last = before[number];
    if ((last.sa_flags & SA_SIGINFO) != 0) {
        last.sa_sigaction(number, info, context);
    } else if (last.sa_handler != SIG_DFL && last.sa_handler != SIG_IGN) {
        last.sa_handler(number);
    } else {  // the default action: the instruction is repeated, or a signal from outside is raised again
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
    write_stdout();
    fprintf(stderr, "%s\n", text);
    say(text);
    abort();
}

HandlerStack::HandlerStack() {
    stack_t now;
    if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;  // it has one
    size_t least = 32 << 10;
#ifdef _SC_MINSIGSTKSZ
    const long saved = sysconf(_SC_MINSIGSTKSZ);  // size of the kernel's signal frame, with the vector registers
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

extern "C" {

void hearth_output(int ask, int answer) {
    hearth::answer_fd.store(answer);
    hearth::ask_fd.store(ask);
}

}
