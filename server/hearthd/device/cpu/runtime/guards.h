// Guarded arrays of validated launches: all memory around an array is inaccessible, so that the kernel's accesses
// outside of it raise SIGSEGV. The handler records each access, makes its page accessible, and has the instruction
// repeated.
#pragma once
#include <stdint.h>

namespace hearth {

// To be called in the handler of a SIGSEGV at `address` in a kernel. Returns true if the access was recorded and can be
// repeated. `context` is a ucontext_t.
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
// byte. The array ends at the end of a page, as far as the alignment of its elements allows. Returns null if there is
// no room.
hearth::Guard *hearth_guard_make(uint64_t size, uint64_t inside, uint64_t inner, uint64_t *first);
// Make everything except the pages of the array inaccessible, and the `size` bytes accessible again. Keep the contents.
void hearth_guard_arm(hearth::Guard *guard);
void hearth_guard_disarm(hearth::Guard *guard);
// Copies at most `most` accesses outside of the array, in the order in which they occurred; returns their number.
uint32_t hearth_guard_strays(const hearth::Guard *guard, hearth::Stray *strays, uint32_t most);
void hearth_guard_free(hearth::Guard *guard);
}
