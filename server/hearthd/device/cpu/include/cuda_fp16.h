// Half precision, https://docs.nvidia.com/cuda/cuda-math-api/ (half and half2). Arithmetic is done in float and rounded
// once, which for +, -, *, / and sqrt gives the same bits as half-precision hardware; fused multiply-add in double.
#pragma once

struct __attribute__((aligned(2))) __half_raw {
    unsigned short x;
};
struct __attribute__((aligned(4))) __half2_raw {
    unsigned short x, y;
};

struct __attribute__((aligned(2))) __half {
    _Float16 v;
    __half() = default;
    __half(float f) : v(static_cast<_Float16>(f)) {}
    __half(double f) : v(static_cast<_Float16>(f)) {}
    __half(int i) : v(static_cast<_Float16>(i)) {}
    __half(unsigned i) : v(static_cast<_Float16>(i)) {}
    __half(short i) : v(static_cast<_Float16>(i)) {}
    __half(unsigned short i) : v(static_cast<_Float16>(i)) {}
    __half(long i) : v(static_cast<_Float16>(i)) {}
    __half(unsigned long i) : v(static_cast<_Float16>(i)) {}
    __half(long long i) : v(static_cast<_Float16>(i)) {}
    __half(unsigned long long i) : v(static_cast<_Float16>(i)) {}
    __half(const __half_raw &raw) { __builtin_memcpy(static_cast<void *>(this), &raw, 2); }
    operator __half_raw() const {
        __half_raw raw;
        __builtin_memcpy(&raw, this, 2);
        return raw;
    }
    operator float() const { return static_cast<float>(v); }
    explicit operator double() const { return static_cast<double>(v); }
    explicit operator bool() const { return v != 0; }
    explicit operator int() const { return hearth::saturating<int>(static_cast<float>(v)); }
    explicit operator unsigned() const { return hearth::saturating<unsigned>(static_cast<float>(v)); }
    explicit operator short() const { return hearth::saturating<short>(static_cast<float>(v)); }
    explicit operator unsigned short() const { return hearth::saturating<unsigned short>(static_cast<float>(v)); }
    explicit operator long long() const { return hearth::saturating<long long>(static_cast<float>(v)); }
    explicit operator unsigned long long() const { return hearth::saturating<unsigned long long>(static_cast<float>(v)); }
};
using half = __half;
using __nv_half = __half;
using nv_half = __half;

struct __attribute__((aligned(4))) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b) {}
    __half2(const __half2_raw &raw) { __builtin_memcpy(static_cast<void *>(this), &raw, 4); }
    operator __half2_raw() const {
        __half2_raw raw;
        __builtin_memcpy(&raw, this, 4);
        return raw;
    }
};
using half2 = __half2;
using __nv_half2 = __half2;
using nv_half2 = __half2;

#define HEARTH_F16 1
#define HEARTH_NARROW __half
#define HEARTH_NARROW2 __half2
#define HEARTH_NARROW_RAW __half_raw
#include "hearth/narrow_float.h"
#undef HEARTH_NARROW
#undef HEARTH_NARROW2
#undef HEARTH_NARROW_RAW
#undef HEARTH_F16

// --- conversions
inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __half __double2half(double d) { return __half(d); }
inline float __half2float(__half h) { return static_cast<float>(h.v); }
inline __half2 __float2half2_rn(float f) { return __half2(__half(f), __half(f)); }
inline __half2 __floats2half2_rn(float a, float b) { return __half2(__half(a), __half(b)); }
inline __half2 __float22half2_rn(float2 f) { return __half2(__half(f.x), __half(f.y)); }
inline float2 __half22float2(__half2 h) { return float2{h.x, h.y}; }
inline __half2 __half2half2(__half h) { return __half2(h, h); }
inline __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
inline __half2 make_half2(__half a, __half b) { return __half2(a, b); }
inline __half __ushort_as_half(unsigned short bits) { return __half(__half_raw{bits}); }
inline __half __short_as_half(short bits) { return __half(__half_raw{static_cast<unsigned short>(bits)}); }
inline unsigned short __half_as_ushort(__half h) { return static_cast<__half_raw>(h).x; }
inline short __half_as_short(__half h) { return static_cast<short>(static_cast<__half_raw>(h).x); }
// Rounded to a named side: the nearest half, and one step on where that is the wrong side.
namespace hearth {
template <Rounding way>
inline __half half_towards(double f) {
    const __half nearest(f);
    const double got = static_cast<double>(nearest.v);
    if (got == f || f != f) return nearest;
    const bool up = way == Rounding::ru || (way == Rounding::rz && f < 0);
    if (up ? got > f : got < f) return nearest;
    unsigned short bits = __half_as_ushort(nearest);
    if (bits << 1 == 0) return __ushort_as_half(up ? 0x0001 : 0x8001);
    bits = static_cast<unsigned short>(((bits >> 15) == 0) == up ? bits + 1 : bits - 1);
    return __ushort_as_half(bits);
}
}  // namespace hearth
inline __half __float2half_rz(float f) { return hearth::half_towards<hearth::Rounding::rz>(f); }
inline __half __float2half_ru(float f) { return hearth::half_towards<hearth::Rounding::ru>(f); }
inline __half __float2half_rd(float f) { return hearth::half_towards<hearth::Rounding::rd>(f); }
#define HEARTH_HALF_INTEGERS(way) \
    inline int __half2int_##way(__half h) { return __float2int_##way(h); } \
    inline unsigned __half2uint_##way(__half h) { return __float2uint_##way(h); } \
    inline long long __half2ll_##way(__half h) { return __float2ll_##way(h); } \
    inline unsigned long long __half2ull_##way(__half h) { return __float2ull_##way(h); } \
    inline short __half2short_##way(__half h) { \
        return hearth::saturating<short>(hearth::rounded<hearth::Rounding::way>(static_cast<float>(h))); \
    } \
    inline unsigned short __half2ushort_##way(__half h) { \
        return hearth::saturating<unsigned short>(hearth::rounded<hearth::Rounding::way>(static_cast<float>(h))); \
    }
HEARTH_HALF_INTEGERS(rn)
HEARTH_HALF_INTEGERS(rz)
HEARTH_HALF_INTEGERS(ru)
HEARTH_HALF_INTEGERS(rd)
#undef HEARTH_HALF_INTEGERS
inline __half __int2half_rn(int i) { return __half(i); }
inline __half __uint2half_rn(unsigned i) { return __half(i); }
inline __half __short2half_rn(short i) { return __half(i); }
inline __half __ushort2half_rn(unsigned short i) { return __half(i); }
inline __half __ll2half_rn(long long i) { return __half(i); }
inline __half __ull2half_rn(unsigned long long i) { return __half(i); }

#define CUDART_INF_FP16 __ushort_as_half(0x7c00u)
#define CUDART_NAN_FP16 __ushort_as_half(0x7fffu)
#define CUDART_ZERO_FP16 __ushort_as_half(0x0000u)
#define CUDART_ONE_FP16 __ushort_as_half(0x3c00u)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half(0x7bffu)
