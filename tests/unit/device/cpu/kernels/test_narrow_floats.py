"""half and bfloat16: all functions, compared bit for bit if the result is exactly defined."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.support.cpu.kernels import Kernels
from tests.support.cpu.narrow_formats import BFLOAT16, HALF, WAYS, Array, Format, assert_same

FORMATS = {"half": HALF, "bfloat16": BFLOAT16}
ARITHMETIC = [
    ("__hadd", "__hadd2"), ("__hsub", "__hsub2"), ("__hmul", "__hmul2"), ("__hdiv", "__h2div"),
    ("__hadd_rn", "__hadd2_rn"), ("__hsub_rn", "__hsub2_rn"), ("__hmul_rn", "__hmul2_rn"),
    ("__hadd_sat", "__hadd2_sat"), ("__hsub_sat", "__hsub2_sat"), ("__hmul_sat", "__hmul2_sat"),
    ("__hmax", "__hmax2"), ("__hmin", "__hmin2"), ("__hmax_nan", "__hmax2_nan"), ("__hmin_nan", "__hmin2_nan"),
]  # fmt: skip
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]
MATH = ["sqrt", "rsqrt", "rcp", "exp", "exp2", "exp10", "log", "log2", "log10", "sin", "cos", "tanh", "tanh_approx",
        "floor", "ceil", "trunc", "rint"]  # fmt: skip
INTEGERS = {
    "short": np.int16, "ushort": np.uint16, "int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64,
}  # fmt: skip
C_TYPES = {
    "short": "short", "ushort": "unsigned short", "int": "int", "uint": "unsigned", "ll": "long long",
    "ull": "unsigned long long",
}  # fmt: skip
VALUE_TYPES = {"char": np.int8, "uchar": np.uint8, **INTEGERS}


def _source(name: str) -> str:
    """Returns the kernels for one type, named after it; conversions have separate names."""
    t, t2 = {"half": ("__half", "__half2"), "bfloat16": ("__nv_bfloat16", "__nv_bfloat162")}[name]
    pair = "*(T2*)&out[{k} * n + 2 * i] = {call};\n"
    lines, k = "", 0
    for one, two in ARITHMETIC:
        lines += f"out[{k} * n + 2 * i] = {one}(a.x, b.x); out[{k} * n + 2 * i + 1] = {one}(a.y, b.y);\n"
        lines += pair.format(k=k + 1, call=f"{two}(a, b)")
        k += 2
    for op in "+-*/":
        lines += f"out[{k} * n + 2 * i] = a.x {op} b.x; {{ T t = a.y; t {op}= b.y; out[{k} * n + 2 * i + 1] = t; }}\n"
        lines += pair.format(k=k + 1, call=f"a {op} b")
        k += 2
    compared, m = "", 0
    for unordered in ("", "u"):
        for name_ in COMPARE:
            fn = f"__h{name_}{unordered}"
            bits = [
                f"{fn}(a.x, b.x) | {fn}(a.y, b.y) << 1",
                f"(float({fn}2(a, b).x) == 1.0f) | (float({fn}2(a, b).y) == 1.0f) << 1",
                f"__hb{name_}{unordered}2(a, b) ? 3 : 0",
                f"({fn}2_mask(a, b) % 65536 == 65535) | ({fn}2_mask(a, b) / 65536 == 65535) << 1",
            ]
            compared += (
                f"flags[{m} * n / 2 + i] = ({bits[0]}) | ({bits[1]}) << 2 | ({bits[2]}) << 4 | ({bits[3]}) << 6;\n"
            )
            m += 1
    operators = ["==", "!=", "<", "<=", ">", ">="]
    for op in operators:
        compared += f"flags[{m} * n / 2 + i] = (a.x {op} b.x) | (a.y {op} b.y) << 1 | (a {op} b ? 3 : 0) << 4;\n"
        m += 1
    math_lines = "".join(
        f"out[{2 * j} * n + 2 * i] = h{f}(a.x); out[{2 * j} * n + 2 * i + 1] = h{f}(a.y);\n"
        + pair.format(k=2 * j + 1, call=f"h2{f}(a)")
        for j, f in enumerate(MATH)
    )
    j = 2 * len(MATH)
    math_lines += (
        f"out[{j} * n + 2 * i] = __hneg(a.x); out[{j} * n + 2 * i + 1] = -a.y;\n"
        f"out[{j + 1} * n + 2 * i] = __habs(a.x); out[{j + 1} * n + 2 * i + 1] = __habs2(a).y;\n"
        f"out[{j + 2} * n + 2 * i] = T(__hisnan(a.x)); out[{j + 2} * n + 2 * i + 1] = __hisnan2(a).y;\n"
        f"out[{j + 3} * n + 2 * i] = T(__hisinf(a.x)); out[{j + 3} * n + 2 * i + 1] = T(__hisinf(a.y));\n"
    )
    to = {"half": "__half2", "bfloat16": "__bfloat162"}[name]
    conversions, c = "", 0
    for kind in ("char", "uchar"):
        conversions += f"out[{c} * n + i] = (long long){to}{kind}_rz(x);\n"
        c += 1
    for kind in INTEGERS:
        for way in WAYS:
            conversions += f"out[{c} * n + i] = (long long){to}{kind}_{way}(x);\n"
            c += 1
    for kind in C_TYPES.values():
        conversions += f"{{ {kind} v = x; out[{c} * n + i] = (long long)v; }}\n"
        c += 1
    narrowing = ""
    for j, (kind, ctype) in enumerate(C_TYPES.items()):
        for w, way in enumerate(WAYS):
            narrowing += f"out[{5 * j + w} * n + i] = __{kind}2{name}_{way}(({ctype})v);\n"
        narrowing += f"out[{5 * j + 4} * n + i] = T(({ctype})v);\n"
    from_float = "".join(f"out[{w} * n + i] = __float2{name}_{way}(x);\n" for w, way in enumerate(WAYS))
    return f"""
namespace {name}_kernels {{
using T = {t}; using T2 = {t2};
__global__ void binary(const T2* pa, const T2* pb, T* out, unsigned char* flags, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (2 * i >= n) return;
    T2 a = pa[i], b = pb[i];
    {lines} {compared} }}
__global__ void unary(const T2* pa, T* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (2 * i >= n) return;
    T2 a = pa[i];
    {math_lines} }}
__global__ void fused(const T2* pa, const T2* pb, const T2* pc, T2* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (2 * i >= n) return;
    T2 a = pa[i], b = pb[i], c = pc[i];
    T2 all[] = {{__hfma2(a, b, c), T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)), __hfma2_sat(a, b, c),
                T2(__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y)), __hfma2_relu(a, b, c),
                T2(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y)), __hcmadd(a, b, c)}};
    for (int k = 0; k < 7; ++k) out[k * n / 2 + i] = all[k];
}}
__global__ void to_integers(const T* px, long long* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T x = px[i];
    {conversions} }}
__global__ void from_integers(const long long* pv, T* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long v = pv[i];
    {narrowing} }}
__global__ void from_floats(const float* px, const double* pd, T* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = px[i];
    {from_float}
    out[4 * n + i] = __double2{name}(pd[i]);
    out[5 * n + i] = T(pd[i]);
}}
__global__ void moves(const T* in, T* out, T2* sums, T* limits) {{
    __shared__ volatile T kept[64];
    int i = threadIdx.x;
    T2* pairs = (T2*)out;
    T x = __ldg(in + i);
    x = __shfl_xor_sync(0xffffffff, x, 3);
    x = __shfl_down_sync(0xffffffff, __shfl_up_sync(0xffffffff, x, 1), 1);
    kept[i] = x;
    __syncthreads();
    T y = kept[i ^ 3];
    __stcg(out + i, __ldcv(&y));
    T2 two = __ldcg((const T2*)in + i);
    __stwt(pairs + 16 + i, __lowhigh2highlow(__shfl_sync(0xffffffff, two, i)));
    atomicAdd(sums, T2(1.0f, 2.0f));
    atomicAdd(&sums[1].x, T(1.0f)); atomicAdd(&sums[1].y, -T(1.0f));
    if (i == 0) {{
        using L = std::numeric_limits<T>;
        T v = 1.0f, w = v++, u = --v; T2 p(v, w); ++p; p--;
        T all[] = {{L::max(), L::min(), L::lowest(), L::epsilon(), L::denorm_min(), L::infinity(), u, p.x,
                   T(2) * T(3), T(1.0f) / 4, 3 - T(1), T(-7.75f)}};
        for (int k = 0; k < 12; ++k) limits[k] = all[k];
        limits[12] = T({"__half(1.5f)" if name == "bfloat16" else "__nv_bfloat16(1.5f)"});
        limits[13] = T(int(T(-7.75f))); limits[14] = T(float(T(1e5f) > 3)); limits[15] = T(x ? 1 : 0);
    }}
}}
}}
"""


SOURCE = "#include <cuda_bf16.h>\n#include <limits>\n" + "".join(_source(name) for name in FORMATS)
KERNELS = ("binary", "unary", "fused", "to_integers", "from_integers", "from_floats", "moves")


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE, names=[f"{name}_kernels::{kernel}" for name in FORMATS for kernel in KERNELS])


def _all() -> Array:
    return np.arange(65536, dtype=np.uint16)


def _pairs() -> tuple[Array, Array]:
    """Returns random pairs, pairs of similar magnitude, and every pair of special numbers."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 65536, (2, 60_000)).astype(np.uint16)
    near = (a + rng.integers(-2500, 2500, a.size)).astype(np.uint16) ^ (rng.integers(0, 2, a.size) << 15).astype(
        np.uint16
    )
    edges = np.array([0, 1, 2, 0x3FF, 0x400, 0x7F, 0x80, 0x3C00, 0x3C01, 0x3F80, 0x3F81, 0x1C00, 0x2000, 0x7BFF, 0x7C00,
                      0x7C01, 0x7E00, 0x7F7F, 0x7F80, 0x7FFF, 0x4000, 0x0100, 0x1000], np.uint16)  # fmt: skip
    edges = np.concatenate([edges, edges | 0x8000])
    left, right = (grid.ravel() for grid in np.meshgrid(edges, edges))
    return np.concatenate([a, a, left]), np.concatenate([b, near, right])


def _threads(n: int) -> tuple[int, int]:
    return (n + 255) // 256, 256


@pytest.mark.parametrize("name", FORMATS)
def test_arithmetic_is_rounded_once(kernels: Kernels, name: str) -> None:
    kind = FORMATS[name]
    ca, cb = _pairs()
    n = len(ca)
    out, flags = np.zeros((2 * len(ARITHMETIC) + 8, n), np.uint16), np.zeros((18, n // 2), np.uint8)
    kernels(f"{name}_kernels::binary", *_threads(n // 2), ca, cb, out, flags, np.int32(n))
    a, b = kind.values(ca), kind.values(cb)
    with np.errstate(all="ignore"):
        quotient = kind.rounded((a.astype(np.float32) / b.astype(np.float32)).astype(float))
        basic = {"add": kind.rounded(a + b), "sub": kind.rounded(a - b), "mul": kind.rounded(a * b), "div": quotient}
        number = np.where(a > b, a, b), np.where(a < b, a, b)
    zeros = (a == 0) & (b == 0)
    top = np.where(zeros, np.where(np.signbit(a) & np.signbit(b), -0.0, 0.0), number[0])
    low = np.where(zeros, np.where(np.signbit(a) | np.signbit(b), -0.0, 0.0), number[1])
    nan = np.isnan(a) | np.isnan(b)
    for k, (one, _) in enumerate([*ARITHMETIC, *((op, op) for op in ("add", "sub", "mul", "div"))]):
        stem = one.removeprefix("__h").split("_")[0]
        if stem in basic:
            expected = basic[stem]
            if one.endswith("_sat"):
                expected = np.where(expected > 0, np.minimum(expected, 1), 0.0)
        else:
            number_ = top if stem == "max" else low
            expected = (
                np.where(nan, np.nan, number_)
                if one.endswith("_nan")
                else np.where(np.isnan(a), b, np.where(np.isnan(b), a, number_))
            )
        for row in (2 * k, 2 * k + 1):
            assert_same(kind.values(out[row]), expected, f"{one} {row}")
            assert (out[row][np.isnan(kind.values(out[row]))] == 0x7FFF).all() or one in ("__hmax", "__hmin"), one
    functions = [np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal]
    for k in range(18):
        holds = functions[k % 6](a, b)
        if k < 12:
            holds = (holds & ~nan) if k < 6 else (holds | nan)
        pair = holds.reshape(-1, 2)
        both = np.where(pair.all(1), 3, 0)
        each = pair[:, 0] | pair[:, 1] << 1
        expected = each | both << 4 if k >= 12 else each * 0b01000101 | both << 4
        np.testing.assert_array_equal(flags[k], expected.astype(np.uint8), err_msg=f"{COMPARE[k % 6]} {k}")


@pytest.mark.parametrize("name", FORMATS)
def test_fused_multiply_add_is_rounded_once(kernels: Kernels, name: str) -> None:
    kind = FORMATS[name]
    rng = np.random.default_rng(1)
    a, b = (codes[-4000:] for codes in _pairs())
    c = rng.permutation(a)
    # Products halfway between two numbers, where a much smaller addend decides; and sums that cancel.
    ones = kind.rounded(1 + rng.integers(0, 2**kind.mantissa, 2000) / 2**kind.mantissa)
    half_units = kind.rounded(1 + 2.0 ** -rng.integers(1, kind.mantissa + 1, 2000))
    small = kind.rounded(np.ldexp(rng.choice([-1.0, 1.0, 0.0], 2000), -rng.integers(3, -kind.lowest, 2000)))
    code = _codes(kind)
    a, b, c = np.concatenate([a, code(ones)]), np.concatenate([b, code(half_units)]), np.concatenate([c, code(small)])
    n = len(a)
    out = np.zeros((7, n), np.uint16)
    kernels(f"{name}_kernels::fused", *_threads(n // 2), a, b, c, out, np.int32(n))
    x, y, z = (kind.values(codes) for codes in (a, b, c))
    expected = np.array([_fma(kind, *each) for each in zip(x, y, z, strict=True)])
    saturated = np.where(expected > 0, np.minimum(expected, 1), 0.0)
    relu = np.where(expected <= 0, 0.0, expected)
    for k in range(6):
        assert_same(kind.values(out[k]), (expected, saturated, relu)[k // 2], f"fma {k}")
    complex_expected = []
    for ar, ai, br, bi, cr, ci in np.stack([x, y, z], 1).reshape(-1, 2, 3).transpose(0, 2, 1).reshape(-1, 6):
        complex_expected += [_fma(kind, -ai, bi, _fma(kind, ar, br, cr)), _fma(kind, ai, br, _fma(kind, ar, bi, ci))]
    assert_same(kind.values(out[6]), np.array(complex_expected), "__hcmadd")


def _codes(kind: Format) -> Callable[[Array], Array]:
    """Returns a function from numbers that `kind` represents to their codes."""
    values = kind.values(_all())
    order = np.argsort(values, kind="stable")
    return lambda numbers: _all()[order][np.searchsorted(values[order], numbers)]


def _fma(kind: Format, a: float, b: float, c: float) -> float:
    if not all(map(math.isfinite, (a, b, c))):
        with np.errstate(all="ignore"):
            return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return kind.rounded_exactly(exact) if exact else a * b + c


@pytest.mark.parametrize("name", FORMATS)
def test_math_functions_of_every_number(kernels: Kernels, name: str) -> None:
    kind = FORMATS[name]
    codes = _all()
    out = np.zeros((2 * len(MATH) + 4, 65536), np.uint16)
    kernels(f"{name}_kernels::unary", *_threads(32768), codes, out, np.int32(65536))
    x = kind.values(codes)
    unit = 2.0**-kind.mantissa
    with np.errstate(all="ignore"):
        exact = {
            "sqrt": np.sqrt(x), "rsqrt": 1 / np.sqrt(x), "rcp": 1 / x, "exp": np.exp(x), "exp2": np.exp2(x),
            "exp10": 10.0**x, "log": np.log(x), "log2": np.log2(x), "log10": np.log10(x), "sin": np.sin(x),
            "cos": np.cos(x), "tanh": np.tanh(x), "tanh_approx": np.tanh(x), "floor": np.floor(x), "ceil": np.ceil(x),
            "trunc": np.trunc(x), "rint": np.rint(x),
        }  # fmt: skip
        for k, stem in enumerate(MATH):
            np.testing.assert_array_equal(out[2 * k], out[2 * k + 1], err_msg=stem)
            got, expected = kind.values(out[2 * k]), kind.rounded(exact[stem])
            if stem in ("sqrt", "floor", "ceil", "trunc", "rint"):
                assert_same(got, expected, stem)
            # an error of at most one unit in the last place, for numbers so close to halfway that float cannot
            # distinguish
            else:
                close = (
                    (got == expected)
                    | np.isnan(got) & np.isnan(expected)
                    | (np.abs(got - expected) <= unit * np.abs(expected))
                )
                close |= np.abs(got - expected) <= 2.0 ** (kind.lowest - kind.mantissa)
                assert close.all() and ((got == expected) | np.isnan(got)).mean() > 0.999, stem
    plain = kind.values(out[2 * len(MATH) :])
    assert_same(plain[0][~np.isnan(x)], -x[~np.isnan(x)], "neg")
    np.testing.assert_array_equal(out[2 * len(MATH) + 1], codes & 0x7FFF)
    np.testing.assert_array_equal(plain[2], np.isnan(x))
    np.testing.assert_array_equal(plain[3], np.where(np.isinf(x), np.sign(x), 0))


@pytest.mark.parametrize("name", FORMATS)
def test_conversions_to_integers_saturate(kernels: Kernels, name: str) -> None:
    kind = FORMATS[name]
    codes = _all()
    forms = [("char", "rz"), ("uchar", "rz"), *((each, way) for each in INTEGERS for way in WAYS)]
    forms += [(each, "rz") for each in INTEGERS]  # by the conversion operators
    out = np.zeros((len(forms), 65536), np.int64)
    kernels(f"{name}_kernels::to_integers", *_threads(65536), codes, out, np.int32(65536))
    x = kind.values(codes)
    for got, (target, way) in zip(out, forms, strict=True):
        info = np.iinfo(VALUE_TYPES[target])
        whole = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}[way](x)
        nan = 0 if info.bits < 64 else -(1 << 63)
        clipped = [
            nan if math.isnan(v) else info.max if v >= info.max else info.min if v <= info.min else int(v)
            for v in whole.tolist()
        ]
        expected = np.array([v - (1 << 64) if v >= 1 << 63 else v for v in clipped], np.int64)
        np.testing.assert_array_equal(got, expected, err_msg=f"{target} {way}")


@pytest.mark.parametrize("name", FORMATS)
def test_conversions_from_integers_and_floats_round_to_the_named_side(kernels: Kernels, name: str) -> None:
    kind = FORMATS[name]
    rng = np.random.default_rng(2)
    ints = [0, 1, -1, 2047, 2049, 2051, 65503, 65504, 65519, 65520, 65535, 65536, 257, 258, 259, -257, -259, 2**24 + 1,
            2**31 - 1, 2**32 - 1, 2**40 + 2**32, 2**40 + 2**32 + 1, 2**62 + 2**54 + 1, -(2**63), 2**63 - 1]  # fmt: skip
    values = np.array([*ints, *(rng.integers(-(2**63), 2**63 - 1, 200) >> rng.integers(0, 63, 200))], np.int64)
    n = len(values)
    out = np.zeros((5 * len(INTEGERS), n), np.uint16)
    kernels(f"{name}_kernels::from_integers", *_threads(n), values, out, np.int32(n))
    for k, dtype in enumerate(INTEGERS.values()):
        for w, way in enumerate((*WAYS, "rn")):
            expected = np.array([kind.rounded_exactly(Fraction(v), way) for v in values.astype(dtype).tolist()])
            assert_same(kind.values(out[5 * k + w]), expected, f"{dtype.__name__} {way}")
    floats = rng.integers(0, 2**32, 40_000, dtype=np.uint32).view(np.float32)
    floats[:8000] = kind.values(rng.integers(0, 65536, 8000)) * (1 + 2.0 ** -rng.integers(8, 13, 8000))
    floats = floats[~np.isnan(floats)]
    doubles = floats.astype(float) * (1 + np.ldexp(rng.integers(-1, 2, len(floats)).astype(float), -40))
    out = np.zeros((6, len(floats)), np.uint16)
    kernels(f"{name}_kernels::from_floats", *_threads(len(floats)), floats, doubles, out, np.int32(len(floats)))
    for w, way in enumerate(WAYS):
        assert_same(kind.values(out[w]), kind.rounded(floats.astype(float), way), way)
    for row in (4, 5):
        assert_same(kind.values(out[row]), kind.rounded(doubles), "double")


@pytest.mark.parametrize("name", FORMATS)
def test_shuffles_accesses_atomics_and_limits(kernels: Kernels, name: str) -> None:
    kind = FORMATS[name]
    codes = np.random.default_rng(3).permutation(_all()[0x3000:0x3040])
    out, sums, limits = np.zeros(128, np.uint16), np.zeros(4, np.uint16), np.zeros(16, np.uint16)
    kernels(f"{name}_kernels::moves", 1, 32, codes, out, sums, limits)
    expected_codes = codes[:32].copy()
    expected_codes[31 ^ 3] = codes[30 ^ 3]  # the last lane has no source lane in __shfl_down_sync
    np.testing.assert_array_equal(out[:32], expected_codes)
    np.testing.assert_array_equal(out[32:96].reshape(-1, 2)[:, ::-1].ravel(), codes)
    assert kind.values(sums).tolist() == [32, 64, 32, -32]
    largest = float(kind.values(np.array([kind.infinity - 1]))[0])
    smallest = 2.0 ** (kind.lowest - kind.mantissa)
    expected = [
        largest,
        2.0**kind.lowest,
        -largest,
        2.0**-kind.mantissa,
        smallest,
        math.inf,
        1,
        1,
        6,
        0.25,
        2,
        -7.75,
        1.5,
    ]
    assert kind.values(limits).tolist() == [*expected, -7, 1, 1]
