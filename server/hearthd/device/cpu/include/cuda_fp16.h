// Half precision, https://docs.nvidia.com/cuda/cuda-math-api/ (half and half2). Arithmetic is done in float and rounded
// once, which for +, -, *, / and sqrt gives the same bits as half-precision hardware; fused multiply-add in double.
#pragma once
#include "hearth/macros_begin.h"

#include "hearth/narrow_codes.h"

struct __attribute__((aligned(2))) __half_raw {
    unsigned short x;
};
struct __attribute__((aligned(4))) __half2_raw {
    unsigned short x, y;
};
struct __half;
struct __nv_bfloat16;

namespace hearth {
inline unsigned short half_bits(float f) {
    return f != f ? static_cast<unsigned short>(0x7fff) : bits_of<unsigned short>(static_cast<_Float16>(f));
}
inline unsigned short half_bits(double d) { return half_bits(float_to_odd(d)); }
inline float half_value(unsigned short bits) { return static_cast<float>(bits_of<_Float16>(bits)); }
}  // namespace hearth

struct __attribute__((aligned(2))) __half {
    unsigned short bits;
    __half() = default;
    constexpr __half(const __half_raw &raw) : bits(raw.x) {}
    volatile __half &operator=(const __half_raw &raw) volatile {
        bits = raw.x;
        return *this;
    }
    constexpr operator __half_raw() const { return __half_raw{bits}; }
    operator __half_raw() const volatile { return __half_raw{bits}; }
#ifndef __CUDA_NO_HALF_CONVERSIONS__
    explicit __half(__nv_bfloat16 f);  // defined in cuda_bf16.h
    __half(float f) : bits(hearth::half_bits(f)) {}
    __half(double f) : bits(hearth::half_bits(f)) {}
    // An integer that float cannot hold is beyond the largest half anyway.
    __half(short i) : bits(hearth::half_bits(static_cast<float>(i))) {}
    __half(unsigned short i) : bits(hearth::half_bits(static_cast<float>(i))) {}
    __half(int i) : bits(hearth::half_bits(static_cast<float>(i))) {}
    __half(unsigned i) : bits(hearth::half_bits(static_cast<float>(i))) {}
    __half(long i) : bits(hearth::half_bits(static_cast<float>(i))) {}
    __half(unsigned long i) : bits(hearth::half_bits(static_cast<float>(i))) {}
    __half(long long i) : bits(hearth::half_bits(static_cast<float>(i))) {}
    __half(unsigned long long i) : bits(hearth::half_bits(static_cast<float>(i))) {}
    operator float() const { return hearth::half_value(bits); }
    operator signed char() const { return hearth::saturating<signed char>(hearth::half_value(bits)); }
    operator unsigned char() const { return hearth::saturating<unsigned char>(hearth::half_value(bits)); }
    operator char() const { return hearth::saturating<char>(hearth::half_value(bits)); }
    operator short() const { return hearth::saturating<short>(hearth::half_value(bits)); }
    operator unsigned short() const { return hearth::saturating<unsigned short>(hearth::half_value(bits)); }
    operator int() const { return hearth::saturating<int>(hearth::half_value(bits)); }
    operator unsigned() const { return hearth::saturating<unsigned>(hearth::half_value(bits)); }
    operator long() const { return hearth::saturating<long>(hearth::half_value(bits)); }
    operator unsigned long() const { return hearth::saturating<unsigned long>(hearth::half_value(bits)); }
    operator long long() const { return hearth::saturating<long long>(hearth::half_value(bits)); }
    operator unsigned long long() const { return hearth::saturating<unsigned long long>(hearth::half_value(bits)); }
    constexpr operator bool() const { return (bits & 0x7fff) != 0; }
#endif
};

struct __attribute__((aligned(4))) __half2 {
    __half x, y;
    __half2() = default;
    constexpr __half2(const __half &a, const __half &b) : x(a), y(b) {}
    constexpr __half2(const __half2_raw &raw) : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
    constexpr operator __half2_raw() const { return __half2_raw{x.bits, y.bits}; }
};
using __nv_half = __half;
using __nv_half2 = __half2;
#ifndef CUDA_NO_HALF
using half = __half;
using half2 = __half2;
using nv_half = __half;
using nv_half2 = __half2;
#endif

namespace hearth {
inline __half half_of(float f) { return __half(__half_raw{half_bits(f)}); }
inline __half half_of(double d) { return __half(__half_raw{half_bits(d)}); }
template <class T>
inline __half half_towards(T v, Rounding way) { return __half(__half_raw{narrow_bits<5, 10>(v, way)}); }
inline float wide(__half h) { return half_value(h.bits); }
inline __half product(__half a, __half b) { return half_of(wide(a) * wide(b)); }
// In double, a product is exact, and an inexact sum is not near the midpoint of two halves.
inline __half fused(__half a, __half b, __half c) {
    return half_of(static_cast<double>(wide(a)) * static_cast<double>(wide(b)) + static_cast<double>(wide(c)));
}
}  // namespace hearth

#define HEARTH_N __half
#define HEARTH_N2 __half2
#define HEARTH_N_RAW __half_raw
#define HEARTH_N_OF(v) hearth::half_of(v)
#define HEARTH_N_ENCODED(v, way) hearth::half_towards(v, way)
#define HEARTH_N_TO(target) __half2##target
#define HEARTH_N_FROM(source, way) __##source##2half_##way
#define HEARTH_N_EXPONENT 5
#define HEARTH_N_MANTISSA 10
#ifdef __CUDA_NO_HALF_OPERATORS__
#define HEARTH_N_OPERATORS 0
#else
#define HEARTH_N_OPERATORS 1
#endif
#ifdef __CUDA_NO_HALF2_OPERATORS__
#define HEARTH_N2_OPERATORS 0
#else
#define HEARTH_N2_OPERATORS 1
#endif
#include "hearth/narrow_float.h"
#include "hearth/narrow_functions.h"
#include "hearth/narrow_end.h"

// --- conversions
inline __half __float2half(float f) { return hearth::half_of(f); }
inline __half __float2half_rn(float f) { return hearth::half_of(f); }
inline __half __float2half_rz(float f) { return hearth::half_towards(static_cast<double>(f), hearth::Rounding::rz); }
inline __half __float2half_ru(float f) { return hearth::half_towards(static_cast<double>(f), hearth::Rounding::ru); }
inline __half __float2half_rd(float f) { return hearth::half_towards(static_cast<double>(f), hearth::Rounding::rd); }
inline __half __double2half(double d) { return hearth::half_of(d); }
inline float __half2float(__half h) { return hearth::wide(h); }
inline __half2 __float2half2_rn(float f) { return __half2(hearth::half_of(f), hearth::half_of(f)); }
inline __half2 __floats2half2_rn(float a, float b) { return __half2(hearth::half_of(a), hearth::half_of(b)); }
inline __half2 __float22half2_rn(float2 f) { return __floats2half2_rn(f.x, f.y); }
inline float2 __half22float2(__half2 h) { return float2{hearth::wide(h.x), hearth::wide(h.y)}; }
inline __half2 __half2half2(__half h) { return __half2(h, h); }
inline __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
inline __half2 make_half2(__half a, __half b) { return __half2(a, b); }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline __half2 __low2half2(__half2 v) { return __half2(v.x, v.x); }
inline __half2 __high2half2(__half2 v) { return __half2(v.y, v.y); }
inline __half2 __lows2half2(__half2 a, __half2 b) { return __half2(a.x, b.x); }
inline __half2 __highs2half2(__half2 a, __half2 b) { return __half2(a.y, b.y); }
inline constexpr __half __ushort_as_half(unsigned short bits) { return __half(__half_raw{bits}); }
inline constexpr __half __short_as_half(short bits) { return __half(__half_raw{static_cast<unsigned short>(bits)}); }
inline constexpr unsigned short __half_as_ushort(__half h) { return h.bits; }
inline constexpr short __half_as_short(__half h) { return static_cast<short>(h.bits); }

#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7c00u)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7fffu)
#define CUDART_MIN_DENORM_FP16 __ushort_as_half((unsigned short)0x0001u)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half((unsigned short)0x7bffu)
#define CUDART_NEG_ZERO_FP16 __ushort_as_half((unsigned short)0x8000u)
#define CUDART_ZERO_FP16 __ushort_as_half((unsigned short)0x0000u)
#define CUDART_ONE_FP16 __ushort_as_half((unsigned short)0x3c00u)
#include "hearth/macros_end.h"
