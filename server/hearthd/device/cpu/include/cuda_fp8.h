// Eight-bit floating point, https://docs.nvidia.com/cuda/cuda-math-api/ (FP8): e4m3 without infinities, e5m2 with
// them, and e8m0, a power of two that scales a block of others. Conversions round once from any source.
#pragma once
#include "hearth/macros_begin.h"

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "device_types.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
typedef enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

namespace hearth {

inline __nv_fp8_storage_t fp8_bits(double v, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind) {
    const bool wide_exponent = kind == __NV_E5M2;
    const unsigned long long bits = bits_of<unsigned long long>(v);
    const unsigned sign = static_cast<unsigned>(bits >> 63) << 7;
    unsigned code;
    if (v != v) {
        code = wide_exponent ? 0x7e | (static_cast<unsigned>(bits >> 50) & 3) : 0x7f;
    } else {
        code = wide_exponent ? narrow_code<5, 2>(v, Rounding::rn) : narrow_code<4, 3>(v, Rounding::rn);
        const unsigned largest = wide_exponent ? 0x7b : 0x7e;
        if (code > largest) code = saturate == __NV_SATFINITE ? largest : largest + 1;  // e4m3's NaN, e5m2's infinity
    }
    return static_cast<__nv_fp8_storage_t>(code | sign);
}
// A NaN of a type other than double loses its sign.
inline __nv_fp8_storage_t fp8_bits(float v, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind) {
    return v != v ? static_cast<__nv_fp8_storage_t>(0x7f) : fp8_bits(static_cast<double>(v), saturate, kind);
}
// Every number of either kind is a half: e5m2 is its upper byte, e4m3 has another exponent bias.
inline __half fp8_half(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) {
    const unsigned magnitude = x & 0x7fu, sign = (x & 0x80u) << 8;
    if (kind == __NV_E5M2) return __half(__half_raw{static_cast<unsigned short>(magnitude > 0x7c ? 0x7fff : magnitude << 8 | sign)});
    if (magnitude == 0x7f) return __half(__half_raw{0x7fff});
    const float scaled = half_value(static_cast<unsigned short>(magnitude << 7)) * 256.0f;
    return half_of(sign != 0 ? -scaled : scaled);
}

// The power of two at or below |v|, or at or above it; the smallest is 2^-127.
inline __nv_fp8_storage_t e8m0_bits(float v, __nv_saturation_t saturate, cudaRoundMode rounding) {
    if (rounding != cudaRoundZero && rounding != cudaRoundPosInf) __trap();
    const unsigned magnitude = bits_of<unsigned>(v) & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0xff;
    unsigned code = magnitude >> 23;
    if (rounding == cudaRoundPosInf && (magnitude & 0x7fffffu) != 0 && magnitude > 0x400000u) ++code;
    return static_cast<__nv_fp8_storage_t>(code == 0xff && saturate == __NV_SATFINITE ? 0xfe : code);
}
inline __nv_fp8_storage_t e8m0_bits(double v, __nv_saturation_t saturate, cudaRoundMode rounding) {
    const bool past = v - v == 0 && __builtin_fabs(v) > static_cast<double>(std::numeric_limits<float>::max());
    return e8m0_bits(past ? std::numeric_limits<float>::max() : float_to_odd(v), saturate, rounding);
}
inline float e8m0_value(__nv_fp8_storage_t x) {
    return bits_of<float>(x == 0xff ? 0x7fffffffu : x == 0 ? 0x400000u : static_cast<unsigned>(x) << 23);
}
inline __nv_bfloat16 e8m0_bfloat16(__nv_fp8_storage_t x) { return bfloat16_of(e8m0_value(x)); }

// The form in which the structures' constant constructors take their contents.
struct Fp8Bits {
    unsigned char bits;
};
inline unsigned both(unsigned low, unsigned high, int width) { return low | high << width; }

}  // namespace hearth

// --- conversions of one and of two; of two, x is in the low byte
#define HEARTH_FP8_FROM(one, two, T, T2, value) \
    inline __nv_fp8_storage_t __nv_cvt_##one##_to_fp8(T x, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind) { \
        return hearth::fp8_bits(value(x), saturate, kind); \
    } \
    inline __nv_fp8x2_storage_t __nv_cvt_##two##_to_fp8x2(T2 v, __nv_saturation_t saturate, __nv_fp8_interpretation_t kind) { \
        return static_cast<__nv_fp8x2_storage_t>(hearth::both( \
            __nv_cvt_##one##_to_fp8(T{v.x}, saturate, kind), __nv_cvt_##one##_to_fp8(T{v.y}, saturate, kind), 8)); \
    }
#define HEARTH_E8M0_FROM(one, two, T, T2, value) \
    inline __nv_fp8_storage_t __nv_cvt_##one##_to_e8m0(T x, __nv_saturation_t saturate, cudaRoundMode rounding) { \
        return hearth::e8m0_bits(value(x), saturate, rounding); \
    } \
    inline __nv_fp8x2_storage_t __nv_cvt_##two##_to_e8m0x2(T2 v, __nv_saturation_t saturate, cudaRoundMode rounding) { \
        return static_cast<__nv_fp8x2_storage_t>(hearth::both( \
            __nv_cvt_##one##_to_e8m0(T{v.x}, saturate, rounding), __nv_cvt_##one##_to_e8m0(T{v.y}, saturate, rounding), 8)); \
    }
#define HEARTH_FP8_SAME(x) (x)
#define HEARTH_FP8_HALF(x) hearth::half_value((x).x)
#define HEARTH_FP8_BFLOAT16(x) hearth::bfloat16_value((x).x)
HEARTH_FP8_FROM(double, double2, double, double2, HEARTH_FP8_SAME)
HEARTH_FP8_FROM(float, float2, float, float2, HEARTH_FP8_SAME)
HEARTH_FP8_FROM(halfraw, halfraw2, __half_raw, __half2_raw, HEARTH_FP8_HALF)
HEARTH_FP8_FROM(bfloat16raw, bfloat16raw2, __nv_bfloat16_raw, __nv_bfloat162_raw, HEARTH_FP8_BFLOAT16)
HEARTH_E8M0_FROM(double, double2, double, double2, HEARTH_FP8_SAME)
HEARTH_E8M0_FROM(float, float2, float, float2, HEARTH_FP8_SAME)
HEARTH_E8M0_FROM(bfloat16raw, bfloat162raw, __nv_bfloat16_raw, __nv_bfloat162_raw, HEARTH_FP8_BFLOAT16)
#undef HEARTH_FP8_FROM
#undef HEARTH_E8M0_FROM
#undef HEARTH_FP8_SAME
#undef HEARTH_FP8_HALF
#undef HEARTH_FP8_BFLOAT16
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) { return hearth::fp8_half(x, kind); }
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t kind) {
    return __half2(hearth::fp8_half(static_cast<unsigned char>(x), kind), hearth::fp8_half(static_cast<unsigned char>(x >> 8), kind));
}
inline __nv_bfloat16_raw __nv_cvt_e8m0_to_bf16raw(__nv_fp8_storage_t x) { return hearth::e8m0_bfloat16(x); }
inline __nv_bfloat162_raw __nv_cvt_e8m0x2_to_bf162raw(__nv_fp8x2_storage_t x) {
    return __nv_bfloat162(hearth::e8m0_bfloat16(static_cast<unsigned char>(x)), hearth::e8m0_bfloat16(static_cast<unsigned char>(x >> 8)));
}

// --- the structures: each saturates
#define HEARTH_F8 __nv_fp8_e4m3
#define HEARTH_F8X2 __nv_fp8x2_e4m3
#define HEARTH_F8X4 __nv_fp8x4_e4m3
#define HEARTH_F8_ENCODE(v) hearth::fp8_bits(v, __NV_SATFINITE, __NV_E4M3)
#define HEARTH_F8_DECODE(x) hearth::wide(hearth::fp8_half(x, __NV_E4M3))
#include "hearth/fp8_types.h"

#define HEARTH_F8 __nv_fp8_e5m2
#define HEARTH_F8X2 __nv_fp8x2_e5m2
#define HEARTH_F8X4 __nv_fp8x4_e5m2
#define HEARTH_F8_ENCODE(v) hearth::fp8_bits(v, __NV_SATFINITE, __NV_E5M2)
#define HEARTH_F8_DECODE(x) hearth::wide(hearth::fp8_half(x, __NV_E5M2))
#include "hearth/fp8_types.h"

#define HEARTH_F8 __nv_fp8_e8m0
#define HEARTH_F8X2 __nv_fp8x2_e8m0
#define HEARTH_F8X4 __nv_fp8x4_e8m0
#define HEARTH_F8_ENCODE(v) hearth::e8m0_bits(v, __NV_SATFINITE, cudaRoundPosInf)
#define HEARTH_F8_DECODE(x) hearth::e8m0_value(x)
#include "hearth/fp8_types.h"

// --- limits, for cuda::std::numeric_limits too
#define HEARTH_FP8_LIMITS(T, mantissa, bias, least, largest, one_ulp, half, inf, nan, top, tiny) \
    template <> \
    class std::numeric_limits<T> { \
    public: \
        static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false; \
        static constexpr bool has_infinity = inf != 0, has_quiet_NaN = true, has_signaling_NaN = inf != 0; \
        static constexpr bool has_denorm_loss = false, is_iec559 = false, is_bounded = true, is_modulo = false; \
        static constexpr bool traps = false, tinyness_before = false; \
        static constexpr float_denorm_style has_denorm = denorm_present; \
        static constexpr float_round_style round_style = round_to_nearest; \
        static constexpr int radix = 2, digits = mantissa + 1, digits10 = 0, max_digits10 = 2 + digits * 301 / 1000; \
        static constexpr int min_exponent = 2 - bias, max_exponent = top, min_exponent10 = tiny, max_exponent10 = top * 301 / 1000; \
        static constexpr T min() { return T(hearth::Fp8Bits{least}); } \
        static constexpr T max() { return T(hearth::Fp8Bits{largest}); } \
        static constexpr T lowest() { return T(hearth::Fp8Bits{largest | 0x80}); } \
        static constexpr T epsilon() { return T(hearth::Fp8Bits{one_ulp}); } \
        static constexpr T round_error() { return T(hearth::Fp8Bits{half}); } \
        static constexpr T infinity() { return T(hearth::Fp8Bits{inf}); } \
        static constexpr T quiet_NaN() { return T(hearth::Fp8Bits{nan}); } \
        static constexpr T signaling_NaN() { return T(hearth::Fp8Bits{inf == 0 ? 0 : inf | 1}); } \
        static constexpr T denorm_min() { return T(hearth::Fp8Bits{1}); } \
    }
HEARTH_FP8_LIMITS(__nv_fp8_e4m3, 3, 7, 0x08, 0x7e, 0x20, 0x30, 0, 0x7f, 9, -1);
HEARTH_FP8_LIMITS(__nv_fp8_e5m2, 2, 15, 0x04, 0x7b, 0x34, 0x38, 0x7c, 0x7e, 16, -4);
#undef HEARTH_FP8_LIMITS
#include "hearth/macros_end.h"
