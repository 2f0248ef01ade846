// Math functions, conversions to and from integers, memory accesses and atomics that half and bfloat16 have in common.
// Included once for each type after narrow_float.h, so it has no guard. The includer further defines
// HEARTH_N_TO(integer_rounding) and HEARTH_N_FROM(integer, rounding) (the names of conversions), HEARTH_N_ENCODED(v, way)
// (rounds an integer), HEARTH_N_EXPONENT and HEARTH_N_MANTISSA (the widths of the fields).

// --- math functions: h... on one, h2... on two
#define HEARTH_MATH(name, expression) \
    inline HEARTH_N h##name(HEARTH_N v) { \
        const float x = hearth::wide(v); \
        return HEARTH_N_OF(expression); \
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
HEARTH_MATH(tanh_approx, ::tanhf(x))
HEARTH_MATH(floor, ::floorf(x))
HEARTH_MATH(ceil, ::ceilf(x))
HEARTH_MATH(trunc, ::truncf(x))
HEARTH_MATH(rint, ::rintf(x))
#undef HEARTH_MATH

// --- conversions to integers saturate, and a NaN becomes zero (the top bit alone with 64 bits)
#define HEARTH_TO(kind, T, way) \
    inline T HEARTH_N_TO(kind##_##way)(HEARTH_N h) { \
        return hearth::saturating<T>(hearth::rounded<hearth::Rounding::way>(hearth::wide(h))); \
    }
#define HEARTH_BOTH_WAYS(kind, T, way) \
    HEARTH_TO(kind, T, way) \
    inline HEARTH_N HEARTH_N_FROM(kind, way)(T v) { return HEARTH_N_ENCODED(v, hearth::Rounding::way); }
#define HEARTH_INTEGER(kind, T) \
    HEARTH_BOTH_WAYS(kind, T, rn) \
    HEARTH_BOTH_WAYS(kind, T, rz) \
    HEARTH_BOTH_WAYS(kind, T, ru) \
    HEARTH_BOTH_WAYS(kind, T, rd)
HEARTH_TO(char, signed char, rz)
HEARTH_TO(uchar, unsigned char, rz)
HEARTH_INTEGER(short, short)
HEARTH_INTEGER(ushort, unsigned short)
HEARTH_INTEGER(int, int)
HEARTH_INTEGER(uint, unsigned)
HEARTH_INTEGER(ll, long long)
HEARTH_INTEGER(ull, unsigned long long)
#undef HEARTH_INTEGER
#undef HEARTH_BOTH_WAYS
#undef HEARTH_TO

// --- two in one
inline float __low2float(HEARTH_N2 v) { return hearth::wide(v.x); }
inline float __high2float(HEARTH_N2 v) { return hearth::wide(v.y); }
inline HEARTH_N2 __lowhigh2highlow(HEARTH_N2 v) { return HEARTH_N2(v.y, v.x); }

// --- loads and stores with a cache hint, by overload: the general ones deduce the type from the pointer and the value
#define HEARTH_LOAD(name) \
    inline HEARTH_N name(const HEARTH_N *p) { return *p; } \
    inline HEARTH_N2 name(const HEARTH_N2 *p) { return *p; }
#define HEARTH_STORE(name) \
    inline void name(HEARTH_N *p, HEARTH_N v) { *p = v; } \
    inline void name(HEARTH_N2 *p, HEARTH_N2 v) { *p = v; }
HEARTH_LOAD(__ldg)
HEARTH_LOAD(__ldcg)
HEARTH_LOAD(__ldca)
HEARTH_LOAD(__ldcs)
HEARTH_LOAD(__ldlu)
HEARTH_STORE(__stwb)
HEARTH_STORE(__stcg)
HEARTH_STORE(__stcs)
HEARTH_STORE(__stwt)
#undef HEARTH_LOAD
#undef HEARTH_STORE
inline HEARTH_N __ldcv(const HEARTH_N *p) { return HEARTH_N_BITS(*reinterpret_cast<const volatile unsigned short *>(p)); }
inline HEARTH_N2 __ldcv(const HEARTH_N2 *p) {
    const unsigned both = *reinterpret_cast<const volatile unsigned *>(p);
    return HEARTH_N2(HEARTH_N_BITS(both), HEARTH_N_BITS(both >> 16));
}

// --- atomics
inline HEARTH_N atomicAdd(HEARTH_N *p, HEARTH_N v) {
    return hearth::atomic_update<HEARTH_N, unsigned short>(p, [v](HEARTH_N old) { return __hadd(old, v); });
}
inline HEARTH_N2 atomicAdd(HEARTH_N2 *p, HEARTH_N2 v) {
    return hearth::atomic_update<HEARTH_N2, unsigned>(p, [v](HEARTH_N2 old) { return __hadd2(old, v); });
}

// --- limits, for cuda::std::numeric_limits too
template <>
class std::numeric_limits<HEARTH_N> {
    static constexpr int bias = (1 << (HEARTH_N_EXPONENT - 1)) - 1;
    static constexpr unsigned infinity_bits = ((1u << HEARTH_N_EXPONENT) - 1) << HEARTH_N_MANTISSA;
    static constexpr HEARTH_N of(unsigned bits) { return HEARTH_N(HEARTH_N_RAW{static_cast<unsigned short>(bits)}); }

public:
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
    static constexpr bool has_infinity = true, has_quiet_NaN = true, has_signaling_NaN = true, has_denorm_loss = false;
    static constexpr bool is_iec559 = true, is_bounded = true, is_modulo = false, traps = false, tinyness_before = false;
    static constexpr float_denorm_style has_denorm = denorm_present;
    static constexpr float_round_style round_style = round_to_nearest;
    static constexpr int radix = 2, digits = HEARTH_N_MANTISSA + 1;
    static constexpr int digits10 = HEARTH_N_MANTISSA * 301 / 1000, max_digits10 = 2 + digits * 301 / 1000;
    static constexpr int max_exponent = bias + 1, min_exponent = 2 - bias;
    static constexpr int max_exponent10 = bias * 301 / 1000, min_exponent10 = -((bias - 1) * 301 / 1000);
    static constexpr HEARTH_N min() { return of(1u << HEARTH_N_MANTISSA); }
    static constexpr HEARTH_N max() { return of(infinity_bits - 1); }
    static constexpr HEARTH_N lowest() { return of(0x8000u | (infinity_bits - 1)); }
    static constexpr HEARTH_N epsilon() { return of(unsigned(bias - HEARTH_N_MANTISSA) << HEARTH_N_MANTISSA); }
    static constexpr HEARTH_N round_error() { return of(unsigned(bias - 1) << HEARTH_N_MANTISSA); }
    static constexpr HEARTH_N infinity() { return of(infinity_bits); }
    static constexpr HEARTH_N quiet_NaN() { return of(infinity_bits | 1u << (HEARTH_N_MANTISSA - 1)); }
    static constexpr HEARTH_N signaling_NaN() { return of(infinity_bits | 1u << (HEARTH_N_MANTISSA - 2)); }
    static constexpr HEARTH_N denorm_min() { return of(1); }
};
