// Arithmetic and comparisons that half and bfloat16 have in common. Included once for each type, so it has no guard.
// The includer defines HEARTH_N and HEARTH_N2 (the types), HEARTH_N_RAW (the bits), HEARTH_N_OF (rounds a float or a
// double to nearest), HEARTH_N_OPERATORS and HEARTH_N2_OPERATORS (true if the program uses operators), and in namespace
// hearth `wide`, `product` and `fused` for HEARTH_N.

namespace hearth {

inline HEARTH_N from_bits(unsigned bits, HEARTH_N *) { return HEARTH_N(HEARTH_N_RAW{static_cast<unsigned short>(bits)}); }
inline unsigned short bits_from(HEARTH_N v) { return static_cast<HEARTH_N_RAW>(v).x; }
inline bool is_nan(HEARTH_N v) { return wide(v) != wide(v); }
// NaN becomes zero.
inline HEARTH_N saturated(HEARTH_N v) { return HEARTH_N_OF(__saturatef(wide(v))); }
// The bits as an integer with the order of the numbers, minus zero before zero.
inline short order_of(HEARTH_N v) {
    const short bits = static_cast<short>(bits_from(v));
    return static_cast<short>(bits ^ ((bits >> 15) & 0x7fff));
}

}  // namespace hearth
#define HEARTH_N_BITS(bits) hearth::from_bits(bits, static_cast<HEARTH_N *>(nullptr))

// --- arithmetic
#define HEARTH_BINARY(name, name2, expression) \
    inline HEARTH_N name(HEARTH_N a, HEARTH_N b) { return expression; } \
    inline HEARTH_N2 name2(HEARTH_N2 a, HEARTH_N2 b) { return HEARTH_N2(name(a.x, b.x), name(a.y, b.y)); }
#define HEARTH_TERNARY(name, name2, expression) \
    inline HEARTH_N name(HEARTH_N a, HEARTH_N b, HEARTH_N c) { return expression; } \
    inline HEARTH_N2 name2(HEARTH_N2 a, HEARTH_N2 b, HEARTH_N2 c) { \
        return HEARTH_N2(name(a.x, b.x, c.x), name(a.y, b.y, c.y)); \
    }
HEARTH_BINARY(__hadd, __hadd2, HEARTH_N_OF(hearth::wide(a) + hearth::wide(b)))
HEARTH_BINARY(__hsub, __hsub2, HEARTH_N_OF(hearth::wide(a) - hearth::wide(b)))
HEARTH_BINARY(__hmul, __hmul2, hearth::product(a, b))
HEARTH_BINARY(__hdiv, __h2div, HEARTH_N_OF(hearth::wide(a) / hearth::wide(b)))
HEARTH_BINARY(__hadd_rn, __hadd2_rn, __hadd(a, b))
HEARTH_BINARY(__hsub_rn, __hsub2_rn, __hsub(a, b))
HEARTH_BINARY(__hmul_rn, __hmul2_rn, __hmul(a, b))
HEARTH_BINARY(__hadd_sat, __hadd2_sat, hearth::saturated(__hadd(a, b)))
HEARTH_BINARY(__hsub_sat, __hsub2_sat, hearth::saturated(__hsub(a, b)))
HEARTH_BINARY(__hmul_sat, __hmul2_sat, hearth::saturated(__hmul(a, b)))
HEARTH_BINARY(__hmax_nan, __hmax2_nan,
              hearth::is_nan(a) || hearth::is_nan(b) ? HEARTH_N_BITS(0x7fff)
                                                     : hearth::order_of(a) < hearth::order_of(b) ? b : a)
HEARTH_BINARY(__hmin_nan, __hmin2_nan,
              hearth::is_nan(a) || hearth::is_nan(b) ? HEARTH_N_BITS(0x7fff)
                                                     : hearth::order_of(b) < hearth::order_of(a) ? b : a)
// If one operand is a NaN, the result is the other one.
HEARTH_BINARY(__hmax, __hmax2, !hearth::is_nan(a) && hearth::is_nan(b) ? a : !hearth::is_nan(b) && hearth::is_nan(a) ? b : __hmax_nan(a, b))
HEARTH_BINARY(__hmin, __hmin2, !hearth::is_nan(a) && hearth::is_nan(b) ? a : !hearth::is_nan(b) && hearth::is_nan(a) ? b : __hmin_nan(a, b))
HEARTH_TERNARY(__hfma, __hfma2, hearth::fused(a, b, c))
HEARTH_TERNARY(__hfma_sat, __hfma2_sat, hearth::saturated(__hfma(a, b, c)))
HEARTH_TERNARY(__hfma_relu, __hfma2_relu, __hmax_nan(__hfma(a, b, c), HEARTH_N_BITS(0)))
#undef HEARTH_BINARY
#undef HEARTH_TERNARY
inline HEARTH_N __hneg(HEARTH_N a) { return HEARTH_N_BITS(hearth::bits_from(a) ^ 0x8000u); }
inline HEARTH_N __habs(HEARTH_N a) { return HEARTH_N_BITS(hearth::bits_from(a) & 0x7fffu); }
inline HEARTH_N2 __hneg2(HEARTH_N2 a) { return HEARTH_N2(__hneg(a.x), __hneg(a.y)); }
inline HEARTH_N2 __habs2(HEARTH_N2 a) { return HEARTH_N2(__habs(a.x), __habs(a.y)); }
// a * b + c of complex numbers, in the order of operations that CUDA documents.
inline HEARTH_N2 __hcmadd(HEARTH_N2 a, HEARTH_N2 b, HEARTH_N2 c) {
    return HEARTH_N2(__hfma(__hneg(a.y), b.y, __hfma(a.x, b.x, c.x)), __hfma(a.y, b.x, __hfma(a.x, b.y, c.y)));
}
inline bool __hisnan(HEARTH_N a) { return hearth::is_nan(a); }
inline int __hisinf(HEARTH_N a) {
    const float f = hearth::wide(a);
    return f == __builtin_inff() ? 1 : f == -__builtin_inff() ? -1 : 0;
}
inline HEARTH_N2 __hisnan2(HEARTH_N2 a) {
    return HEARTH_N2(HEARTH_N_OF(__hisnan(a.x) ? 1.0f : 0.0f), HEARTH_N_OF(__hisnan(a.y) ? 1.0f : 0.0f));
}

// --- comparisons: if an operand is a NaN, false for names without u, true for names with u
#define HEARTH_COMPARE(name, expression) \
    inline bool __h##name(HEARTH_N a, HEARTH_N b) { \
        const float x = hearth::wide(a), y = hearth::wide(b); \
        return expression; \
    } \
    inline HEARTH_N2 __h##name##2(HEARTH_N2 a, HEARTH_N2 b) { \
        return HEARTH_N2(HEARTH_N_OF(__h##name(a.x, b.x) ? 1.0f : 0.0f), HEARTH_N_OF(__h##name(a.y, b.y) ? 1.0f : 0.0f)); \
    } \
    inline bool __hb##name##2(HEARTH_N2 a, HEARTH_N2 b) { return __h##name(a.x, b.x) && __h##name(a.y, b.y); } \
    inline unsigned __h##name##2_mask(HEARTH_N2 a, HEARTH_N2 b) { \
        return (__h##name(a.x, b.x) ? 0xffffu : 0u) | (__h##name(a.y, b.y) ? 0xffff0000u : 0u); \
    }
HEARTH_COMPARE(eq, x == y)
HEARTH_COMPARE(ne, x < y || x > y)
HEARTH_COMPARE(lt, x < y)
HEARTH_COMPARE(le, x <= y)
HEARTH_COMPARE(gt, x > y)
HEARTH_COMPARE(ge, x >= y)
HEARTH_COMPARE(equ, !(x < y || x > y))
HEARTH_COMPARE(neu, !(x == y))
HEARTH_COMPARE(ltu, !(x >= y))
HEARTH_COMPARE(leu, !(x > y))
HEARTH_COMPARE(gtu, !(x <= y))
HEARTH_COMPARE(geu, !(x < y))
#undef HEARTH_COMPARE

// --- operators
#if HEARTH_N_OPERATORS
#define HEARTH_OPERATOR(op, name) \
    inline HEARTH_N operator op(const HEARTH_N &a, const HEARTH_N &b) { return name(a, b); } \
    inline HEARTH_N &operator op##=(HEARTH_N &a, const HEARTH_N &b) { return a = name(a, b); }
HEARTH_OPERATOR(+, __hadd)
HEARTH_OPERATOR(-, __hsub)
HEARTH_OPERATOR(*, __hmul)
HEARTH_OPERATOR(/, __hdiv)
#undef HEARTH_OPERATOR
#define HEARTH_OPERATOR(op, name) \
    inline bool operator op(const HEARTH_N &a, const HEARTH_N &b) { return name(a, b); }
HEARTH_OPERATOR(==, __heq)
HEARTH_OPERATOR(!=, __hneu)
HEARTH_OPERATOR(<, __hlt)
HEARTH_OPERATOR(<=, __hle)
HEARTH_OPERATOR(>, __hgt)
HEARTH_OPERATOR(>=, __hge)
#undef HEARTH_OPERATOR
inline HEARTH_N operator+(const HEARTH_N &a) { return a; }
inline HEARTH_N operator-(const HEARTH_N &a) { return __hneg(a); }
inline HEARTH_N &operator++(HEARTH_N &a) { return a = __hadd(a, HEARTH_N_OF(1.0f)); }
inline HEARTH_N &operator--(HEARTH_N &a) { return a = __hsub(a, HEARTH_N_OF(1.0f)); }
inline HEARTH_N operator++(HEARTH_N &a, int) {
    const HEARTH_N before = a;
    ++a;
    return before;
}
inline HEARTH_N operator--(HEARTH_N &a, int) {
    const HEARTH_N before = a;
    --a;
    return before;
}
// The types convert both ways, so an operator with another arithmetic type needs an exact match or it is ambiguous.
// With an integer the result is narrow; with float or double it has that type, as by the usual conversions.
#define HEARTH_WITH(T, R) template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0> inline R
#define HEARTH_MIXED(op, name) \
    HEARTH_WITH(T, auto) operator op(const HEARTH_N &a, T b) { \
        if constexpr (std::is_integral_v<T>) return name(a, HEARTH_N_OF(static_cast<float>(b))); \
        else return hearth::wide(a) op b; \
    } \
    HEARTH_WITH(T, auto) operator op(T a, const HEARTH_N &b) { \
        if constexpr (std::is_integral_v<T>) return name(HEARTH_N_OF(static_cast<float>(a)), b); \
        else return a op hearth::wide(b); \
    } \
    HEARTH_WITH(T, HEARTH_N &) operator op##=(HEARTH_N &a, T b) { \
        if constexpr (std::is_integral_v<T>) return a = a op b; \
        else return a = HEARTH_N_OF(a op b); \
    }
HEARTH_MIXED(+, __hadd)
HEARTH_MIXED(-, __hsub)
HEARTH_MIXED(*, __hmul)
HEARTH_MIXED(/, __hdiv)
#undef HEARTH_MIXED
#define HEARTH_MIXED(op) \
    HEARTH_WITH(T, bool) operator op(const HEARTH_N &a, T b) { return hearth::wide(a) op b; } \
    HEARTH_WITH(T, bool) operator op(T a, const HEARTH_N &b) { return a op hearth::wide(b); }
HEARTH_MIXED(==)
HEARTH_MIXED(!=)
HEARTH_MIXED(<)
HEARTH_MIXED(<=)
HEARTH_MIXED(>)
HEARTH_MIXED(>=)
#undef HEARTH_MIXED
#undef HEARTH_WITH
#endif

#if HEARTH_N2_OPERATORS
#define HEARTH_OPERATOR(op, name) \
    inline HEARTH_N2 operator op(const HEARTH_N2 &a, const HEARTH_N2 &b) { return name(a, b); } \
    inline HEARTH_N2 &operator op##=(HEARTH_N2 &a, const HEARTH_N2 &b) { return a = name(a, b); }
HEARTH_OPERATOR(+, __hadd2)
HEARTH_OPERATOR(-, __hsub2)
HEARTH_OPERATOR(*, __hmul2)
HEARTH_OPERATOR(/, __h2div)
#undef HEARTH_OPERATOR
#define HEARTH_OPERATOR(op, name) \
    inline bool operator op(const HEARTH_N2 &a, const HEARTH_N2 &b) { return name(a, b); }
HEARTH_OPERATOR(==, __hbeq2)
HEARTH_OPERATOR(!=, __hbneu2)
HEARTH_OPERATOR(<, __hblt2)
HEARTH_OPERATOR(<=, __hble2)
HEARTH_OPERATOR(>, __hbgt2)
HEARTH_OPERATOR(>=, __hbge2)
#undef HEARTH_OPERATOR
inline HEARTH_N2 operator+(const HEARTH_N2 &a) { return a; }
inline HEARTH_N2 operator-(const HEARTH_N2 &a) { return __hneg2(a); }
inline HEARTH_N2 &operator++(HEARTH_N2 &a) { return a = __hadd2(a, HEARTH_N2(HEARTH_N_OF(1.0f), HEARTH_N_OF(1.0f))); }
inline HEARTH_N2 &operator--(HEARTH_N2 &a) { return a = __hsub2(a, HEARTH_N2(HEARTH_N_OF(1.0f), HEARTH_N_OF(1.0f))); }
inline HEARTH_N2 operator++(HEARTH_N2 &a, int) {
    const HEARTH_N2 before = a;
    ++a;
    return before;
}
inline HEARTH_N2 operator--(HEARTH_N2 &a, int) {
    const HEARTH_N2 before = a;
    --a;
    return before;
}
#endif
