#include "fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef HEARTH_UCONTEXT
#include <ucontext.h>
#endif

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

namespace hearth {

#if defined(__x86_64__)

void prepare_context(Context &context, unsigned char *top, FiberEntry entry) {
    auto *sp = reinterpret_cast<uint64_t *>(top);
    *--sp = 0;  // in place of entry's return address: keeps the stack aligned and ends a debugger's unwinding
    *--sp = reinterpret_cast<uint64_t>(entry);
    context.sp = sp;
}

#elif defined(__aarch64__)

extern "C" void hearth_switch(void **from, void *to);
asm(R"(
    .text
    .p2align 4
    .hidden hearth_switch
    .globl hearth_switch
    .type hearth_switch, %function
hearth_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size hearth_switch, .-hearth_switch
)");

void prepare_context(Context &context, unsigned char *top, FiberEntry entry) {
    auto *sp = reinterpret_cast<uint64_t *>(top - 160);
    for (int i = 0; i < 20; ++i) sp[i] = 0;
    sp[11] = reinterpret_cast<uint64_t>(entry);
    context.sp = sp;
}

void switch_context(Context &from, const Context &to) { hearth_switch(&from.sp, to.sp); }

#else

void prepare_context(Context &context, unsigned char *top, FiberEntry entry) {
    // The context itself lies at the top of the stack it describes, so that it needs no separate allocation.
    auto *saved = reinterpret_cast<ucontext_t *>(top - ((sizeof(ucontext_t) + 63) & ~size_t{63}));
    getcontext(saved);
    saved->uc_stack.ss_sp = top - fiber_stack_bytes / 2;
    saved->uc_stack.ss_size = reinterpret_cast<unsigned char *>(saved) - (top - fiber_stack_bytes / 2);
    saved->uc_link = nullptr;
    makecontext(saved, entry, 0);
    context.sp = saved;
}

void switch_context(Context &from, const Context &to) {
    ucontext_t here;
    void *const before = from.sp;
    if (before == nullptr) from.sp = &here;  // the worker's own stack: its context is in this frame
    swapcontext(static_cast<ucontext_t *>(from.sp), static_cast<ucontext_t *>(to.sp));
    from.sp = before;
}

#endif

namespace {
constexpr size_t page = 4096;
// Offsets the top of each stack, because equal offsets in the page would map all tops to the same few cache sets.
unsigned char *coloured(unsigned char *top, unsigned index) { return top - (index * 5 % 64) * 64; }
}  // namespace

unsigned char *Stacks::top(unsigned index) {
    return coloured(base_ + (size_t{index} + 1) * fiber_stack_bytes, index);
}

thread_local Range fiber_stacks = {nullptr, 0};

void Stacks::reserve(unsigned count) {
    if (count <= count_) return;
    unsigned wanted = 64;
    while (wanted < count) wanted *= 2;
    if (base_ != nullptr) munmap(base_, size_t{count_} * fiber_stack_bytes);
    void *const range = mmap(nullptr, size_t{wanted} * fiber_stack_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (range == MAP_FAILED) {
        fprintf(stderr, "hearth: no address space for the stacks of %u threads\n", wanted);
        abort();
    }
    base_ = static_cast<unsigned char *>(range);
    count_ = wanted;
    fiber_stacks = Range{base_, size_t{count_} * fiber_stack_bytes};
    for (unsigned i = 0; i < wanted; ++i) {
        // With MADV_GUARD_INSTALL (Linux 6.13) a guard needs no separate mapping. On older kernels there are no guards,
        // because a thousand more mappings for each worker would exceed vm.max_map_count.
        if (madvise(base_ + size_t{i} * fiber_stack_bytes, page, MADV_GUARD_INSTALL) != 0) break;
    }
}

Stacks::~Stacks() {
    if (base_ != nullptr) munmap(base_, size_t{count_} * fiber_stack_bytes);
}

}  // namespace hearth
