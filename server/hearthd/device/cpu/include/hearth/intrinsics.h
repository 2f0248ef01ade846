// Integer, bit and type-conversion intrinsics.
#pragma once

// --- bits
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
    v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
    v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
    v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(v);
}
inline unsigned long long __brevll(unsigned long long v) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(v))) << 32 | __brev(static_cast<unsigned>(v >> 32));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> (4 * i) & 0xf;
        unsigned byte = static_cast<unsigned>(both >> (8 * (nibble & 7))) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;  // the selector's top bit replicates the byte's sign
        result |= byte << (8 * i);
    }
    return result;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) << (shift < 32 ? shift : 32) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) >> (shift & 31));
}
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) >> (shift < 32 ? shift : 32));
}
inline unsigned __fns(unsigned mask, unsigned base, int offset) {
    if (offset == 0) return mask >> base & 1 ? base : 0xffffffffu;
    const int step = offset > 0 ? 1 : -1;
    int left = offset > 0 ? offset : -offset;
    for (int i = static_cast<int>(base); i >= 0 && i < 32; i += step) {
        if ((mask >> i & 1) != 0 && --left == 0) return static_cast<unsigned>(i);
    }
    return 0xffffffffu;
}

// --- products, averages, differences
inline int __mul24(int a, int b) {
    return static_cast<int>(static_cast<unsigned>((a << 8 >> 8)) * static_cast<unsigned>(b << 8 >> 8));
}
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline long long __mul64hi(long long a, long long b) { return static_cast<long long>(static_cast<__int128>(a) * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int mulhi(int a, int b) { return __mulhi(a, b); }
inline int mul24(int a, int b) { return __mul24(a, b); }
inline unsigned __sad(int a, int b, unsigned c) {
    return c + (a < b ? static_cast<unsigned>(b) - static_cast<unsigned>(a) : static_cast<unsigned>(a) - static_cast<unsigned>(b));
}
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a < b ? b - a : a - b); }
inline int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
inline int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) {
    return static_cast<unsigned>((static_cast<unsigned long long>(a) + b) >> 1);
}
inline unsigned __urhadd(unsigned a, unsigned b) {
    return static_cast<unsigned>((static_cast<unsigned long long>(a) + b + 1) >> 1);
}

// --- the same bits under another type
namespace hearth {
template <class To, class From>
inline To bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
// Out-of-range values saturate and a NaN becomes zero (with 64 bits on either side: the top bit alone), as in PTX's
// cvt; in C++ both are undefined. This applies to the intrinsics and to half and bfloat16. A plain cast of a float is
// that of the host processor: on x86 every out-of-range value becomes the lowest value.
template <class To, class From>
inline To saturating(From v) {
    if (v != v) return sizeof(To) == 8 || sizeof(From) == 8 ? static_cast<To>(1ull << (8 * sizeof(To) - 1)) : To(0);
    if (v >= static_cast<From>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
    if (v <= static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    return static_cast<To>(v);
}
enum class Rounding { rn, rz, ru, rd };
template <Rounding way, class From>
inline From rounded(From v) {
    return way == Rounding::rn ? std::rint(v) : way == Rounding::rz ? std::trunc(v)
         : way == Rounding::ru ? std::ceil(v) : std::floor(v);
}
// Converts to a narrower floating type, rounded in the named direction.
template <Rounding way, class From>
inline float to_float(From v) {
    const float nearest = static_cast<float>(v);
    if (way == Rounding::rn) return nearest;
    const long double exact = static_cast<long double>(v), got = nearest;
    if (exact == got || nearest != nearest) return nearest;
    const bool up = way == Rounding::ru || (way == Rounding::rz && exact < 0);
    if (up ? got > exact : got < exact) return nearest;
    return std::nextafterf(nearest, up ? __builtin_inff() : -__builtin_inff());
}
template <Rounding way, class From>
inline double to_double(From v) {
    const double nearest = static_cast<double>(v);
    if (way == Rounding::rn) return nearest;
    const long double exact = static_cast<long double>(v), got = nearest;
    if (exact == got) return nearest;
    const bool up = way == Rounding::ru || (way == Rounding::rz && exact < 0);
    if (up ? got > exact : got < exact) return nearest;
    return std::nextafter(nearest, up ? __builtin_inf() : -__builtin_inf());
}
}  // namespace hearth
inline float __int_as_float(int v) { return hearth::bits_of<float>(v); }
inline int __float_as_int(float v) { return hearth::bits_of<int>(v); }
inline float __uint_as_float(unsigned v) { return hearth::bits_of<float>(v); }
inline unsigned __float_as_uint(float v) { return hearth::bits_of<unsigned>(v); }
inline double __longlong_as_double(long long v) { return hearth::bits_of<double>(v); }
inline long long __double_as_longlong(double v) { return hearth::bits_of<long long>(v); }
inline double __ulonglong_as_double(unsigned long long v) { return hearth::bits_of<double>(v); }
inline unsigned long long __double_as_ulonglong(double v) { return hearth::bits_of<unsigned long long>(v); }
inline int __double2hiint(double v) { return static_cast<int>(hearth::bits_of<unsigned long long>(v) >> 32); }
inline int __double2loint(double v) { return static_cast<int>(hearth::bits_of<unsigned long long>(v)); }
inline double __hiloint2double(int hi, int lo) {
    return hearth::bits_of<double>(static_cast<unsigned long long>(static_cast<unsigned>(hi)) << 32 | static_cast<unsigned>(lo));
}

// --- conversions with a named rounding
#define HEARTH_CONVERSIONS(way) \
    inline int __float2int_##way(float v) { return hearth::saturating<int>(hearth::rounded<hearth::Rounding::way>(v)); } \
    inline unsigned __float2uint_##way(float v) { return hearth::saturating<unsigned>(hearth::rounded<hearth::Rounding::way>(v)); } \
    inline long long __float2ll_##way(float v) { return hearth::saturating<long long>(hearth::rounded<hearth::Rounding::way>(v)); } \
    inline unsigned long long __float2ull_##way(float v) { \
        return hearth::saturating<unsigned long long>(hearth::rounded<hearth::Rounding::way>(v)); \
    } \
    inline int __double2int_##way(double v) { return hearth::saturating<int>(hearth::rounded<hearth::Rounding::way>(v)); } \
    inline unsigned __double2uint_##way(double v) { return hearth::saturating<unsigned>(hearth::rounded<hearth::Rounding::way>(v)); } \
    inline long long __double2ll_##way(double v) { return hearth::saturating<long long>(hearth::rounded<hearth::Rounding::way>(v)); } \
    inline unsigned long long __double2ull_##way(double v) { \
        return hearth::saturating<unsigned long long>(hearth::rounded<hearth::Rounding::way>(v)); \
    } \
    inline float __double2float_##way(double v) { return hearth::to_float<hearth::Rounding::way>(v); } \
    inline float __int2float_##way(int v) { return hearth::to_float<hearth::Rounding::way>(v); } \
    inline float __uint2float_##way(unsigned v) { return hearth::to_float<hearth::Rounding::way>(v); } \
    inline float __ll2float_##way(long long v) { return hearth::to_float<hearth::Rounding::way>(v); } \
    inline float __ull2float_##way(unsigned long long v) { return hearth::to_float<hearth::Rounding::way>(v); } \
    inline double __ll2double_##way(long long v) { return hearth::to_double<hearth::Rounding::way>(v); } \
    inline double __ull2double_##way(unsigned long long v) { return hearth::to_double<hearth::Rounding::way>(v); }
HEARTH_CONVERSIONS(rn)
HEARTH_CONVERSIONS(rz)
HEARTH_CONVERSIONS(ru)
HEARTH_CONVERSIONS(rd)
#undef HEARTH_CONVERSIONS
inline double __int2double_rn(int v) { return v; }
inline double __uint2double_rn(unsigned v) { return v; }
inline int float2int(float v) { return __float2int_rz(v); }
