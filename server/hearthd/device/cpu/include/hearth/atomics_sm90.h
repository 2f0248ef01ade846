// The atomic functions that CUDA has from compute capability 9.0 on: vectors of float (each element is atomic, not the
// vector), and 128 bits of any trivially copyable type. Included ahead of a program that is compiled for one.
#pragma once
#include "relaxed_begin.h"

#define HEARTH_ATOMIC_VECTORS(name) \
    inline float2 name(float2 *p, float2 v) { \
        return {hearth::Atomics::add(&p->x, v.x), hearth::Atomics::add(&p->y, v.y)}; \
    } \
    inline float4 name(float4 *p, float4 v) { \
        return {hearth::Atomics::add(&p->x, v.x), hearth::Atomics::add(&p->y, v.y), hearth::Atomics::add(&p->z, v.z), \
                hearth::Atomics::add(&p->w, v.w)}; \
    }
HEARTH_ATOMIC_VECTORS(atomicAdd)
HEARTH_ATOMIC_VECTORS(atomicAdd_block)
HEARTH_ATOMIC_VECTORS(atomicAdd_system)
#undef HEARTH_ATOMIC_VECTORS

#ifdef __GCC_HAVE_SYNC_COMPARE_AND_SWAP_16
namespace hearth {
template <class T>
using Wide = std::enable_if_t<sizeof(T) == 16 && alignof(T) >= 16 && std::is_trivially_copyable_v<T>, T>;

// The result of a compare-and-swap: what was there. By the processor's instruction, not by a library with locks.
inline unsigned __int128 swap_wide(void *p, unsigned __int128 compare, unsigned __int128 v) {
    return __sync_val_compare_and_swap(static_cast<unsigned __int128 *>(p), compare, v);
}
template <class T>
inline unsigned __int128 wide_bits(const T &value) {
    unsigned __int128 bits;
    __builtin_memcpy(&bits, &value, 16);
    return bits;
}
// In a union: T need not have a default constructor.
template <class T>
union WideResult {
    unsigned __int128 bits;
    T value;
};
template <class T>
inline T compare_and_swap_wide(T *p, T compare, T v) {
    const unsigned __int128 wanted = wide_bits(compare), bits = wide_bits(v), old = swap_wide(p, wanted, bits);
    if (old != wanted || wanted == bits) relax();
    return WideResult<T>{old}.value;
}
template <class T>
inline T exchange_wide(T *p, T v) {
    const unsigned __int128 bits = wide_bits(v);
    unsigned __int128 seen = swap_wide(p, 0, 0), old;
    while ((old = swap_wide(p, seen, bits)) != seen) seen = old;
    if (old == bits) relax();
    return WideResult<T>{old}.value;
}
}  // namespace hearth

#define HEARTH_ATOMIC_WIDE(suffix) \
    template <class T> \
    inline hearth::Wide<T> atomicCAS##suffix(T *p, T compare, T v) { return hearth::compare_and_swap_wide(p, compare, v); } \
    template <class T> \
    inline hearth::Wide<T> atomicExch##suffix(T *p, T v) { return hearth::exchange_wide(p, v); }
HEARTH_ATOMIC_WIDE()
HEARTH_ATOMIC_WIDE(_block)
HEARTH_ATOMIC_WIDE(_system)
#undef HEARTH_ATOMIC_WIDE
#endif
#include "relaxed_end.h"
