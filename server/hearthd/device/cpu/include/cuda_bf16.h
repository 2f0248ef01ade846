// bfloat16, https://docs.nvidia.com/cuda/cuda-math-api/ (bfloat16 and bfloat162). Arithmetic is done in float and
// rounded once to the nearest, ties to even.
#pragma once

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
// A double goes through float rounded to odd, so that it is rounded once in effect.
inline float float_to_odd(double d) {
    const float nearest = static_cast<float>(d);
    if (static_cast<double>(nearest) == d || d != d || nearest - nearest != 0) return nearest;
    unsigned bits = bits_of<unsigned>(nearest);
    if (__builtin_fabs(static_cast<double>(nearest)) > __builtin_fabs(d)) --bits;
    return bits_of<float>(bits | 1);
}
}  // namespace hearth

struct __attribute__((aligned(2))) __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : bits(hearth::bfloat16_bits(f)) {}
    __nv_bfloat16(double f) : bits(hearth::bfloat16_bits(hearth::float_to_odd(f))) {}
    __nv_bfloat16(int i) : __nv_bfloat16(static_cast<double>(i)) {}
    __nv_bfloat16(unsigned i) : __nv_bfloat16(static_cast<double>(i)) {}
    __nv_bfloat16(short i) : __nv_bfloat16(static_cast<float>(i)) {}
    __nv_bfloat16(unsigned short i) : __nv_bfloat16(static_cast<float>(i)) {}
    __nv_bfloat16(long long i) : __nv_bfloat16(static_cast<double>(i)) {}
    __nv_bfloat16(unsigned long long i) : __nv_bfloat16(static_cast<double>(i)) {}
    __nv_bfloat16(const __nv_bfloat16_raw &raw) : bits(raw.x) {}
    operator __nv_bfloat16_raw() const { return __nv_bfloat16_raw{bits}; }
    operator float() const { return hearth::bits_of<float>(static_cast<unsigned>(bits) << 16); }
    explicit operator double() const { return static_cast<float>(*this); }
    explicit operator bool() const { return (bits & 0x7fff) != 0; }
    explicit operator int() const { return hearth::saturating<int>(static_cast<float>(*this)); }
    explicit operator unsigned() const { return hearth::saturating<unsigned>(static_cast<float>(*this)); }
    explicit operator short() const { return hearth::saturating<short>(static_cast<float>(*this)); }
    explicit operator unsigned short() const { return hearth::saturating<unsigned short>(static_cast<float>(*this)); }
    explicit operator long long() const { return hearth::saturating<long long>(static_cast<float>(*this)); }
    explicit operator unsigned long long() const {
        return hearth::saturating<unsigned long long>(static_cast<float>(*this));
    }
};
using nv_bfloat16 = __nv_bfloat16;

struct __attribute__((aligned(4))) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {}
};
using nv_bfloat162 = __nv_bfloat162;

#define HEARTH_BF16 1
#define HEARTH_NARROW __nv_bfloat16
#define HEARTH_NARROW2 __nv_bfloat162
#define HEARTH_NARROW_RAW __nv_bfloat16_raw
#include "hearth/narrow_float.h"
#undef HEARTH_NARROW
#undef HEARTH_NARROW2
#undef HEARTH_NARROW_RAW
#undef HEARTH_BF16

inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __float2bfloat16_rz(float f) {
    return __nv_bfloat16(__nv_bfloat16_raw{static_cast<unsigned short>(f != f ? 0x7fff : hearth::bits_of<unsigned>(f) >> 16)});
}
inline __nv_bfloat16 __double2bfloat16(double d) { return __nv_bfloat16(d); }
inline float __bfloat162float(__nv_bfloat16 h) { return h; }
inline __nv_bfloat162 __float2bfloat162_rn(float f) { return __nv_bfloat162(f, f); }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return __nv_bfloat162(a, b); }
inline __nv_bfloat162 __float22bfloat162_rn(float2 f) { return __nv_bfloat162(f.x, f.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 h) { return float2{h.x, h.y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 h) { return __nv_bfloat162(h, h); }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16(__nv_bfloat16_raw{bits}); }
inline __nv_bfloat16 __short_as_bfloat16(short bits) { return __ushort_as_bfloat16(static_cast<unsigned short>(bits)); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline short __bfloat16_as_short(__nv_bfloat16 h) { return static_cast<short>(h.bits); }
inline int __bfloat162int_rn(__nv_bfloat16 h) { return __float2int_rn(h); }
inline int __bfloat162int_rz(__nv_bfloat16 h) { return __float2int_rz(h); }
inline unsigned __bfloat162uint_rn(__nv_bfloat16 h) { return __float2uint_rn(h); }
inline __nv_bfloat16 __int2bfloat16_rn(int i) { return __nv_bfloat16(i); }
inline __nv_bfloat16 __uint2bfloat16_rn(unsigned i) { return __nv_bfloat16(i); }
