"""Eight-bit floating point against ml_dtypes, bit for bit; and C's complex numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.support.cpu.kernels import Kernels

Array = np.ndarray
SOURCE = r"""
#include <cuda_fp8.h>
#include <cuComplex.h>
#include <cuda/std/limits>

// Rows of four: unsaturated and saturated by function, the structure, and two at a time.
template <class S, __nv_fp8_interpretation_t K>
__device__ void four(__nv_fp8_storage_t* out, int n, int i, __nv_fp8_storage_t a, __nv_fp8_storage_t b, S s,
                     __nv_fp8x2_storage_t two) {
    out[i] = a; out[n + i] = b; out[2 * n + i] = s.__x; out[3 * n + i] = two >> 8;
    if ((two & 0xff) != a) out[3 * n + i] = ~out[3 * n + i];
}
template <class S, __nv_fp8_interpretation_t K>
__global__ void narrow(const float* f, const double* d, unsigned char* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    four<S, K>(out, n, i, __nv_cvt_float_to_fp8(f[i], __NV_NOSAT, K), __nv_cvt_float_to_fp8(f[i], __NV_SATFINITE,
        K), S(f[i]),
               __nv_cvt_float2_to_fp8x2(make_float2(f[i], f[i]), __NV_NOSAT, K));
    four<S, K>(out + 4 * n, n, i, __nv_cvt_double_to_fp8(d[i], __NV_NOSAT, K), __nv_cvt_double_to_fp8(d[i],
        __NV_SATFINITE, K),
               S(d[i]), __nv_cvt_double2_to_fp8x2(make_double2(d[i], d[i]), __NV_NOSAT, K));
}
template <class S, __nv_fp8_interpretation_t K>
__global__ void sixteen(unsigned char* out) {
    const int n = 65536, i = blockIdx.x * blockDim.x + threadIdx.x;
    __half_raw h{(unsigned short)i}; __nv_bfloat16_raw b{(unsigned short)i};
    four<S, K>(out, n, i, __nv_cvt_halfraw_to_fp8(h, __NV_NOSAT, K), __nv_cvt_halfraw_to_fp8(h, __NV_SATFINITE, K),
        S(__half(h)),
               __nv_cvt_halfraw2_to_fp8x2(__half2_raw{h.x, h.x}, __NV_NOSAT, K));
    four<S, K>(out + 4 * n, n, i, __nv_cvt_bfloat16raw_to_fp8(b, __NV_NOSAT, K),
               __nv_cvt_bfloat16raw_to_fp8(b, __NV_SATFINITE, K), S(__nv_bfloat16(b)),
               __nv_cvt_bfloat16raw2_to_fp8x2(__nv_bfloat162_raw{b.x, b.x}, __NV_NOSAT, K));
}
template <class S, class S2, class S4>
__global__ void widen(float* out, int* whole, __half* halves, __nv_bfloat16* bfloats) {
    int i = threadIdx.x;
    S x; x.__x = i;
    S2 two; two.__x = i << 8 | (255 - i);
    S4 four; four.__x = (unsigned)i << 24 | i << 8;
    float4 all = float4(four);
    out[i] = float(x); out[256 + i] = float2(two).y; out[512 + i] = all.w; out[768 + i] = (float)double(x);
    out[1024 + i] = float2(two).x; out[1280 + i] = all.y + all.x * 0 + all.z * 0;
    halves[i] = __half(x); halves[256 + i] = __half2(two).y; bfloats[i] = __nv_bfloat16(x);
    whole[i] = int(x); whole[256 + i] = (unsigned char)x; whole[512 + i] = (signed char)x; whole[768
        + i] = (unsigned short)x;
    whole[1024 + i] = bool(x);
    if (i == 0) {
        S4 packed(make_float4(1, 2, 0.5f, 4)), pairs(make_half2(1.0f, 2.0f), make_half2(0.5f, 4.0f));
        float4 back = float4(packed);
        out[1536] = back.x; out[1537] = back.y; out[1538] = back.z; out[1539] = back.w;
            out[1540] = packed.__x == pairs.__x;
        out[1541] = float(S(3)); out[1542] = float(S(24ll)); out[1543] = float(S(17ull << 40));
            out[1544] = float(S(short(-2)));
    }
}
template <__nv_fp8_interpretation_t K> __global__ void raws(__half_raw* out) {
    int i = threadIdx.x;
    out[i] = __nv_cvt_fp8_to_halfraw(i, K);
    __half2_raw two = __nv_cvt_fp8x2_to_halfraw2(i << 8 | i, K);
    out[256 + i].x = two.y; out[512 + i].x = two.x;
}
extern "C" __global__ void scales(const float* f, unsigned char* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = __nv_cvt_float_to_e8m0(f[i], __NV_NOSAT, cudaRoundZero);
    out[n + i] = __nv_cvt_float_to_e8m0(f[i], __NV_SATFINITE, cudaRoundPosInf);
    out[2 * n + i] = __nv_fp8_e8m0(f[i]).__x; out[3 * n + i] = __nv_fp8_e8m0(double(f[i])).__x;
    out[4 * n + i] = __nv_cvt_double_to_e8m0(f[i], __NV_NOSAT, cudaRoundZero);
    out[5 * n + i] = __nv_cvt_float2_to_e8m0x2(make_float2(0, f[i]), __NV_NOSAT, cudaRoundZero) >> 8;
}
extern "C" __global__ void limits(float* out) {
    using A = cuda::std::numeric_limits<__nv_fp8_e4m3>; using B = cuda::std::numeric_limits<__nv_fp8_e5m2>;
    float all[] = {float(A::max()), float(A::min()), float(A::lowest()), float(A::epsilon()), float(A::denorm_min()),
                   float(B::max()), float(B::min()), float(B::lowest()), float(B::epsilon()), float(B::infinity())};
    for (int k = 0; k < 10; ++k) out[k] = all[k];
}
#define COMPLEX(name, C, T, f, make) \
    extern "C" __global__ void name(const C* px, const C* py, C* out, T* parts, int n) { \
        int i = blockIdx.x * blockDim.x + threadIdx.x; \
        if (i >= n) return; \
        C x = px[i], y = py[i]; \
        C all[] = {cuCadd##f(x, y), cuCsub##f(x, y), cuCmul##f(x, y), cuCdiv##f(x, y), cuConj##f(x), \
                   cuCfma##f(x, y, make(1, 2))}; \
        for (int k = 0; k < 6; ++k) out[k * n + i] = all[k]; \
        parts[i] = cuCabs##f(x); parts[n + i] = cuCreal##f(x); parts[2 * n + i] = cuCimag##f(x); \
    }
COMPLEX(complex64, cuComplex, float, f, make_cuComplex)
COMPLEX(complex128, cuDoubleComplex, double, , make_cuDoubleComplex)
static_assert(sizeof(cuFloatComplex) == 8 && alignof(cuDoubleComplex) == 16, "");
extern "C" __global__ void converted(cuDoubleComplex* d, cuFloatComplex* f) {
    cuFloatComplex c = make_cuFloatComplex(1.5f, 2.5f);
    *d = cuComplexFloatToDouble(c); *f = cuComplexDoubleToFloat(make_cuDoubleComplex(-0.5, 0.25));
}
"""
KINDS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"e4m3": 0x7E, "e5m2": 0x7B}


def _names(kind: str) -> dict[str, str]:
    one, which = f"__nv_fp8_{kind}", f"__NV_{kind.upper()}"
    return {
        "narrow": f"narrow<{one}, {which}>", "sixteen": f"sixteen<{one}, {which}>", "raws": f"raws<{which}>",
        "widen": f"widen<{one}, __nv_fp8x2_{kind}, __nv_fp8x4_{kind}>",
    }  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE, names=[name for kind in KINDS for name in _names(kind).values()])


def _expected(kind: str, values: Array) -> tuple[Array, Array]:
    """Returns the codes without and with saturation; any NaN is encoded as `_nan`."""
    with np.errstate(all="ignore"):
        codes = values.astype(KINDS[kind]).view(np.uint8).copy()
    past = (codes & 0x7F) > LARGEST[kind]
    saturated = np.where(past & ~np.isnan(values), LARGEST[kind] | codes & 0x80, codes)
    return codes, saturated


def _assert_codes(kind: str, rows: Array, values: Array) -> None:
    plain, saturated = _expected(kind, values)
    nan = np.isnan(values)
    for row, expected in zip(rows, (plain, saturated, saturated, plain), strict=True):
        np.testing.assert_array_equal(row[~nan], expected[~nan], err_msg=kind)
        assert np.isnan(row[nan].view(KINDS[kind]).astype(float)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_conversions_to_fp8_round_once_and_saturate(kernels: Kernels, kind: str) -> None:
    rng = np.random.default_rng(0)
    numbers = np.arange(256, dtype=np.uint8).view(KINDS[kind]).astype(np.float32)
    numbers = np.sort(numbers[np.isfinite(numbers)])
    halfway = (numbers[1:] + numbers[:-1]) / 2
    near = np.concatenate(
        [numbers, halfway, np.nextafter(halfway, np.float32(np.inf)), np.nextafter(halfway, np.float32(-np.inf))]
    )
    edges = np.array(
        [464, 465, 448, 480, 61440, 61439.99, 57344, 65536, np.inf, -np.inf, np.nan, 0, -0.0, 1e-30, -1e-30], np.float32
    )
    any_bits = rng.integers(0, 2**32, 60_000, dtype=np.uint32).view(np.float32)
    any_bits[np.isnan(any_bits)] = np.nan
    in_range = np.ldexp(rng.uniform(-2, 2, 60_000), rng.integers(-18, 18, 60_000)).astype(np.float32)
    floats = np.concatenate([near, edges, any_bits, in_range])
    # A double distinguishes the two sides of a halfway point, which float cannot: through float it would be rounded
    # twice.
    doubles = floats.astype(float)
    nudged = np.nextafter(doubles, rng.choice([-np.inf, np.inf], len(doubles)))
    n = len(floats)
    out = np.zeros((8, n), np.uint8)
    kernels(_names(kind)["narrow"], (n + 255) // 256, 256, floats, nudged, out, np.int32(n))
    _assert_codes(kind, out[:4], floats)
    # ml_dtypes rounds a double through float, so the reference is computed from the neighbours.
    ordered = np.isfinite(nudged) & (np.abs(nudged) < float(numbers[-1]))
    below = np.searchsorted(numbers, nudged[ordered], side="right") - 1
    low, high = numbers[below].astype(float), numbers[np.minimum(below + 1, len(numbers) - 1)].astype(float)
    exact = nudged[ordered]
    up = (exact - low > high - exact) | ((exact - low == high - exact) & (_codes_of(kind, low) & 1 == 1))
    expected = np.where(up, high, low)
    for row in out[4:]:
        np.testing.assert_array_equal(row[ordered].view(KINDS[kind]).astype(float), expected)


def _codes_of(kind: str, values: Array) -> Array:
    return values.astype(np.float32).astype(KINDS[kind]).view(np.uint8)


@pytest.mark.parametrize("kind", KINDS)
def test_every_half_and_bfloat16_to_fp8(kernels: Kernels, kind: str) -> None:
    out = np.zeros((8, 65536), np.uint8)
    kernels(_names(kind)["sixteen"], 256, 256, out)
    codes = np.arange(65536, dtype=np.uint16)
    _assert_codes(kind, out[:4], codes.view(np.float16).astype(np.float32))
    _assert_codes(kind, out[4:], codes.view(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_every_fp8_number_to_wider_types(kernels: Kernels, kind: str) -> None:
    out, whole = np.zeros(1600, np.float32), np.zeros((5, 256), np.int32)
    halves, bfloats = np.zeros((2, 256), np.float16), np.zeros(256, np.uint16)
    kernels(_names(kind)["widen"], 1, 256, out, whole, halves, bfloats)
    values = np.arange(256, dtype=np.uint8).view(KINDS[kind]).astype(np.float32)
    for k in range(4):
        np.testing.assert_array_equal(out[256 * k : 256 * (k + 1)], values)
    np.testing.assert_array_equal(out[1024:1280], values[::-1])
    np.testing.assert_array_equal(out[1280:1536], values)
    np.testing.assert_array_equal(halves, np.stack([values] * 2).astype(np.float16))
    np.testing.assert_array_equal(bfloats.view(ml_dtypes.bfloat16).astype(np.float32), values)
    finite = np.nan_to_num(values, nan=0, posinf=1e9, neginf=-1e9)
    bounds = [(-(2**31), 2**31 - 1), (0, 255), (-128, 127), (0, 65535)]
    for row, (low, high) in zip(whole, bounds, strict=False):
        expected = np.clip(np.trunc(finite.astype(float)), low, high)
        if (low, high) == bounds[0]:
            expected = np.where(np.isinf(values), np.where(values > 0, high, low), expected)
        np.testing.assert_array_equal(row, expected)
    np.testing.assert_array_equal(whole[4], values != 0)
    top = float(np.uint8(LARGEST[kind]).view(KINDS[kind]))
    assert out[1536:1545].tolist() == [1, 2, 0.5, 4, 1, 3, 24, top, -2]
    raw = np.zeros(768, np.float16)
    kernels(_names(kind)["raws"], 1, 256, raw)
    np.testing.assert_array_equal(raw, np.tile(values, 3).astype(np.float16))


def test_scale_factors_are_powers_of_two(kernels: Kernels) -> None:
    floats = np.random.default_rng(1).integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    floats[np.isnan(floats)] = np.nan
    special = [0, 2.0**-127, 2.0**-126, 1.1 * 2.0**-127, 1, 1.5, 3e38, np.inf, -np.inf, np.nan, 2.0**-130]
    floats = np.concatenate([np.array(special, np.float32), floats])
    n = len(floats)
    out = np.zeros((6, n), np.uint8)
    kernels("scales", (n + 255) // 256, 256, floats, out, np.int32(n))
    size, nan = np.abs(floats.astype(float)), np.isnan(floats)
    with np.errstate(all="ignore"):
        power = np.floor(np.log2(size))
        down = np.where(nan | np.isinf(size), 255, np.maximum(power, -127) + 127)
        up = np.where(nan, 255, np.clip(np.ceil(np.log2(size)), -127, 127) + 127)
    for k, expected in enumerate([down, up, up, up, down, down]):
        np.testing.assert_array_equal(out[k], expected, err_msg=str(k))


def test_limits_of_fp8(kernels: Kernels) -> None:
    out = np.zeros(10, np.float32)
    kernels("limits", 1, 1, out)
    expected = []
    for kind in KINDS.values():
        info = ml_dtypes.finfo(kind)
        expected += [float(v) for v in (info.max, info.smallest_normal, info.min, info.eps, info.smallest_subnormal)]
    expected[-1] = np.inf
    assert out.tolist() == expected


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers(kernels: Kernels, dtype: type) -> None:
    rng = np.random.default_rng(2)
    part = np.float32 if dtype is np.complex64 else np.float64
    big = np.finfo(part).max / 4
    x, y = (rng.normal(size=(2, 500)) + 1j * rng.normal(size=(2, 500))).astype(dtype)
    x[:3] = big + 1j * big, 0, complex(np.inf, -1)
    y[:3] = big, 1, 1
    out, parts = np.zeros((6, 500), dtype), np.zeros((3, 500), part)
    kernels(np.dtype(dtype).name, 2, 256, x, y, out, parts, np.int32(500))
    tolerance = 16 * np.finfo(part).eps
    wide = np.complex128 if dtype is np.complex64 else dtype
    a, b = x[3:].astype(wide), y[3:].astype(wide)
    for k, expected in enumerate([a + b, a - b, a * b, a / b, np.conj(a), a * b + (1 + 2j)]):
        assert (np.abs(out[k][3:] - expected) <= tolerance * np.maximum(np.abs(expected), 1)).all(), k
    np.testing.assert_allclose(out[3][0], 1 + 1j, rtol=1e-6)
    np.testing.assert_allclose(parts[0], np.hypot(x.real, x.imag), rtol=tolerance)
    np.testing.assert_array_equal(parts[1:], np.stack([x.real, x.imag]))
    double, single = np.zeros(1, np.complex128), np.zeros(1, np.complex64)
    kernels("converted", 1, 1, double, single)
    assert (double[0], single[0]) == (1.5 + 2.5j, -0.5 + 0.25j)
