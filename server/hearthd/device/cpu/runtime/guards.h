// Guarded arrays of validated launches: around an array all memory is inaccessible, so that the kernel's accesses outside
// of it raise SIGSEGV. The handler writes each down, makes its page accessible, and has the instruction tried again.
#pragma once
#include <stdint.h>

namespace hearth {

// In the handler of a SIGSEGV at `address` in a kernel: whether the access was written down and can be repeated.
// `context` is a ucontext_t.
bool open_guard(const void *address, void *context);

// An access outside of the array. The layout is that of _Stray in guards.py.
struct Stray {
    int64_t offset;  // bytes from the start of the array
    uint32_t kind;   // 0: unknown, 1: read, 2: write
    uint32_t block[3];
};

struct Guard;

}  // namespace hearth

extern "C" {
// Maps `size` bytes, of which `inner` bytes from `inside` on are the array, and sets `first` to the address of the first
// byte. The array ends at the end of a page, as far as the alignment of its elements allows. Null where there is no room.
hearth::Guard *hearth_guard_make(uint64_t size, uint64_t inside, uint64_t inner, uint64_t *first);
// Makes everything but the pages of the array inaccessible, or the `size` bytes accessible again. Keeps the contents.
void hearth_guard_arm(hearth::Guard *guard);
void hearth_guard_disarm(hearth::Guard *guard);
// Copies the accesses outside of the array, at most `most`, in the order in which they came; returns their number.
uint32_t hearth_guard_strays(const hearth::Guard *guard, hearth::Stray *strays, uint32_t most);
void hearth_guard_free(hearth::Guard *guard);
}
