// Stackful fibers: the threads of a block that synchronises. Switching saves only what the C calling convention says a
// callee must keep, so a switch costs a few nanoseconds.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hearth {

inline constexpr unsigned max_block_threads = 1024;
inline constexpr size_t fiber_stack_bytes = 256 * 1024;

using FiberEntry = void (*)();

#if !defined(__x86_64__) && !defined(__aarch64__)
#define HEARTH_UCONTEXT 1
#endif

// A suspended computation: its stack pointer, or with ucontext a pointer to the saved context.
struct Context {
    void *sp = nullptr;
};

// Saves the running computation in `from` and continues `to`.
void switch_context(Context &from, const Context &to);
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

}  // namespace hearth
