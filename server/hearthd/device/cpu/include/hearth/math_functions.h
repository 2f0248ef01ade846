// CUDA's math functions beyond the C library's, and the fast intrinsics, which here are exact.
// https://docs.nvidia.com/cuda/cuda-math-api/
#pragma once

// --- min and max: overloads, not templates, so that mixed signedness resolves as CUDA documents it
#define HEARTH_MIN_MAX(R, A, B) \
    inline constexpr R min(A a, B b) { return static_cast<R>(b) < static_cast<R>(a) ? static_cast<R>(b) : static_cast<R>(a); } \
    inline constexpr R max(A a, B b) { return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(b) : static_cast<R>(a); }
HEARTH_MIN_MAX(int, int, int)
HEARTH_MIN_MAX(unsigned, unsigned, unsigned)
HEARTH_MIN_MAX(unsigned, int, unsigned)
HEARTH_MIN_MAX(unsigned, unsigned, int)
HEARTH_MIN_MAX(long, long, long)
HEARTH_MIN_MAX(unsigned long, unsigned long, unsigned long)
HEARTH_MIN_MAX(unsigned long, long, unsigned long)
HEARTH_MIN_MAX(unsigned long, unsigned long, long)
HEARTH_MIN_MAX(long long, long long, long long)
HEARTH_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
HEARTH_MIN_MAX(unsigned long long, long long, unsigned long long)
HEARTH_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef HEARTH_MIN_MAX
// If one operand is a NaN, the result is the other one, as for fminf and fmaxf.
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }
inline double min(float a, double b) { return __builtin_fmin(a, b); }
inline double max(float a, double b) { return __builtin_fmax(a, b); }
inline double min(double a, float b) { return __builtin_fmin(a, b); }
inline double max(double a, float b) { return __builtin_fmax(a, b); }
inline constexpr unsigned umin(unsigned a, unsigned b) { return b < a ? b : a; }
inline constexpr unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
inline constexpr long long llmin(long long a, long long b) { return b < a ? b : a; }
inline constexpr long long llmax(long long a, long long b) { return a < b ? b : a; }
inline constexpr unsigned long long ullmin(unsigned long long a, unsigned long long b) { return b < a ? b : a; }
inline constexpr unsigned long long ullmax(unsigned long long a, unsigned long long b) { return a < b ? b : a; }

namespace hearth {

// Inverse of the normal distribution function: Acklam's rational approximation, then two steps of Halley's method
// against erfc, which bring it to the last bits of a double.
inline double normal_quantile(double p) {
    if (!(p > 0.0)) return p == 0.0 ? -__builtin_inf() : __builtin_nan("");
    if (!(p < 1.0)) return p == 1.0 ? __builtin_inf() : __builtin_nan("");
    constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
                            1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239e+00};
    constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                            6.680131188771972e+01, -1.328068155288572e+01};
    constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                            -2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00};
    constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
    double x;
    const double tail = p < 0.5 ? p : 1.0 - p;
    if (tail < 0.02425) {
        const double q = ::sqrt(-2.0 * ::log(tail));
        x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
            ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1.0);
        if (p > 0.5) x = -x;
    } else {
        const double q = p - 0.5, r = q * q;
        x = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
            (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1.0);
    }
    for (int i = 0; i < 2; ++i) {
        const double e = 0.5 * ::erfc(-x * M_SQRT1_2) - p;
        const double u = e * 2.50662827463100050242 * ::exp(x * x / 2.0);
        if (!(u - u == 0.0)) break;  // exp overflows this far in the tail: the approximation is the result
        x -= u / (1.0 + x * u / 2.0);
    }
    return x;
}

// exp(x^2) erfc(x); beyond 25 the asymptotic series, where erfc underflows.
inline double scaled_erfc(double x) {
    if (x < 25.0) return ::exp(x * x) * ::erfc(x);
    const double r = 1.0 / (x * x);
    return 0.56418958354775628695 / x * (1.0 - 0.5 * r * (1.0 - 1.5 * r * (1.0 - 2.5 * r)));
}

// sin(pi x) and cos(pi x) with the argument reduced exactly first.
inline double sin_pi(double x) {
    const double r = x - 2.0 * __builtin_rint(0.5 * x);
    const double n = __builtin_rint(2.0 * r);
    const double t = (r - 0.5 * n) * M_PI;
    switch (static_cast<int>(n) & 3) {
        case 0: return r == 0.0 ? __builtin_copysign(0.0, x) : ::sin(t);
        case 1: return ::cos(t);
        case 2: return t == 0.0 ? __builtin_copysign(0.0, x) : -::sin(t);
        default: return -::cos(t);
    }
}
inline double cos_pi(double x) {
    x = __builtin_fabs(x);
    const double r = x - 2.0 * __builtin_rint(0.5 * x);
    return sin_pi(r + 0.5);
}

// Modified Bessel functions by their power series and, for large arguments, their asymptotic series.
inline double bessel_i(int order, double x) {
    const double ax = __builtin_fabs(x);
    double sum, sign = order == 1 && x < 0 ? -1.0 : 1.0;
    if (ax < 30.0) {
        const double q = 0.25 * ax * ax;
        double term = order == 0 ? 1.0 : 0.5 * ax;
        sum = term;
        for (int k = 1; k < 200 && term > sum * 1e-17; ++k) sum += term *= q / (double(k) * (k + order));
    } else {
        const double mu = 4.0 * order * order;
        double term = 1.0;
        sum = 1.0;
        for (int k = 1; k < 30; ++k) {
            const double odd = 2.0 * k - 1.0;
            const double next = term * -(mu - odd * odd) / (8.0 * ax * k);
            if (__builtin_fabs(next) >= __builtin_fabs(term)) break;
            sum += term = next;
        }
        sum *= ::exp(ax) / ::sqrt(2.0 * M_PI * ax);
    }
    return sign * sum;
}

}  // namespace hearth

// A name without suffix takes a double or, by overload, a float, as in CUDA's C++ headers; a name with f takes a float.
#define HEARTH_UNARY(name, expression) \
    inline double name(double x) { return expression; } \
    inline float name(float x_) { const double x = x_; return static_cast<float>(expression); } \
    inline float name##f(float x_) { const double x = x_; return static_cast<float>(expression); }
HEARTH_UNARY(rcbrt, 1.0 / ::cbrt(x))
HEARTH_UNARY(sinpi, hearth::sin_pi(x))
HEARTH_UNARY(cospi, hearth::cos_pi(x))
HEARTH_UNARY(normcdf, 0.5 * ::erfc(-x * M_SQRT1_2))
HEARTH_UNARY(normcdfinv, hearth::normal_quantile(x))
HEARTH_UNARY(erfinv, hearth::normal_quantile(0.5 * (x + 1.0)) * M_SQRT1_2)
HEARTH_UNARY(erfcinv, -hearth::normal_quantile(0.5 * x) * M_SQRT1_2)
HEARTH_UNARY(erfcx, hearth::scaled_erfc(x))
HEARTH_UNARY(cyl_bessel_i0, hearth::bessel_i(0, x))
HEARTH_UNARY(cyl_bessel_i1, hearth::bessel_i(1, x))
#undef HEARTH_UNARY

inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline void sincospi(double x, double *s, double *c) { *s = hearth::sin_pi(x), *c = hearth::cos_pi(x); }
inline void sincospif(float x, float *s, float *c) { *s = sinpif(x), *c = cospif(x); }
inline double rhypot(double x, double y) { return 1.0 / ::hypot(x, y); }
inline float rhypotf(float x, float y) { return 1.0f / ::hypotf(x, y); }
inline double norm3d(double x, double y, double z) { return ::sqrt(x * x + y * y + z * z); }
inline float norm3df(float x, float y, float z) { return static_cast<float>(norm3d(x, y, z)); }
inline double norm4d(double x, double y, double z, double w) { return ::sqrt(x * x + y * y + z * z + w * w); }
inline float norm4df(float x, float y, float z, float w) { return static_cast<float>(norm4d(x, y, z, w)); }
inline double rnorm3d(double x, double y, double z) { return 1.0 / norm3d(x, y, z); }
inline float rnorm3df(float x, float y, float z) { return static_cast<float>(rnorm3d(x, y, z)); }
inline double rnorm4d(double x, double y, double z, double w) { return 1.0 / norm4d(x, y, z, w); }
inline float rnorm4df(float x, float y, float z, float w) { return static_cast<float>(rnorm4d(x, y, z, w)); }
inline double norm(int n, const double *p) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += p[i] * p[i];
    return ::sqrt(sum);
}
inline float normf(int n, const float *p) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += double(p[i]) * p[i];
    return static_cast<float>(::sqrt(sum));
}
inline double fdivide(double x, double y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }

// --- fast intrinsics
inline float __sinf(float x) { return ::sinf(x); }
inline float __cosf(float x) { return ::cosf(x); }
inline float __tanf(float x) { return ::tanf(x); }
inline float __tanhf(float x) { return ::tanhf(x); }
inline void __sincosf(float x, float *s, float *c) { *s = ::sinf(x), *c = ::cosf(x); }
inline float __expf(float x) { return ::expf(x); }
inline float __exp10f(float x) { return static_cast<float>(::pow(10.0, x)); }
inline float __logf(float x) { return ::logf(x); }
inline float __log2f(float x) { return ::log2f(x); }
inline float __log10f(float x) { return ::log10f(x); }
inline float __powf(float x, float y) { return ::powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / ::sqrt(double(x))); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float saturate(float x) { return __saturatef(x); }

// --- arithmetic with a named rounding. The processor rounds to nearest. The other three modes are derived from the
// exact error of the nearest result, by one step in the requested direction.
namespace hearth {
template <class T>
inline T step(T x, bool up) {
    return up ? std::nextafter(x, std::numeric_limits<T>::infinity()) : std::nextafter(x, -std::numeric_limits<T>::infinity());
}
enum class Towards { zero, up, down };
// `error` has the sign of (exact - nearest).
template <Towards way, class T>
inline T directed(T nearest, T error) {
    if (error == 0 || !(nearest - nearest == 0)) return nearest;
    if (way == Towards::up) return error > 0 ? step(nearest, true) : nearest;
    if (way == Towards::down) return error < 0 ? step(nearest, false) : nearest;
    if (nearest > 0) return error < 0 ? step(nearest, false) : nearest;
    return error > 0 ? step(nearest, true) : nearest;
}
template <class T>
__attribute__((noinline)) T add_error(T a, T b, T s) {  // Knuth's two-sum
    const T bb = s - a;
    return (a - (s - bb)) + (b - bb);
}
template <Towards way, class T> inline T add(T a, T b) { return directed<way>(a + b, add_error(a, b, a + b)); }
template <Towards way, class T> inline T multiply(T a, T b) { return directed<way>(a * b, std::fma(a, b, -(a * b))); }
template <Towards way, class T>
inline T divide(T a, T b) {
    const T q = a / b, rest = std::fma(-q, b, a);
    return directed<way>(q, b < 0 ? -rest : rest);
}
template <Towards way, class T>
inline T square_root(T a) {
    const T r = std::sqrt(a);
    return directed<way>(r, std::fma(-r, r, a));
}
}  // namespace hearth

#define HEARTH_ROUNDED(way, suffix) \
    inline float __fadd_##suffix(float a, float b) { return hearth::add<hearth::Towards::way>(a, b); } \
    inline float __fsub_##suffix(float a, float b) { return hearth::add<hearth::Towards::way>(a, -b); } \
    inline float __fmul_##suffix(float a, float b) { return hearth::multiply<hearth::Towards::way>(a, b); } \
    inline float __fdiv_##suffix(float a, float b) { return hearth::divide<hearth::Towards::way>(a, b); } \
    inline float __frcp_##suffix(float a) { return hearth::divide<hearth::Towards::way>(1.0f, a); } \
    inline float __fsqrt_##suffix(float a) { return hearth::square_root<hearth::Towards::way>(a); } \
    inline double __dadd_##suffix(double a, double b) { return hearth::add<hearth::Towards::way>(a, b); } \
    inline double __dsub_##suffix(double a, double b) { return hearth::add<hearth::Towards::way>(a, -b); } \
    inline double __dmul_##suffix(double a, double b) { return hearth::multiply<hearth::Towards::way>(a, b); } \
    inline double __ddiv_##suffix(double a, double b) { return hearth::divide<hearth::Towards::way>(a, b); } \
    inline double __drcp_##suffix(double a) { return hearth::divide<hearth::Towards::way>(1.0, a); } \
    inline double __dsqrt_##suffix(double a) { return hearth::square_root<hearth::Towards::way>(a); } \
    inline float __fmaf_##suffix(float a, float b, float c) { \
        const double exact = double(a) * b; \
        const double sum = exact + c; \
        const float nearest = static_cast<float>(sum); \
        const double rest = (sum - nearest) + hearth::add_error(exact, double(c), sum); \
        return hearth::directed<hearth::Towards::way>(nearest, static_cast<float>(rest > 0 ? 1 : rest < 0 ? -1 : 0)); \
    }
HEARTH_ROUNDED(zero, rz)
HEARTH_ROUNDED(up, ru)
HEARTH_ROUNDED(down, rd)
#undef HEARTH_ROUNDED

// The nearest forms must not be contracted into a fused multiply-add: programs use them to prevent that.
namespace hearth {
template <class T>
inline T unfused(T v) {
#if defined(__x86_64__)
    asm("" : "+x"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#else
    volatile T kept = v;
    v = kept;
#endif
    return v;
}
}  // namespace hearth
inline float __fadd_rn(float a, float b) { return hearth::unfused(hearth::unfused(a) + b); }
inline float __fsub_rn(float a, float b) { return hearth::unfused(hearth::unfused(a) - b); }
inline float __fmul_rn(float a, float b) { return hearth::unfused(a * b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fmaf_ieee_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return hearth::unfused(hearth::unfused(a) + b); }
inline double __dsub_rn(double a, double b) { return hearth::unfused(hearth::unfused(a) - b); }
inline double __dmul_rn(double a, double b) { return hearth::unfused(a * b); }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __drcp_rn(double a) { return 1.0 / a; }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
