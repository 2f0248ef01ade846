// Atomic functions, on device and on shared memory alike. Blocks run on several cores, so these are real atomics.
// Where a program may be spinning (a failed compare-and-swap or exchange), other threads of the block get a turn.
#pragma once

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

}  // namespace hearth

#define HEARTH_INTEGER_ATOMICS(T, Bits) \
    inline T atomicAdd(T *p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); } \
    inline T atomicSub(T *p, T v) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); } \
    inline T atomicAnd(T *p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); } \
    inline T atomicOr(T *p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); } \
    inline T atomicXor(T *p, T v) { return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST); } \
    inline T atomicExch(T *p, T v) { \
        const T old = __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); \
        if (old == v) hearth::relax(); \
        return old; \
    } \
    inline T atomicCAS(T *p, T compare, T v) { \
        if (!__atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) hearth::relax(); \
        return compare; \
    } \
    inline T atomicMin(T *p, T v) { \
        return hearth::atomic_update<T, Bits>(p, [v](T old) { return v < old ? v : old; }); \
    } \
    inline T atomicMax(T *p, T v) { \
        return hearth::atomic_update<T, Bits>(p, [v](T old) { return v > old ? v : old; }); \
    }
HEARTH_INTEGER_ATOMICS(int, unsigned)
HEARTH_INTEGER_ATOMICS(unsigned int, unsigned)
HEARTH_INTEGER_ATOMICS(long, unsigned long)
HEARTH_INTEGER_ATOMICS(unsigned long, unsigned long)
HEARTH_INTEGER_ATOMICS(long long, unsigned long long)
HEARTH_INTEGER_ATOMICS(unsigned long long, unsigned long long)
#undef HEARTH_INTEGER_ATOMICS

#define HEARTH_FLOAT_ATOMICS(T, Bits) \
    inline T atomicAdd(T *p, T v) { return hearth::atomic_update<T, Bits>(p, [v](T old) { return old + v; }); } \
    inline T atomicSub(T *p, T v) { return hearth::atomic_update<T, Bits>(p, [v](T old) { return old - v; }); } \
    inline T atomicExch(T *p, T v) { return hearth::atomic_update<T, Bits>(p, [v](T) { return v; }); } \
    inline T atomicMin(T *p, T v) { \
        return hearth::atomic_update<T, Bits>(p, [v](T old) { return v < old ? v : old; }); \
    } \
    inline T atomicMax(T *p, T v) { \
        return hearth::atomic_update<T, Bits>(p, [v](T old) { return v > old ? v : old; }); \
    }
HEARTH_FLOAT_ATOMICS(float, unsigned)
HEARTH_FLOAT_ATOMICS(double, unsigned long long)
#undef HEARTH_FLOAT_ATOMICS

inline float2 atomicAdd(float2 *p, float2 v) { return {atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y)}; }
inline float4 atomicAdd(float4 *p, float4 v) {
    return {atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y), atomicAdd(&p->z, v.z), atomicAdd(&p->w, v.w)};
}
inline unsigned short atomicCAS(unsigned short *p, unsigned short compare, unsigned short v) {
    if (!__atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) hearth::relax();
    return compare;
}
inline unsigned atomicInc(unsigned *p, unsigned limit) {
    return hearth::atomic_update<unsigned, unsigned>(p, [limit](unsigned old) { return old >= limit ? 0 : old + 1; });
}
inline unsigned atomicDec(unsigned *p, unsigned limit) {
    return hearth::atomic_update<unsigned, unsigned>(
        p, [limit](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}

// The scoped forms: one scope, the widest, serves all.
#define HEARTH_SCOPED(name) \
    template <class T, class... V> \
    inline auto name##_block(T *p, V... v) { return name(p, static_cast<T>(v)...); } \
    template <class T, class... V> \
    inline auto name##_system(T *p, V... v) { return name(p, static_cast<T>(v)...); }
HEARTH_SCOPED(atomicAdd)
HEARTH_SCOPED(atomicSub)
HEARTH_SCOPED(atomicExch)
HEARTH_SCOPED(atomicMin)
HEARTH_SCOPED(atomicMax)
HEARTH_SCOPED(atomicInc)
HEARTH_SCOPED(atomicDec)
HEARTH_SCOPED(atomicCAS)
HEARTH_SCOPED(atomicAnd)
HEARTH_SCOPED(atomicOr)
HEARTH_SCOPED(atomicXor)
#undef HEARTH_SCOPED
