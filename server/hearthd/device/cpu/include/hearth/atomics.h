// Atomic functions, on device and on shared memory alike: CUDA's overloads for compute capability 7.0 and no others, so
// that a program may define those that CUDA lacks (atomicMax of float, atomicAdd of long). Blocks run on several cores, so
// these are real atomics.
// Operations by which a program may be spinning let other threads of the block run: a failed compare-and-swap, an
// exchange that changes nothing, and an operation whose operand cannot change anything (the read-by-atomic idiom,
// atomicAdd(p, 0)).
#pragma once
#include "relaxed_begin.h"

namespace hearth {

// Read-modify-write by compare-and-swap for the operations and types that the processor has no instruction for.
template <class T, class Bits, class Fn>
inline T atomic_update(T *address, Fn fn) {
    Bits *const place = reinterpret_cast<Bits *>(address);
    Bits before = __atomic_load_n(place, __ATOMIC_RELAXED);
    for (;;) {
        T old;
        __builtin_memcpy(&old, &before, sizeof old);
        const T wanted = fn(old);
        Bits after;
        __builtin_memcpy(&after, &wanted, sizeof after);
        if (__atomic_compare_exchange_n(place, &before, after, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return old;
    }
}

template <class T>
inline T relaxed_if(bool polling, T value) {
    if (polling) relax();
    return value;
}

struct Atomics {
    template <class T>
    static T add(T *p, T v) {
        return relaxed_if(v == 0, __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST));
    }
    template <class T>
    static T sub(T *p, T v) {
        return relaxed_if(v == 0, __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST));
    }
    template <class T>
    static T bit_and(T *p, T v) {
        return relaxed_if(v == static_cast<T>(~T(0)), __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST));
    }
    template <class T>
    static T bit_or(T *p, T v) {
        return relaxed_if(v == 0, __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST));
    }
    template <class T>
    static T bit_xor(T *p, T v) {
        return relaxed_if(v == 0, __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST));
    }
    template <class T>
    static T exchange(T *p, T v) {
        const T old = __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);
        return relaxed_if(old == v, old);
    }
    static float exchange(float *p, float v) {
        unsigned bits;
        __builtin_memcpy(&bits, &v, sizeof bits);
        bits = exchange(reinterpret_cast<unsigned *>(p), bits);
        __builtin_memcpy(&v, &bits, sizeof v);
        return v;
    }
    template <class T>
    static T compare_and_swap(T *p, T compare, T v) {
        const bool same = compare == v;
        const bool done = __atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        return relaxed_if(same || !done, compare);
    }
    template <class T>
    static T min(T *p, T v) {
        const T old = atomic_update<T, std::make_unsigned_t<T>>(p, [v](T seen) { return v < seen ? v : seen; });
        return relaxed_if(v == std::numeric_limits<T>::max(), old);
    }
    template <class T>
    static T max(T *p, T v) {
        const T old = atomic_update<T, std::make_unsigned_t<T>>(p, [v](T seen) { return v > seen ? v : seen; });
        return relaxed_if(v == std::numeric_limits<T>::min(), old);
    }
    static unsigned increment(unsigned *p, unsigned limit) {
        return atomic_update<unsigned, unsigned>(p, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
    }
    static unsigned decrement(unsigned *p, unsigned limit) {
        return atomic_update<unsigned, unsigned>(
            p, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
    }
    static float add(float *p, float v) {
        return relaxed_if(v == 0, atomic_update<float, unsigned>(p, [v](float old) { return old + v; }));
    }
    static double add(double *p, double v) {
        return relaxed_if(v == 0, atomic_update<double, unsigned long long>(p, [v](double old) { return old + v; }));
    }
};

}  // namespace hearth

// The scoped forms, all of which use the widest scope.
#define HEARTH_ATOMIC(name, T, member) \
    inline T name(T *p, T v) { return hearth::Atomics::member(p, v); } \
    inline T name##_block(T *p, T v) { return hearth::Atomics::member(p, v); } \
    inline T name##_system(T *p, T v) { return hearth::Atomics::member(p, v); }
#define HEARTH_ATOMIC_CAS(T) \
    inline T atomicCAS(T *p, T compare, T v) { return hearth::Atomics::compare_and_swap(p, compare, v); } \
    inline T atomicCAS_block(T *p, T compare, T v) { return hearth::Atomics::compare_and_swap(p, compare, v); } \
    inline T atomicCAS_system(T *p, T compare, T v) { return hearth::Atomics::compare_and_swap(p, compare, v); }
#define HEARTH_ATOMICS_FOR_ALL(X) X(int) X(unsigned int) X(long long) X(unsigned long long)
#define HEARTH_ATOMIC_BITS(T) \
    HEARTH_ATOMIC(atomicAnd, T, bit_and) HEARTH_ATOMIC(atomicOr, T, bit_or) HEARTH_ATOMIC(atomicXor, T, bit_xor) \
    HEARTH_ATOMIC(atomicMin, T, min) HEARTH_ATOMIC(atomicMax, T, max)

HEARTH_ATOMICS_FOR_ALL(HEARTH_ATOMIC_BITS)
HEARTH_ATOMIC(atomicAdd, int, add)
HEARTH_ATOMIC(atomicAdd, unsigned int, add)
HEARTH_ATOMIC(atomicAdd, unsigned long long, add)
HEARTH_ATOMIC(atomicAdd, float, add)
HEARTH_ATOMIC(atomicAdd, double, add)
HEARTH_ATOMIC(atomicSub, int, sub)
HEARTH_ATOMIC(atomicSub, unsigned int, sub)
HEARTH_ATOMIC(atomicExch, int, exchange)
HEARTH_ATOMIC(atomicExch, unsigned int, exchange)
HEARTH_ATOMIC(atomicExch, unsigned long long, exchange)
HEARTH_ATOMIC(atomicExch, float, exchange)
HEARTH_ATOMIC(atomicInc, unsigned int, increment)
HEARTH_ATOMIC(atomicDec, unsigned int, decrement)
HEARTH_ATOMIC_CAS(int)
HEARTH_ATOMIC_CAS(unsigned int)
HEARTH_ATOMIC_CAS(unsigned long long)
inline unsigned short atomicCAS(unsigned short *p, unsigned short compare, unsigned short v) {
    return hearth::Atomics::compare_and_swap(p, compare, v);
}

#undef HEARTH_ATOMIC_BITS
#undef HEARTH_ATOMICS_FOR_ALL
#undef HEARTH_ATOMIC_CAS
#undef HEARTH_ATOMIC
#include "relaxed_end.h"
