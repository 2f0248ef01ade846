// Stackful fibers: the threads of a block that synchronises. A switch saves only the registers that a callee must
// preserve in the C calling convention, so it takes a few nanoseconds.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "../include/hearth/spaces.h"

namespace hearth {

inline constexpr unsigned max_block_threads = 1024;
// A thread of a GPU has 512 KiB of local memory. The number of pages is odd, because with a power of two the stacks of
// a block would share few cache sets (a barrier of 256 threads then takes twice as long).
inline constexpr size_t fiber_stack_bytes = 145 * 4096;

using FiberEntry = void (*)();

#if !defined(__x86_64__) && !defined(__aarch64__)
#define HEARTH_UCONTEXT 1
#endif

// A suspended computation: its stack pointer, or with ucontext a pointer to the saved context.
struct Context {
    void *sp = nullptr;
};

// Saves the running computation in `from` and continues `to`.
#if defined(__x86_64__)
// Inline, with every register declared as changed, so that the compiler saves those that it needs in the caller's
// frame. A suspended thread then uses only two or three cache lines of its stack, which determine the cost of a barrier
// of many threads. The switch jumps to the other computation, so that calls and returns stay paired for the processor's
// predictor. Kernels never change the SSE and x87 control words. Needs -mno-red-zone.
inline __attribute__((always_inline)) void switch_context(Context &from, const Context &to) {
    void *save = &from, *next = to.sp;
    asm volatile(
        "pushq %%rbp\n\t"
        "leaq 1f(%%rip), %%rbp\n\t"
        "pushq %%rbp\n\t"
        "movq %%rsp, (%0)\n\t"
        "movq %1, %%rsp\n\t"
        "popq %%rax\n\t"
        "jmpq *%%rax\n"
        "1:\tpopq %%rbp"
        : "+D"(save), "+S"(next)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory", "xmm0",
          "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
          "xmm14", "xmm15"
#ifdef __AVX512F__
          , "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",
          "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#endif
    );
}
#else
void switch_context(Context &from, const Context &to);
#endif
// Makes `context` start `entry` on the stack that ends at `top` when it is first switched to. `entry` never returns.
void prepare_context(Context &context, unsigned char *top, FiberEntry entry);

// The stacks of one worker: one address range, touched lazily, with an unmapped page below each stack where possible.
class Stacks {
public:
    ~Stacks();
    // Top of the stack of fiber `index`; stacks exist for all indices below the largest block seen so far.
    unsigned char *top(unsigned index);
    void reserve(unsigned count);

private:
    unsigned char *base_ = nullptr;
    unsigned count_ = 0;
};

// The range of this worker's stacks.
extern thread_local Range fiber_stacks;

}  // namespace hearth
