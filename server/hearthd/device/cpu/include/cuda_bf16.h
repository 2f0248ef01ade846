// bfloat16, https://docs.nvidia.com/cuda/cuda-math-api/ (bfloat16 and bfloat162). Arithmetic is done in float, or where
// float is not wide enough in double, and rounded once to the nearest, ties to even.
#pragma once
#include "hearth/macros_begin.h"

#include "cuda_fp16.h"

struct __attribute__((aligned(2))) __nv_bfloat16_raw {
    unsigned short x;
};
struct __attribute__((aligned(4))) __nv_bfloat162_raw {
    unsigned short x, y;
};

namespace hearth {
inline unsigned short bfloat16_bits(float f) {
    const unsigned bits = bits_of<unsigned>(f);
    if (f != f) return 0x7fff;  // CUDA's canonical NaN
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
inline unsigned short bfloat16_bits(double d) { return bfloat16_bits(float_to_odd(d)); }
// A float holds 24 bits of an integer; a wider integer would be rounded twice.
template <class Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
inline unsigned short bfloat16_bits(Integer i) { return narrow_bits<8, 7>(i, Rounding::rn); }
inline float bfloat16_value(unsigned short bits) { return bits_of<float>(static_cast<unsigned>(bits) << 16); }
}  // namespace hearth

struct __attribute__((aligned(2))) __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    constexpr __nv_bfloat16(const __nv_bfloat16_raw &raw) : bits(raw.x) {}
    volatile __nv_bfloat16 &operator=(const __nv_bfloat16_raw &raw) volatile {
        bits = raw.x;
        return *this;
    }
    constexpr operator __nv_bfloat16_raw() const { return __nv_bfloat16_raw{bits}; }
    operator __nv_bfloat16_raw() const volatile { return __nv_bfloat16_raw{bits}; }
#ifndef __CUDA_NO_BFLOAT16_CONVERSIONS__
    explicit __nv_bfloat16(__half f) : bits(hearth::bfloat16_bits(hearth::wide(f))) {}
    __nv_bfloat16(float f) : bits(hearth::bfloat16_bits(f)) {}
    __nv_bfloat16(double f) : bits(hearth::bfloat16_bits(f)) {}
    __nv_bfloat16(short i) : bits(hearth::bfloat16_bits(static_cast<float>(i))) {}
    __nv_bfloat16(unsigned short i) : bits(hearth::bfloat16_bits(static_cast<float>(i))) {}
    __nv_bfloat16(int i) : bits(hearth::bfloat16_bits(i)) {}
    __nv_bfloat16(unsigned i) : bits(hearth::bfloat16_bits(i)) {}
    __nv_bfloat16(long i) : bits(hearth::bfloat16_bits(i)) {}
    __nv_bfloat16(unsigned long i) : bits(hearth::bfloat16_bits(i)) {}
    __nv_bfloat16(long long i) : bits(hearth::bfloat16_bits(i)) {}
    __nv_bfloat16(unsigned long long i) : bits(hearth::bfloat16_bits(i)) {}
    operator float() const { return hearth::bfloat16_value(bits); }
    operator signed char() const { return hearth::saturating<signed char>(hearth::bfloat16_value(bits)); }
    operator unsigned char() const { return hearth::saturating<unsigned char>(hearth::bfloat16_value(bits)); }
    operator char() const { return hearth::saturating<char>(hearth::bfloat16_value(bits)); }
    operator short() const { return hearth::saturating<short>(hearth::bfloat16_value(bits)); }
    operator unsigned short() const { return hearth::saturating<unsigned short>(hearth::bfloat16_value(bits)); }
    operator int() const { return hearth::saturating<int>(hearth::bfloat16_value(bits)); }
    operator unsigned() const { return hearth::saturating<unsigned>(hearth::bfloat16_value(bits)); }
    operator long() const { return hearth::saturating<long>(hearth::bfloat16_value(bits)); }
    operator unsigned long() const { return hearth::saturating<unsigned long>(hearth::bfloat16_value(bits)); }
    operator long long() const { return hearth::saturating<long long>(hearth::bfloat16_value(bits)); }
    operator unsigned long long() const { return hearth::saturating<unsigned long long>(hearth::bfloat16_value(bits)); }
    constexpr operator bool() const { return (bits & 0x7fff) != 0; }
#endif
};
#ifndef __CUDA_NO_HALF_CONVERSIONS__
inline __half::__half(__nv_bfloat16 f) : bits(hearth::half_bits(hearth::bfloat16_value(f.bits))) {}
#endif

struct __attribute__((aligned(4))) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    constexpr __nv_bfloat162(const __nv_bfloat16 &a, const __nv_bfloat16 &b) : x(a), y(b) {}
    constexpr __nv_bfloat162(const __nv_bfloat162_raw &raw) : x(__nv_bfloat16_raw{raw.x}), y(__nv_bfloat16_raw{raw.y}) {}
    constexpr operator __nv_bfloat162_raw() const { return __nv_bfloat162_raw{x.bits, y.bits}; }
};
#ifndef CUDA_NO_BFLOAT16
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
#endif

namespace hearth {
inline __nv_bfloat16 bfloat16_of(float f) { return __nv_bfloat16(__nv_bfloat16_raw{bfloat16_bits(f)}); }
inline __nv_bfloat16 bfloat16_of(double d) { return __nv_bfloat16(__nv_bfloat16_raw{bfloat16_bits(d)}); }
template <class T>
inline __nv_bfloat16 bfloat16_towards(T v, Rounding way) { return __nv_bfloat16(__nv_bfloat16_raw{narrow_bits<8, 7>(v, way)}); }
inline float wide(__nv_bfloat16 h) { return bfloat16_value(h.bits); }
// A product has 16 bits. A float holds all bits that affect the result, also for a subnormal product.
inline __nv_bfloat16 product(__nv_bfloat16 a, __nv_bfloat16 b) { return bfloat16_of(wide(a) * wide(b)); }
// A sum in double may be inexact just where it is halfway between two numbers of this type.
inline __nv_bfloat16 fused(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return bfloat16_of(add_to_odd(static_cast<double>(wide(a)) * static_cast<double>(wide(b)), static_cast<double>(wide(c))));
}
}  // namespace hearth

#define HEARTH_N __nv_bfloat16
#define HEARTH_N2 __nv_bfloat162
#define HEARTH_N_RAW __nv_bfloat16_raw
#define HEARTH_N_OF(v) hearth::bfloat16_of(v)
#define HEARTH_N_ENCODED(v, way) hearth::bfloat16_towards(v, way)
#define HEARTH_N_TO(target) __bfloat162##target
#define HEARTH_N_FROM(source, way) __##source##2bfloat16_##way
#define HEARTH_N_EXPONENT 8
#define HEARTH_N_MANTISSA 7
#ifdef __CUDA_NO_BFLOAT16_OPERATORS__
#define HEARTH_N_OPERATORS 0
#else
#define HEARTH_N_OPERATORS 1
#endif
#ifdef __CUDA_NO_BFLOAT162_OPERATORS__
#define HEARTH_N2_OPERATORS 0
#else
#define HEARTH_N2_OPERATORS 1
#endif
#include "hearth/narrow_float.h"
#include "hearth/narrow_functions.h"
#include "hearth/narrow_end.h"

// --- conversions
inline __nv_bfloat16 __float2bfloat16(float f) { return hearth::bfloat16_of(f); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return hearth::bfloat16_of(f); }
inline __nv_bfloat16 __float2bfloat16_rz(float f) { return hearth::bfloat16_towards(static_cast<double>(f), hearth::Rounding::rz); }
inline __nv_bfloat16 __float2bfloat16_ru(float f) { return hearth::bfloat16_towards(static_cast<double>(f), hearth::Rounding::ru); }
inline __nv_bfloat16 __float2bfloat16_rd(float f) { return hearth::bfloat16_towards(static_cast<double>(f), hearth::Rounding::rd); }
inline __nv_bfloat16 __double2bfloat16(double d) { return hearth::bfloat16_of(d); }
inline float __bfloat162float(__nv_bfloat16 h) { return hearth::wide(h); }
inline __nv_bfloat162 __float2bfloat162_rn(float f) { return __nv_bfloat162(hearth::bfloat16_of(f), hearth::bfloat16_of(f)); }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return __nv_bfloat162(hearth::bfloat16_of(a), hearth::bfloat16_of(b)); }
inline __nv_bfloat162 __float22bfloat162_rn(float2 f) { return __floats2bfloat162_rn(f.x, f.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 h) { return float2{hearth::wide(h.x), hearth::wide(h.y)}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 h) { return __nv_bfloat162(h, h); }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v) { return __nv_bfloat162(v.x, v.x); }
inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v) { return __nv_bfloat162(v.y, v.y); }
inline __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return __nv_bfloat162(a.x, b.x); }
inline __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return __nv_bfloat162(a.y, b.y); }
inline constexpr __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16(__nv_bfloat16_raw{bits}); }
inline constexpr __nv_bfloat16 __short_as_bfloat16(short bits) { return __ushort_as_bfloat16(static_cast<unsigned short>(bits)); }
inline constexpr unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline constexpr short __bfloat16_as_short(__nv_bfloat16 h) { return static_cast<short>(h.bits); }

#define CUDART_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7f80u)
#define CUDART_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7fffu)
#define CUDART_MIN_DENORM_BF16 __ushort_as_bfloat16((unsigned short)0x0001u)
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16((unsigned short)0x7f7fu)
#define CUDART_NEG_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x8000u)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x0000u)
#define CUDART_ONE_BF16 __ushort_as_bfloat16((unsigned short)0x3f80u)
#include "hearth/macros_end.h"
