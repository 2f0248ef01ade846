// Packed bytes and halfwords: the SIMD video instructions, the DPX functions for dynamic programming, and dot products
// of packed numbers, https://docs.nvidia.com/cuda/cuda-math-api/ (SIMD Intrinsics; Integer Intrinsics).
#pragma once

namespace hearth {

template <class Lane, class Fn>
inline unsigned lanewise(unsigned va, unsigned vb, Fn fn) {
    constexpr int bits = 8 * sizeof(Lane);
    unsigned result = 0;
    for (int i = 0; i < 32; i += bits) {
        const int value = fn(static_cast<int>(static_cast<Lane>(va >> i)), static_cast<int>(static_cast<Lane>(vb >> i)));
        result |= (static_cast<unsigned>(value) & ((1u << bits) - 1)) << i;
    }
    return result;
}

// The sum over the lanes, in place of a packed result.
template <class Lane, class Fn>
inline unsigned lane_sum(unsigned va, unsigned vb, Fn fn) {
    unsigned sum = 0;
    for (int i = 0; i < 32; i += 8 * int(sizeof(Lane))) {
        sum += static_cast<unsigned>(fn(static_cast<int>(static_cast<Lane>(va >> i)), static_cast<int>(static_cast<Lane>(vb >> i))));
    }
    return sum;
}

template <class Lane>
constexpr int clamped(int v) {
    constexpr int low = std::numeric_limits<Lane>::min(), high = std::numeric_limits<Lane>::max();
    return v < low ? low : v > high ? high : v;
}

}  // namespace hearth

// Defines stem2 (two halfwords) and stem4 (four bytes). `expression` computes one lane from `a` and `b`, the lanes
// widened to int; its low bits are the result's lane. `sign` determines how lanes are widened.
#define HEARTH_SIMD(stem, sign, expression) \
    inline unsigned stem##2(unsigned va, unsigned vb) { \
        using Lane = sign short; \
        return hearth::lanewise<Lane>(va, vb, [](int a, int b) -> int { return expression; }); \
    } \
    inline unsigned stem##4(unsigned va, unsigned vb) { \
        using Lane = sign char; \
        return hearth::lanewise<Lane>(va, vb, [](int a, int b) -> int { return expression; }); \
    }
#define HEARTH_SIMD_UNARY(stem, expression) \
    inline unsigned stem##2(unsigned va) { \
        using Lane = signed short; \
        return hearth::lanewise<Lane>(va, 0u, [](int a, int) -> int { return expression; }); \
    } \
    inline unsigned stem##4(unsigned va) { \
        using Lane = signed char; \
        return hearth::lanewise<Lane>(va, 0u, [](int a, int) -> int { return expression; }); \
    }
#define HEARTH_SIMD_SUM(stem, sign, expression) \
    inline unsigned stem##2(unsigned va, unsigned vb) { \
        return hearth::lane_sum<sign short>(va, vb, [](int a, int b) -> int { return expression; }); \
    } \
    inline unsigned stem##4(unsigned va, unsigned vb) { \
        return hearth::lane_sum<sign char>(va, vb, [](int a, int b) -> int { return expression; }); \
    }
// A mask of all ones (__vcmp) or the number one (__vset) in the lanes where the comparison holds.
#define HEARTH_SIMD_COMPARE(name, sign, op) \
    HEARTH_SIMD(__vcmp##name, sign, a op b ? -1 : 0) \
    HEARTH_SIMD(__vset##name, sign, a op b ? 1 : 0)

HEARTH_SIMD(__vadd, unsigned, a + b)
HEARTH_SIMD(__vaddss, signed, hearth::clamped<Lane>(a + b))
HEARTH_SIMD(__vaddus, unsigned, hearth::clamped<Lane>(a + b))
HEARTH_SIMD(__vsub, unsigned, a - b)
HEARTH_SIMD(__vsubss, signed, hearth::clamped<Lane>(a - b))
HEARTH_SIMD(__vsubus, unsigned, hearth::clamped<Lane>(a - b))
HEARTH_SIMD(__vabsdiffs, signed, a < b ? b - a : a - b)
HEARTH_SIMD(__vabsdiffu, unsigned, a < b ? b - a : a - b)
HEARTH_SIMD(__vavgs, signed, (a + b + (a + b >= 0 ? 1 : 0)) >> 1)
HEARTH_SIMD(__vavgu, unsigned, (a + b + 1) >> 1)
HEARTH_SIMD(__vhaddu, unsigned, (a + b) >> 1)
HEARTH_SIMD(__vmaxs, signed, a < b ? b : a)
HEARTH_SIMD(__vmaxu, unsigned, a < b ? b : a)
HEARTH_SIMD(__vmins, signed, b < a ? b : a)
HEARTH_SIMD(__vminu, unsigned, b < a ? b : a)
HEARTH_SIMD_COMPARE(eq, unsigned, ==)
HEARTH_SIMD_COMPARE(ne, unsigned, !=)
HEARTH_SIMD_COMPARE(ges, signed, >=)
HEARTH_SIMD_COMPARE(geu, unsigned, >=)
HEARTH_SIMD_COMPARE(gts, signed, >)
HEARTH_SIMD_COMPARE(gtu, unsigned, >)
HEARTH_SIMD_COMPARE(les, signed, <=)
HEARTH_SIMD_COMPARE(leu, unsigned, <=)
HEARTH_SIMD_COMPARE(lts, signed, <)
HEARTH_SIMD_COMPARE(ltu, unsigned, <)
HEARTH_SIMD_UNARY(__vabs, a < 0 ? -a : a)
HEARTH_SIMD_UNARY(__vabsss, hearth::clamped<Lane>(a < 0 ? -a : a))
HEARTH_SIMD_UNARY(__vneg, -a)
HEARTH_SIMD_UNARY(__vnegss, hearth::clamped<Lane>(-a))
HEARTH_SIMD_SUM(__vsads, signed, a < b ? b - a : a - b)
HEARTH_SIMD_SUM(__vsadu, unsigned, a < b ? b - a : a - b)

#undef HEARTH_SIMD
#undef HEARTH_SIMD_UNARY
#undef HEARTH_SIMD_SUM
#undef HEARTH_SIMD_COMPARE

// --- DPX: sums wrap in their own width before they are compared; "relu" is a maximum with zero
namespace hearth {

template <class T> constexpr T least(T a, T b) { return b < a ? b : a; }
template <class T> constexpr T greatest(T a, T b) { return a < b ? b : a; }
template <class T>
constexpr T wrapping_add(T a, T b) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
}

// `fn` on each half of three words.
template <class Half, class Fn>
inline unsigned halves(unsigned va, unsigned vb, unsigned vc, Fn fn) {
    const unsigned low = static_cast<unsigned short>(fn(static_cast<Half>(va), static_cast<Half>(vb), static_cast<Half>(vc)));
    const unsigned high = static_cast<unsigned short>(
        fn(static_cast<Half>(va >> 16), static_cast<Half>(vb >> 16), static_cast<Half>(vc >> 16)));
    return high << 16 | low;
}

// The maximum (or minimum) and, in `*first`, whether it is `a`; equal operands count as `a`.
template <bool Maximum, class T>
inline T bound(T a, T b, bool *first) {
    *first = Maximum ? a >= b : a <= b;
    return *first ? a : b;
}

template <bool Maximum, class Half>
inline unsigned bound_halves(unsigned a, unsigned b, bool *high_first, bool *low_first) {
    const Half high = bound<Maximum>(static_cast<Half>(a >> 16), static_cast<Half>(b >> 16), high_first);
    const Half low = bound<Maximum>(static_cast<Half>(a), static_cast<Half>(b), low_first);
    return static_cast<unsigned>(static_cast<unsigned short>(high)) << 16 | static_cast<unsigned short>(low);
}

}  // namespace hearth

#define HEARTH_DPX(stem, tail, word, w, half, h, expression) \
    inline word stem##_##w##tail(word a, word b, word c) { \
        using T = word; \
        return static_cast<T>(expression); \
    } \
    inline unsigned stem##_##h##tail(unsigned va, unsigned vb, unsigned vc) { \
        using T = half; \
        return hearth::halves<T>(va, vb, vc, [](T a, T b, T c) -> T { return expression; }); \
    }
#define HEARTH_DPX_SIGNED(stem, tail, expression) HEARTH_DPX(stem, tail, int, s32, short, s16x2, expression)
#define HEARTH_DPX_UNSIGNED(stem, expression) HEARTH_DPX(stem, , unsigned, u32, unsigned short, u16x2, expression)
#define HEARTH_DPX_ALL(stem, expression) \
    HEARTH_DPX_SIGNED(stem, , expression) \
    HEARTH_DPX_SIGNED(stem, _relu, hearth::greatest<T>(expression, 0)) \
    HEARTH_DPX_UNSIGNED(stem, expression)
HEARTH_DPX_ALL(__vimax3, hearth::greatest<T>(hearth::greatest<T>(a, b), c))
HEARTH_DPX_ALL(__vimin3, hearth::least<T>(hearth::least<T>(a, b), c))
HEARTH_DPX_ALL(__viaddmax, hearth::greatest<T>(hearth::wrapping_add<T>(a, b), c))
HEARTH_DPX_ALL(__viaddmin, hearth::least<T>(hearth::wrapping_add<T>(a, b), c))
#undef HEARTH_DPX_ALL
#undef HEARTH_DPX_UNSIGNED
#undef HEARTH_DPX_SIGNED
#undef HEARTH_DPX

inline int __vimax_s32_relu(int a, int b) { return __vimax3_s32(a, b, 0); }
inline unsigned __vimax_s16x2_relu(unsigned a, unsigned b) { return __vimax3_s16x2(a, b, 0); }
inline int __vimin_s32_relu(int a, int b) { return __vimin3_s32_relu(a, b, b); }
inline unsigned __vimin_s16x2_relu(unsigned a, unsigned b) { return __vimin3_s16x2_relu(a, b, b); }

#define HEARTH_DPX_BOUND(name, maximum) \
    inline int name##_s32(int a, int b, bool *first) { return hearth::bound<maximum>(a, b, first); } \
    inline unsigned name##_u32(unsigned a, unsigned b, bool *first) { return hearth::bound<maximum>(a, b, first); } \
    inline unsigned name##_s16x2(unsigned a, unsigned b, bool *high_first, bool *low_first) { \
        return hearth::bound_halves<maximum, short>(a, b, high_first, low_first); \
    } \
    inline unsigned name##_u16x2(unsigned a, unsigned b, bool *high_first, bool *low_first) { \
        return hearth::bound_halves<maximum, unsigned short>(a, b, high_first, low_first); \
    }
HEARTH_DPX_BOUND(__vibmax, true)
HEARTH_DPX_BOUND(__vibmin, false)
#undef HEARTH_DPX_BOUND

// --- dot products with accumulation; sums wrap
namespace hearth {

// Elements of `A` in all of `a`, as many of `B` from byte `from` of `b` on.
template <class A, class B>
inline unsigned dot_product(unsigned a, unsigned b, unsigned c, int from = 0) {
    for (int i = 0; i < int(4 / sizeof(A)); ++i) {
        const int x = static_cast<A>(a >> (8 * int(sizeof(A)) * i)), y = static_cast<B>(b >> (8 * (from + i)));
        c += static_cast<unsigned>(x) * static_cast<unsigned>(y);
    }
    return c;
}
template <class V>
inline unsigned packed(V v) {
    static_assert(sizeof v == sizeof(unsigned), "");
    unsigned bits;
    __builtin_memcpy(&bits, &v, sizeof bits);
    return bits;
}

}  // namespace hearth

inline int __dp4a(int a, int b, int c) {
    return static_cast<int>(hearth::dot_product<signed char, signed char>(hearth::packed(a), hearth::packed(b), hearth::packed(c)));
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    return hearth::dot_product<unsigned char, unsigned char>(a, b, c);
}
inline int __dp4a(char4 a, char4 b, int c) {
    return static_cast<int>(hearth::dot_product<signed char, signed char>(hearth::packed(a), hearth::packed(b), hearth::packed(c)));
}
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
    return hearth::dot_product<unsigned char, unsigned char>(hearth::packed(a), hearth::packed(b), c);
}
#define HEARTH_DP2A(name, from) \
    inline int name(int a, int b, int c) { \
        return static_cast<int>(hearth::dot_product<short, signed char>(hearth::packed(a), hearth::packed(b), hearth::packed(c), from)); \
    } \
    inline unsigned name(unsigned a, unsigned b, unsigned c) { \
        return hearth::dot_product<unsigned short, unsigned char>(a, b, c, from); \
    } \
    inline int name(short2 a, char4 b, int c) { \
        return static_cast<int>(hearth::dot_product<short, signed char>(hearth::packed(a), hearth::packed(b), hearth::packed(c), from)); \
    } \
    inline unsigned name(ushort2 a, uchar4 b, unsigned c) { \
        return hearth::dot_product<unsigned short, unsigned char>(hearth::packed(a), hearth::packed(b), c, from); \
    }
HEARTH_DP2A(__dp2a_lo, 0)
HEARTH_DP2A(__dp2a_hi, 2)
#undef HEARTH_DP2A
