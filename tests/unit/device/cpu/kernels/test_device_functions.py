"""Math, bits, atomics, vector types, half precision: each compared with NumPy or with its definition."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tests.support.cpu.kernels import Kernels

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <math_constants.h>
#include <cstdio>
#include <cuda/std/type_traits>

#define UNARY_FLOAT(X) X(sinf) X(cosf) X(tanf) X(expf) X(exp2f) X(exp10f) X(logf) X(log2f) X(log10f) X(log1pf) \
    X(expm1f) X(sqrtf) X(rsqrtf) X(cbrtf) X(rcbrtf) X(erff) X(erfcf) X(normcdff) X(tanhf) X(sinhf) X(coshf) X(atanf) \
    X(asinhf) X(floorf) X(ceilf) X(truncf) X(roundf) X(rintf) X(fabsf) X(lgammaf) X(tgammaf) X(sinpif) X(cospif) \
    X(__expf) X(__logf) X(__sinf) X(__cosf) X(__saturatef) X(__frcp_rn) X(__fsqrt_rn) X(erfcxf) X(cyl_bessel_i0f)
#define NAME(f) #f,
#define CALL(f) out[k++ * n + i] = f(x[i]);
extern "C" __global__ void floats(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, k = 0;
    if (i >= n) return;
    UNARY_FLOAT(CALL)
}
extern "C" __global__ void doubles(const double* p, double* out) {
    double x = p[threadIdx.x];
    double* mine = out + 8 * threadIdx.x;
    mine[0] = normcdfinv(x); mine[1] = erfinv(x); mine[2] = rsqrt(x); mine[3] = erfcinv(x);
    double s, c; sincos(x, &s, &c); mine[4] = s; mine[5] = c;
    mine[6] = norm3d(x, 2.0, 3.0); mine[7] = fma(x, x, 1.0);
}
extern "C" __global__ void binary(const float* a, const float* b, float* out, int n) {
    int i = threadIdx.x;
    float s, c; sincosf(a[i], &s, &c);
    float all[] = {fmaf(a[i], b[i], 1.0f), __fdividef(a[i], b[i]), powf(a[i], b[i]), fmodf(a[i], b[i]),
                   atan2f(a[i], b[i]),
                   hypotf(a[i], b[i]), fminf(a[i], b[i]), max(a[i], b[i]), copysignf(a[i], -b[i]), s, c,
                   __fadd_rn(a[i], b[i]), __fmul_rn(a[i], b[i]), fdimf(a[i], b[i]), min(a[i], 2 * b[i]), fabs(-a[i])};
    for (int k = 0; k < 16; ++k) out[k * n + i] = all[k];
}
extern "C" __global__ void bits(const unsigned* in, unsigned* out, int n) {
    int i = threadIdx.x;
    unsigned v = in[i], w = in[(i + 1) % n];
    unsigned all[] = {(unsigned)__popc(v), (unsigned)__clz(v), (unsigned)__ffs(v), __brev(v), __byte_perm(v, w, 0x5140),
        __umulhi(v, w), (unsigned)__mulhi((int)v, (int)w), (unsigned)__mul24((int)v, (int)w), __umul24(v, w),
        __funnelshift_l(v, w, 7), __funnelshift_r(v, w, 7), __float_as_uint(__uint_as_float(v & 0x7f7fffff)),
        (unsigned)__dp4a((int)v, (int)w, 5), __usad(v, w, 3u), (unsigned)__popcll(((unsigned long long)v << 32) | w),
        (unsigned)__clzll((long long)v), __vadd4(v, w), (unsigned)max((int)v, 7), min(v, 7u), __uhadd(v, w)};
    for (int k = 0; k < 20; ++k) out[k * n + i] = all[k];
}
extern "C" __global__ void conversions(const float* x, int* out, unsigned* uout) {
    int i = threadIdx.x;
    int* mine = out + 4 * i;
    mine[0] = __float2int_rn(x[i]); mine[1] = __float2int_rz(x[i]);
    mine[2] = __float2int_ru(x[i]); mine[3] = __float2int_rd(x[i]);
    uout[i] = __float2uint_rz(x[i]);
}
extern "C" __global__ void rounding(const float* a, const float* b, float* out, int n) {
    int i = threadIdx.x;
    out[i] = __fadd_rd(a[i], b[i]); out[n + i] = __fadd_ru(a[i], b[i]);
    out[2 * n + i] = __fmul_rd(a[i], b[i]); out[3 * n + i] = __fmul_ru(a[i], b[i]);
    out[4 * n + i] = __fdiv_rd(a[i], b[i]); out[5 * n + i] = __fdiv_ru(a[i], b[i]);
    out[6 * n + i] = __double2float_rd(double(a[i]) + 1e-12); out[7 * n + i] = __double2float_ru(double(a[i]) + 1e-12);
}
// Overloads that CUDA leaves to programs.
__device__ unsigned long long atomicSub(unsigned long long* p, unsigned long long v) { return atomicAdd(p, 0 - v); }
__device__ float atomicMax(float* p, float v) {
    int seen = __float_as_int(*p), assumed;
    do { assumed = seen; seen = atomicCAS((int*)p, assumed, __float_as_int(fmaxf(v, __int_as_float(assumed)))); }
    while (seen != assumed);
    return __int_as_float(seen);
}
template <class T> __global__ void integer_atomics(T* cells, T* old) {
    T t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&cells[0], t); atomicSub(&cells[1], T(1)); atomicMin(&cells[2], t); atomicMax(&cells[3], t);
    atomicOr(&cells[4], T(1) << (t % 30)); atomicAnd(&cells[5], ~(T(1) << (t % 30))); atomicXor(&cells[6], t);
    old[t] = atomicExch(&cells[7], t);
    T seen = cells[8], assumed;
    do { assumed = seen; seen = atomicCAS(&cells[8], assumed, assumed + 2); } while (seen != assumed);
}
extern "C" __global__ void float_atomics(float* f, double* d, unsigned* u, __half* h) {
    atomicAdd(f, 0.5f); atomicAdd(d, 0.25); atomicMax(&f[1], float(threadIdx.x));
    atomicInc(&u[0], 9); atomicDec(&u[1], 9); if (blockIdx.x == 0) atomicAdd(h, __float2half(1.0f));
    atomicAdd_block(&u[2], 1); atomicAdd(&u[3], 3);
}
extern "C" __global__ void shared_atomics(const int* keys, int* histogram, int n) {
    __shared__ int local[16];
    if (threadIdx.x < 16) local[threadIdx.x] = 0;
    __syncthreads();
    int step = blockDim.x * gridDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) atomicAdd(&local[keys[i]], 1);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&histogram[threadIdx.x], local[threadIdx.x]);
}
extern "C" __global__ void vectors(float4* v, int* sizes) {
    float4 a = v[threadIdx.x];
    v[threadIdx.x] = make_float4(a.w, a.z, a.y, a.x);
    static_assert(alignof(float4) == 16 && alignof(float3) == 4 && alignof(double2) == 16 && alignof(int2) == 8, "");
    static_assert(sizeof(char3) == 3 && sizeof(ushort4) == 8 && alignof(ushort4) == 8 && sizeof(longlong3) == 24, "");
    uint3 u = threadIdx; dim3 d(u.x, 2); uchar4 c = make_uchar4(1, 2, 3, 4);
    sizes[threadIdx.x] = d.x + d.y + d.z + c.w + warpSize;
}
extern "C" __global__ void halves(const __half* a, const half* b, half* out, int n) {
    int i = threadIdx.x;
    half x = a[i], y = b[i];
    half all[] = {x + y, x * y, __hsub(x, y), x / y, __hfma(x, y, y), hsqrt(__habs(x)), hexp(x), -x, __hmax(x, y),
                  __float2half(__half2float(x) * 3.0f), half(x * 2), __ushort_as_half(__half_as_ushort(x)),
                  x > y ? x : y, __low2half(__hadd2(__halves2half2(x, y), __float2half2_rn(1.0f))),
                  __float2half_rd(__half2float(x) * 1.0001f), half(float(x) + 0.5)};
    for (int k = 0; k < 16; ++k) out[k * n + i] = all[k];
}
extern "C" __global__ void bfloats(const __nv_bfloat16* a, const nv_bfloat16* b, __nv_bfloat16* out, int n) {
    int i = threadIdx.x;
    __nv_bfloat16 x = a[i], y = b[i], z = x;
    z += y;
    __nv_bfloat162 two = __hmul2(__halves2bfloat162(x, y), __float2bfloat162_rn(2.0f));
    __nv_bfloat16 all[] = {x + y, x * y, z, x / y, __float2bfloat16(__bfloat162float(x) * 3.0f), two.y,
                           __hmin(x, y), -x};
    for (int k = 0; k < 8; ++k) out[k * n + i] = all[k];
}
extern "C" __global__ void half_reduce(const half* in, half* out) {
    half v = in[threadIdx.x];
    for (int o = 16; o > 0; o /= 2) v = __hadd(v, __shfl_down_sync(0xffffffff, v, o));
    if (threadIdx.x == 0) *out = v;
}
extern "C" __global__ void misc(long long* out, const float* in) {
    out[0] = clock64() > 0; out[1] = clock() != 0; out[2] = __ldg(in) == 4.0f; out[3] = warpSize;
    __threadfence(); __threadfence_block(); __threadfence_system();
    out[4] = isinf(CUDART_INF_F) && isnan(CUDART_NAN_F) && !isfinite(CUDART_INF);
    out[5] = __CUDA_ARCH__; out[6] = 0;
#ifdef __CUDACC_RTC__
    out[6] = 1;
#endif
    out[7] = cuda::std::is_same<float, float>::value;
}
extern "C" __global__ void signed_overflow(int* v) { v[0] = v[0] + 1; }
extern "C" __global__ void hello(int n) { printf("thread %d of %d: %.2f %s\n", (int)threadIdx.x, n, 1.5, "ok"); }
"""


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE, names=[f"integer_atomics<{t}>" for t in ("int", "unsigned", "unsigned long long")])


def test_float_functions(kernels: Kernels) -> None:
    x = np.concatenate([np.linspace(0.05, 4, 301), [1.0, 0.5, 2.0]]).astype(np.float32)
    d = x.astype(np.float64)
    vec = np.vectorize
    expected = [
        np.sin(d), np.cos(d), np.tan(d), np.exp(d), np.exp2(d), 10**d, np.log(d), np.log2(d), np.log10(d), np.log1p(d),
        np.expm1(d), np.sqrt(d), d**-0.5, np.cbrt(d), 1 / np.cbrt(d), vec(math.erf)(d), vec(math.erfc)(d),
        0.5 * vec(math.erfc)(-d / math.sqrt(2)), np.tanh(d), np.sinh(d), np.cosh(d), np.arctan(d), np.arcsinh(d),
        np.floor(d), np.ceil(d), np.trunc(d), np.floor(d + 0.5), np.rint(d), np.abs(d), vec(math.lgamma)(d),
        vec(math.gamma)(d), np.sin(np.pi * d), np.cos(np.pi * d), np.exp(d), np.log(d), np.sin(d), np.cos(d),
        np.clip(d, 0, 1), 1 / d, np.sqrt(d), np.exp(d * d) * vec(math.erfc)(d), np.i0(d),
    ]  # fmt: skip
    out = np.zeros((len(expected), len(x)), np.float32)
    kernels("floats", 3, 128, x, out, np.int32(len(x)))
    np.testing.assert_allclose(out, np.array(expected), rtol=2e-6, atol=5e-7)


def test_double_functions(kernels: Kernels) -> None:
    p = np.array([1e-12, 0.001, 0.02, 0.3, 0.5, 0.77, 0.999])
    out = np.zeros((len(p), 8))
    kernels("doubles", 1, len(p), p, out)
    z = out[:, 0]
    np.testing.assert_allclose([0.5 * math.erfc(-v / math.sqrt(2)) for v in z], p, rtol=1e-13)
    np.testing.assert_allclose([math.erf(v) for v in out[:, 1]], p, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose([math.erfc(v) for v in out[:, 3]], p, rtol=1e-12)
    np.testing.assert_allclose(out[:, 2], p**-0.5)
    np.testing.assert_allclose(out[:, 4:6], np.stack([np.sin(p), np.cos(p)], 1))
    np.testing.assert_allclose(out[:, 6:], np.stack([np.sqrt(p * p + 13), p * p + 1], 1))


def test_binary_functions(kernels: Kernels) -> None:
    a, b = np.random.default_rng(0).uniform(0.1, 3, (2, 200)).astype(np.float32)
    out = np.zeros((16, 200), np.float32)
    kernels("binary", 1, 200, a, b, out, np.int32(200))
    expected = [
        a.astype(float) * b + 1, a / b, np.power(a, b), np.fmod(a, b), np.arctan2(a, b), np.hypot(a, b),
        np.minimum(a, b),
        np.maximum(a, b), -a, np.sin(a), np.cos(a), a + b, a * b, np.maximum(a - b, 0), np.minimum(a, 2 * b), a,
    ]  # fmt: skip
    np.testing.assert_allclose(out, np.array(expected), rtol=1e-5)


def test_bit_functions(kernels: Kernels) -> None:
    v = np.random.default_rng(0).integers(0, 2**32, 100, dtype=np.uint64)
    v[:4] = 0, 1, 2**31, 2**32 - 1
    w = np.roll(v, -1)
    out = np.zeros((20, 100), np.uint32)
    kernels("bits", 1, 100, v.astype(np.uint32), out, np.int32(100))

    def s(x: int) -> int:
        return x - 2**32 if x >> 31 else x

    def s24(x: int) -> int:
        x &= 0xFFFFFF
        return x - 2**24 if x >> 23 else x

    def byte(x: int, i: int) -> int:
        return x >> 8 * i & 255

    def s8(x: int, i: int) -> int:
        return byte(x, i) - 256 * (byte(x, i) >> 7)

    for i, (x, y) in enumerate(zip(v.tolist(), w.tolist(), strict=True)):
        expected = [
            x.bit_count(), 32 - x.bit_length(), (x & -x).bit_length(), int(f"{x:032b}"[::-1], 2),
            byte(x, 0) | byte(y, 0) << 8 | byte(x, 1) << 16 | byte(y, 1) << 24, x * y >> 32, s(x) * s(y) >> 32,
            s24(x) * s24(y), (x & 0xFFFFFF) * (y & 0xFFFFFF), (y << 32 | x) << 7 >> 32, (y << 32 | x) >> 7,
            x & 0x7F7FFFFF,
            sum(s8(x, k) * s8(y, k) for k in range(4)) + 5, abs(x - y) + 3, x.bit_count() + y.bit_count(),
            64 - x.bit_length(), sum(((byte(x, k) + byte(y, k)) & 255) << 8 * k for k in range(4)), max(s(x), 7),
            min(x, 7), (x + y) >> 1,
        ]  # fmt: skip
        assert out[:, i].tolist() == [e & 0xFFFFFFFF for e in expected]


def test_conversions_round_and_saturate(kernels: Kernels) -> None:
    x = np.array([1.5, 2.5, -1.5, -0.2, 1e20, -1e20, np.nan, 3.0], np.float32)
    out, uout = np.zeros((8, 4), np.int32), np.zeros(8, np.uint32)
    kernels("conversions", 1, 8, x, out, uout)
    top, low = 2**31 - 1, -(2**31)
    expected = [[2, 1, 2, 1], [2, 2, 3, 2], [-2, -1, -1, -2], [0, 0, 0, -1], [top] * 4, [low] * 4, [0] * 4, [3] * 4]
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(uout, [1, 2, 0, 0, 2**32 - 1, 0, 0, 3])


def test_directed_rounding_encloses_the_exact_value(kernels: Kernels) -> None:
    a, b = np.random.default_rng(0).uniform(0.1, 3, (2, 256)).astype(np.float32)
    out = np.zeros((8, 256), np.float32)
    kernels("rounding", 1, 256, a, b, out, np.int32(256))
    da, db = a.astype(np.longdouble), b.astype(np.longdouble)
    for k, exact in enumerate([da + db, da * db, da / db, da + 1e-12]):
        low, high = out[2 * k], out[2 * k + 1]
        assert (low <= exact).all() and (high >= exact).all()
        assert (np.nextafter(low, np.float32(np.inf)) >= high).all()


@pytest.mark.parametrize("name, dtype", [("int", np.int32), ("unsigned", np.uint32), ("unsigned long long", np.uint64)])
def test_integer_atomics(kernels: Kernels, name: str, dtype: type) -> None:
    n = 64 * 100
    cells = np.array([0, n, 100, 0, 0, 2**30 - 1, 0, 0, 0], dtype)
    old = np.zeros(n, dtype)
    kernels(f"integer_atomics<{name}>", 64, 100, cells, old)
    t = np.arange(n)
    expected = [t.sum(), 0, 0, n - 1, 2**30 - 1, 0, np.bitwise_xor.reduce(t)]
    np.testing.assert_array_equal(cells[:7], np.array(expected).astype(dtype))
    assert cells[8] == 2 * n
    assert sorted([*old.tolist(), int(cells[7])]) == sorted([0, *range(n)])


def test_float_atomics(kernels: Kernels) -> None:
    f, d, u, h = np.zeros(2, np.float32), np.zeros(1), np.array([0, 3, 0, 0], np.uint32), np.zeros(1, np.float16)
    kernels("float_atomics", 20, 50, f, d, u, h)
    assert (f[0], f[1], d[0], h[0]) == (500, 49, 250, 50)
    assert u.tolist() == [0, (3 - 1000) % 10, 1000, 3000]


def test_shared_atomics(kernels: Kernels) -> None:
    keys = np.random.default_rng(0).integers(0, 16, 30_000).astype(np.int32)
    histogram = np.zeros(16, np.int32)
    kernels("shared_atomics", 7, 128, keys, histogram, np.int32(len(keys)))
    np.testing.assert_array_equal(histogram, np.bincount(keys, minlength=16))


def test_vector_types(kernels: Kernels) -> None:
    v, sizes = np.arange(40, dtype=np.float32).reshape(10, 4), np.zeros(10, np.int32)
    expected = v[:, ::-1].copy()
    kernels("vectors", 1, 10, v, sizes)
    np.testing.assert_array_equal(v, expected)
    np.testing.assert_array_equal(sizes, np.arange(10) + 39)


def test_half(kernels: Kernels) -> None:
    a, b = np.random.default_rng(0).uniform(-4, 4, (2, 128)).astype(np.float16)
    out = np.zeros((16, 128), np.float16)
    kernels("halves", 1, 128, a, b, out, np.int32(128))
    f, g = a.astype(np.float64), b.astype(np.float64)
    expected = [
        a + b, a * b, a - b, a / b, f * g + g, np.sqrt(np.abs(f)), np.exp(f.astype(np.float32)), -a, np.maximum(a, b),
        f * 3, f * 2, a, np.maximum(a, b), f + 1, None, f + 0.5,
    ]  # fmt: skip
    for k, e in enumerate(expected):
        if e is not None:
            np.testing.assert_array_equal(out[k], np.asarray(e).astype(np.float16), err_msg=str(k))
    assert (out[14] <= f.astype(np.float32) * np.float32(1.0001)).all()


def test_bfloat16(kernels: Kernels) -> None:
    kind = ml_dtypes.bfloat16
    a, b = np.random.default_rng(0).uniform(-4, 4, (2, 128)).astype(kind)
    out = np.zeros((8, 128), np.uint16)
    kernels("bfloats", 1, 128, a.view(np.uint16), b.view(np.uint16), out, np.int32(128))
    f, g = a.astype(np.float32), b.astype(np.float32)
    expected = [f + g, f * g, f + g, f / g, f * 3, g * 2, np.minimum(f, g), -f]
    np.testing.assert_array_equal(out.view(kind).astype(np.float32), np.array(expected).astype(kind).astype(np.float32))


def test_half_through_shuffles(kernels: Kernels) -> None:
    x, out = np.arange(32, dtype=np.float16), np.zeros(1, np.float16)
    kernels("half_reduce", 1, 32, x, out)
    assert out[0] == 496


def test_clock_fences_and_macros(kernels: Kernels) -> None:
    out = np.zeros(8, np.int64)
    kernels("misc", 1, 1, out, np.array([4], np.float32))
    assert out.tolist() == [1, 1, 1, 32, 1, 700, 1, 1]


def test_signed_overflow_wraps(kernels: Kernels) -> None:
    v = np.array([2**31 - 1], np.int32)
    kernels("signed_overflow", 1, 1, v)
    assert v[0] == -(2**31)


def test_printf_is_flushed(kernels: Kernels, capfd: pytest.CaptureFixture[str]) -> None:
    kernels("hello", 1, 3, np.int32(3))
    assert sorted(capfd.readouterr().out.splitlines()) == [f"thread {i} of 3: 1.50 ok" for i in range(3)]
