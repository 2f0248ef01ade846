// Complex numbers in C's manner, https://docs.nvidia.com/cuda/: pairs of floats or doubles and functions on them.
// Products, quotients and moduli follow the order of operations that CUDA documents, scaled against overflow.
#pragma once
#include "hearth/macros_begin.h"

#define HEARTH_COMPLEX(T, Vector, Complex, f, square_root, absolute) \
    typedef Vector Complex; \
    inline T cuCreal##f(Complex x) { return x.x; } \
    inline T cuCimag##f(Complex x) { return x.y; } \
    inline Complex make_##Complex(T re, T im) { return Complex{re, im}; } \
    inline Complex cuConj##f(Complex x) { return Complex{x.x, -x.y}; } \
    inline Complex cuCadd##f(Complex x, Complex y) { return Complex{x.x + y.x, x.y + y.y}; } \
    inline Complex cuCsub##f(Complex x, Complex y) { return Complex{x.x - y.x, x.y - y.y}; } \
    inline Complex cuCmul##f(Complex x, Complex y) { return Complex{x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x}; } \
    inline Complex cuCdiv##f(Complex x, Complex y) { \
        const T scale = T(1) / (absolute(y.x) + absolute(y.y)); \
        const T a = x.x * scale, b = x.y * scale, c = y.x * scale, d = y.y * scale; \
        const T norm = T(1) / (c * c + d * d); \
        return Complex{(a * c + b * d) * norm, (b * c - a * d) * norm}; \
    } \
    inline T cuCabs##f(Complex x) { \
        const T a = absolute(x.x), b = absolute(x.y); \
        const T large = a > b ? a : b, small = a > b ? b : a; \
        if (large == 0 || large > std::numeric_limits<T>::max() || small > std::numeric_limits<T>::max()) return large + small; \
        const T ratio = small / large; \
        return large * square_root(T(1) + ratio * ratio); \
    } \
    inline Complex cuCfma##f(Complex x, Complex y, Complex d) { \
        return Complex{(x.x * y.x + d.x) - x.y * y.y, (x.x * y.y + d.y) + x.y * y.x}; \
    }
HEARTH_COMPLEX(float, float2, cuFloatComplex, f, __builtin_sqrtf, __builtin_fabsf)
HEARTH_COMPLEX(double, double2, cuDoubleComplex, , __builtin_sqrt, __builtin_fabs)
#undef HEARTH_COMPLEX

typedef cuFloatComplex cuComplex;
inline cuComplex make_cuComplex(float re, float im) { return cuComplex{re, im}; }
inline cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex c) { return cuDoubleComplex{c.x, c.y}; }
inline cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex c) {
    return cuFloatComplex{static_cast<float>(c.x), static_cast<float>(c.y)};
}
#include "hearth/macros_end.h"
