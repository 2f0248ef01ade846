// What half and bfloat16 have in common, for the types HEARTH_NARROW and HEARTH_NARROW2. Included once for each, so it
// has no guard.

#define HEARTH_N HEARTH_NARROW
#define HEARTH_N2 HEARTH_NARROW2

// --- operators
#define HEARTH_OPERATOR(op) \
    inline HEARTH_N operator op(const HEARTH_N &a, const HEARTH_N &b) { \
        return HEARTH_N(static_cast<float>(a) op static_cast<float>(b)); \
    } \
    inline HEARTH_N &operator op##=(HEARTH_N &a, const HEARTH_N &b) { return a = a op b; } \
    inline HEARTH_N2 operator op(const HEARTH_N2 &a, const HEARTH_N2 &b) { return HEARTH_N2(a.x op b.x, a.y op b.y); } \
    inline HEARTH_N2 &operator op##=(HEARTH_N2 &a, const HEARTH_N2 &b) { return a = a op b; }
HEARTH_OPERATOR(+)
HEARTH_OPERATOR(-)
HEARTH_OPERATOR(*)
HEARTH_OPERATOR(/)
#undef HEARTH_OPERATOR
// The types convert both ways, so an operator with another arithmetic type needs an exact match or it is ambiguous.
// With an integer the result is narrow; with float or double it is that, as the usual conversions would have it.
#define HEARTH_WITH(T, R) template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0> inline R
#define HEARTH_MIXED(op) \
    HEARTH_WITH(T, auto) operator op(const HEARTH_N &a, T b) { \
        if constexpr (std::is_integral_v<T>) return a op HEARTH_N(static_cast<float>(b)); \
        else return static_cast<float>(a) op b; \
    } \
    HEARTH_WITH(T, auto) operator op(T a, const HEARTH_N &b) { \
        if constexpr (std::is_integral_v<T>) return HEARTH_N(static_cast<float>(a)) op b; \
        else return a op static_cast<float>(b); \
    } \
    HEARTH_WITH(T, HEARTH_N &) operator op##=(HEARTH_N &a, T b) { return a = HEARTH_N(a op b); }
HEARTH_MIXED(+)
HEARTH_MIXED(-)
HEARTH_MIXED(*)
HEARTH_MIXED(/)
#undef HEARTH_MIXED
#define HEARTH_MIXED(op) \
    HEARTH_WITH(T, bool) operator op(const HEARTH_N &a, T b) { return static_cast<float>(a) op b; } \
    HEARTH_WITH(T, bool) operator op(T a, const HEARTH_N &b) { return a op static_cast<float>(b); }
HEARTH_MIXED(==)
HEARTH_MIXED(!=)
HEARTH_MIXED(<)
HEARTH_MIXED(<=)
HEARTH_MIXED(>)
HEARTH_MIXED(>=)
#undef HEARTH_MIXED
#undef HEARTH_WITH
inline HEARTH_N operator+(const HEARTH_N &a) { return a; }
inline HEARTH_N operator-(const HEARTH_N &a) {
    const HEARTH_NARROW_RAW raw = a;
    return HEARTH_N(HEARTH_NARROW_RAW{static_cast<unsigned short>(raw.x ^ 0x8000)});
}
inline HEARTH_N2 operator-(const HEARTH_N2 &a) { return HEARTH_N2(-a.x, -a.y); }
inline HEARTH_N &operator++(HEARTH_N &a) { return a = a + HEARTH_N(1.0f); }
inline HEARTH_N &operator--(HEARTH_N &a) { return a = a - HEARTH_N(1.0f); }
#define HEARTH_COMPARE(op, name) \
    inline bool operator op(const HEARTH_N &a, const HEARTH_N &b) { return static_cast<float>(a) op static_cast<float>(b); } \
    inline bool operator op(const HEARTH_N2 &a, const HEARTH_N2 &b) { return a.x op b.x && a.y op b.y; } \
    inline bool __h##name(HEARTH_N a, HEARTH_N b) { return a op b; } \
    inline HEARTH_N2 __h##name##2(HEARTH_N2 a, HEARTH_N2 b) { \
        return HEARTH_N2(HEARTH_N(a.x op b.x ? 1.0f : 0.0f), HEARTH_N(a.y op b.y ? 1.0f : 0.0f)); \
    } \
    inline bool __hb##name##2(HEARTH_N2 a, HEARTH_N2 b) { return a.x op b.x && a.y op b.y; }
HEARTH_COMPARE(==, eq)
HEARTH_COMPARE(!=, ne)
HEARTH_COMPARE(<, lt)
HEARTH_COMPARE(<=, le)
HEARTH_COMPARE(>, gt)
HEARTH_COMPARE(>=, ge)
#undef HEARTH_COMPARE

// --- arithmetic functions
#define HEARTH_BINARY(name, expression) \
    inline HEARTH_N name(HEARTH_N a, HEARTH_N b) { return expression; }
#define HEARTH_BINARY2(name, one) \
    inline HEARTH_N2 name(HEARTH_N2 a, HEARTH_N2 b) { return HEARTH_N2(one(a.x, b.x), one(a.y, b.y)); }
namespace hearth {
inline HEARTH_N saturated(HEARTH_N v) { return HEARTH_N(__saturatef(static_cast<float>(v))); }
}  // namespace hearth
HEARTH_BINARY(__hadd, a + b)
HEARTH_BINARY(__hsub, a - b)
HEARTH_BINARY(__hmul, a * b)
HEARTH_BINARY(__hdiv, a / b)
HEARTH_BINARY(__hadd_rn, a + b)
HEARTH_BINARY(__hsub_rn, a - b)
HEARTH_BINARY(__hmul_rn, a * b)
HEARTH_BINARY(__hadd_sat, hearth::saturated(a + b))
HEARTH_BINARY(__hsub_sat, hearth::saturated(a - b))
HEARTH_BINARY(__hmul_sat, hearth::saturated(a * b))
HEARTH_BINARY(__hmax, HEARTH_N(::fmaxf(a, b)))
HEARTH_BINARY(__hmin, HEARTH_N(::fminf(a, b)))
HEARTH_BINARY2(__hadd2, __hadd)
HEARTH_BINARY2(__hsub2, __hsub)
HEARTH_BINARY2(__hmul2, __hmul)
HEARTH_BINARY2(__h2div, __hdiv)
HEARTH_BINARY2(__hadd2_rn, __hadd)
HEARTH_BINARY2(__hsub2_rn, __hsub)
HEARTH_BINARY2(__hmul2_rn, __hmul)
HEARTH_BINARY2(__hmax2, __hmax)
HEARTH_BINARY2(__hmin2, __hmin)
#undef HEARTH_BINARY
#undef HEARTH_BINARY2
inline HEARTH_N __hneg(HEARTH_N a) { return -a; }
inline HEARTH_N __habs(HEARTH_N a) {
    const HEARTH_NARROW_RAW raw = a;
    return HEARTH_N(HEARTH_NARROW_RAW{static_cast<unsigned short>(raw.x & 0x7fff)});
}
inline HEARTH_N2 __hneg2(HEARTH_N2 a) { return -a; }
inline HEARTH_N2 __habs2(HEARTH_N2 a) { return HEARTH_N2(__habs(a.x), __habs(a.y)); }
// The product and the sum are exact enough in double that only the last rounding counts.
inline HEARTH_N __hfma(HEARTH_N a, HEARTH_N b, HEARTH_N c) {
    return HEARTH_N(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}
inline HEARTH_N __hfma_sat(HEARTH_N a, HEARTH_N b, HEARTH_N c) { return hearth::saturated(__hfma(a, b, c)); }
inline HEARTH_N __hfma_relu(HEARTH_N a, HEARTH_N b, HEARTH_N c) { return __hmax(__hfma(a, b, c), HEARTH_N(0.0f)); }
inline HEARTH_N2 __hfma2(HEARTH_N2 a, HEARTH_N2 b, HEARTH_N2 c) {
    return HEARTH_N2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
inline bool __hisnan(HEARTH_N a) { return static_cast<float>(a) != static_cast<float>(a); }
inline int __hisinf(HEARTH_N a) {
    const float f = a;
    return f == __builtin_inff() ? 1 : f == -__builtin_inff() ? -1 : 0;
}
inline HEARTH_N2 __hisnan2(HEARTH_N2 a) {
    return HEARTH_N2(HEARTH_N(__hisnan(a.x) ? 1.0f : 0.0f), HEARTH_N(__hisnan(a.y) ? 1.0f : 0.0f));
}

// --- math functions: h... on one, h2... on two
#define HEARTH_MATH(name, expression) \
    inline HEARTH_N h##name(HEARTH_N v) { \
        const float x = v; \
        return HEARTH_N(expression); \
    } \
    inline HEARTH_N2 h2##name(HEARTH_N2 v) { return HEARTH_N2(h##name(v.x), h##name(v.y)); }
HEARTH_MATH(sqrt, ::sqrtf(x))
HEARTH_MATH(rsqrt, 1.0 / ::sqrt(static_cast<double>(x)))
HEARTH_MATH(rcp, 1.0f / x)
HEARTH_MATH(exp, ::expf(x))
HEARTH_MATH(exp2, ::exp2f(x))
HEARTH_MATH(exp10, ::pow(10.0, static_cast<double>(x)))
HEARTH_MATH(log, ::logf(x))
HEARTH_MATH(log2, ::log2f(x))
HEARTH_MATH(log10, ::log10f(x))
HEARTH_MATH(sin, ::sinf(x))
HEARTH_MATH(cos, ::cosf(x))
HEARTH_MATH(tanh, ::tanhf(x))
HEARTH_MATH(floor, ::floorf(x))
HEARTH_MATH(ceil, ::ceilf(x))
HEARTH_MATH(trunc, ::truncf(x))
HEARTH_MATH(rint, ::rintf(x))
#undef HEARTH_MATH

#if defined(HEARTH_F16)
inline HEARTH_N __low2half(HEARTH_N2 v) { return v.x; }
inline HEARTH_N __high2half(HEARTH_N2 v) { return v.y; }
inline HEARTH_N2 __low2half2(HEARTH_N2 v) { return HEARTH_N2(v.x, v.x); }
inline HEARTH_N2 __high2half2(HEARTH_N2 v) { return HEARTH_N2(v.y, v.y); }
#else
inline HEARTH_N __low2bfloat16(HEARTH_N2 v) { return v.x; }
inline HEARTH_N __high2bfloat16(HEARTH_N2 v) { return v.y; }
inline HEARTH_N2 __low2bfloat162(HEARTH_N2 v) { return HEARTH_N2(v.x, v.x); }
inline HEARTH_N2 __high2bfloat162(HEARTH_N2 v) { return HEARTH_N2(v.y, v.y); }
#endif
inline float __low2float(HEARTH_N2 v) { return v.x; }
inline float __high2float(HEARTH_N2 v) { return v.y; }
inline HEARTH_N2 __lowhigh2highlow(HEARTH_N2 v) { return HEARTH_N2(v.y, v.x); }
inline HEARTH_N2 __lows2half2(HEARTH_N2 a, HEARTH_N2 b) { return HEARTH_N2(a.x, b.x); }
inline HEARTH_N2 __highs2half2(HEARTH_N2 a, HEARTH_N2 b) { return HEARTH_N2(a.y, b.y); }

// --- atomics
inline HEARTH_N atomicAdd(HEARTH_N *p, HEARTH_N v) {
    return hearth::atomic_update<HEARTH_N, unsigned short>(p, [v](HEARTH_N old) { return old + v; });
}
inline HEARTH_N2 atomicAdd(HEARTH_N2 *p, HEARTH_N2 v) {
    return hearth::atomic_update<HEARTH_N2, unsigned>(p, [v](HEARTH_N2 old) { return old + v; });
}

#undef HEARTH_N
#undef HEARTH_N2
