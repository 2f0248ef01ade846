"""Packed bytes and halfwords, DPX functions and dot products, compared with their definitions in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.cpu.kernels import Kernels

Array = np.ndarray
COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "lt": np.less,
}  # fmt: skip
Lane = Callable[[Array, Array, "np.iinfo"], Array]


def _clip(v: Array, lanes: np.iinfo) -> Array:
    return np.clip(v, lanes.min, lanes.max)


BINARY: dict[str, tuple[str, Lane]] = {
    "__vadd": ("u", lambda a, b, _: a + b),
    "__vaddss": ("s", lambda a, b, t: _clip(a + b, t)),
    "__vaddus": ("u", lambda a, b, t: _clip(a + b, t)),
    "__vsub": ("u", lambda a, b, _: a - b),
    "__vsubss": ("s", lambda a, b, t: _clip(a - b, t)),
    "__vsubus": ("u", lambda a, b, t: _clip(a - b, t)),
    "__vabsdiffs": ("s", lambda a, b, _: np.abs(a - b)),
    "__vabsdiffu": ("u", lambda a, b, _: np.abs(a - b)),
    "__vavgs": ("s", lambda a, b, _: np.where(a + b < 0, (a + b) // 2, (a + b + 1) // 2)),
    "__vavgu": ("u", lambda a, b, _: (a + b + 1) // 2),
    "__vhaddu": ("u", lambda a, b, _: (a + b) // 2),
    "__vmaxs": ("s", lambda a, b, _: np.maximum(a, b)),
    "__vmaxu": ("u", lambda a, b, _: np.maximum(a, b)),
    "__vmins": ("s", lambda a, b, _: np.minimum(a, b)),
    "__vminu": ("u", lambda a, b, _: np.minimum(a, b)),
}
for _name, _fn in COMPARISONS.items():
    for _sign in "su" if _name not in ("eq", "ne") else "u":
        _suffix = _name if _name in ("eq", "ne") else _name + _sign
        BINARY[f"__vcmp{_suffix}"] = _sign, lambda a, b, _, fn=_fn: -fn(a, b).astype(np.int64)
        BINARY[f"__vset{_suffix}"] = _sign, lambda a, b, _, fn=_fn: fn(a, b).astype(np.int64)
UNARY: dict[str, tuple[str, Lane]] = {
    "__vabs": ("s", lambda a, _b, _t: np.abs(a)),
    "__vabsss": ("s", lambda a, _b, t: _clip(np.abs(a), t)),
    "__vneg": ("s", lambda a, _b, _t: -a),
    "__vnegss": ("s", lambda a, _b, t: _clip(-a, t)),
}
SUMS = {"__vsads": "s", "__vsadu": "u"}
LANES = {2: (np.int16, np.uint16), 4: (np.int8, np.uint8)}

Three = Callable[[Array, Array, Array], Array]
# the number of arguments, and the function of one lane's numbers, whose sums have wrapped already
DPX: dict[str, tuple[int, Three]] = {
    "__vimax3": (3, lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "__vimin3": (3, lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "__viaddmax": (3, lambda a, b, c: np.maximum(a + b, c)),
    "__viaddmin": (3, lambda a, b, c: np.minimum(a + b, c)),
    "__vimax": (2, lambda a, b, _: np.maximum(a, b)),
    "__vimin": (2, lambda a, b, _: np.minimum(a, b)),
}
KINDS = {"s32": np.int32, "u32": np.uint32, "s16x2": np.int16, "u16x2": np.uint16}


def _dpx_names() -> list[tuple[str, str, str]]:
    names = []
    for stem, (count, _) in DPX.items():
        for kind in KINDS:
            if count == 3:
                names.append((stem, kind, ""))
            if kind[0] == "s":
                names.append((stem, kind, "_relu"))
    return names


def _source() -> str:
    rows = [f"{stem}{width}(a, b)" for stem in (*BINARY, *SUMS) for width in LANES]
    rows += [f"{stem}{width}(a)" for stem in UNARY for width in LANES]
    lines = "".join(f"    out[{k} * n + i] = {row};\n" for k, row in enumerate(rows))
    dpx = "".join(
        f"    out[{k} * n + i] = {stem}_{kind}{tail}(a, b{', c' if DPX[stem][0] == 3 else ''});\n"
        for k, (stem, kind, tail) in enumerate(_dpx_names())
    )
    return (
        f"""
extern "C" __global__ void packed(const unsigned* pa, const unsigned* pb, unsigned* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned a = pa[i], b = pb[i];
{lines}}}
extern "C" __global__ void dpx(const unsigned* pa, const unsigned* pb, const unsigned* pc, unsigned* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned a = pa[i], b = pb[i], c = pc[i];
{dpx}}}
"""
        + r"""
extern "C" __global__ void bounds(const unsigned* pa, const unsigned* pb, unsigned* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned a = pa[i], b = pb[i];
    bool high, low;
#define WORD(k, f) out[k * n + i] = f(a, b, &low); out[(k + 8) * n + i] = low;
#define HALVES(k, f) out[k * n + i] = f(a, b, &high, &low); out[(k + 8) * n + i] = low | high << 1;
    WORD(0, __vibmax_s32) WORD(1, __vibmax_u32) WORD(2, __vibmin_s32) WORD(3, __vibmin_u32)
    HALVES(4, __vibmax_s16x2) HALVES(5, __vibmax_u16x2) HALVES(6, __vibmin_s16x2) HALVES(7, __vibmin_u16x2)
}
template <class T> __device__ T as(unsigned v) { T t; memcpy(&t, &v, sizeof t); return t; }
extern "C" __global__ void dots(const unsigned* pa, const unsigned* pb, const unsigned* pc, unsigned* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned a = pa[i], b = pb[i], c = pc[i];
    unsigned all[] = {
        (unsigned)__dp4a((int)a, (int)b, (int)c), __dp4a(a, b, c),
        (unsigned)__dp4a(as<char4>(a), as<char4>(b), (int)c), __dp4a(as<uchar4>(a), as<uchar4>(b), c),
        (unsigned)__dp2a_lo((int)a, (int)b, (int)c), __dp2a_lo(a, b, c),
        (unsigned)__dp2a_lo(as<short2>(a), as<char4>(b), (int)c), __dp2a_lo(as<ushort2>(a), as<uchar4>(b), c),
        (unsigned)__dp2a_hi((int)a, (int)b, (int)c), __dp2a_hi(a, b, c),
        (unsigned)__dp2a_hi(as<short2>(a), as<char4>(b), (int)c), __dp2a_hi(as<ushort2>(a), as<uchar4>(b), c)};
    for (int k = 0; k < 12; ++k) out[k * n + i] = all[k];
}
"""
    )


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(_source())


def _words() -> list[Array]:
    """Returns three arrays with every pair of bytes, every pair of halfwords near a boundary, and random words."""
    bytes_a, bytes_b = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    edges = np.array([0, 1, 2, 3, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF, 0x80, 0xFF, 0x100], np.uint16)
    half_a, half_b = np.meshgrid(np.repeat(edges, 2), edges)
    random = np.random.default_rng(0).integers(0, 2**32, (3, 20_000), dtype=np.uint32)
    a = np.concatenate([bytes_a.ravel().view(np.uint32), half_a.ravel().view(np.uint32), random[0]])
    b = np.concatenate([bytes_b.ravel().view(np.uint32), half_b.ravel().view(np.uint32), random[1]])
    c = np.concatenate([np.roll(a[:-20_000], 7), random[2]])
    return [a, b, c]


def _run(kernels: Kernels, name: str, rows: int, *words: Array) -> Array:
    n = len(words[0])
    out = np.zeros((rows, n), np.uint32)
    kernels(name, (n + 255) // 256, 256, *words, out, np.int32(n))
    return out


def _lanes(words: Array, dtype: type) -> Array:
    return words.view(dtype).astype(np.int64)


def test_simd_intrinsics_equal_their_definition(kernels: Kernels) -> None:
    a, b, _ = _words()
    rows = iter(_run(kernels, "packed", 2 * (len(BINARY) + len(SUMS) + len(UNARY)), a, b))
    for group in (BINARY, SUMS, UNARY):
        for stem in group:
            for width, kinds in LANES.items():
                got = next(rows)
                if group is SUMS:
                    kind = kinds[SUMS[stem] == "u"]
                    difference = np.abs(_lanes(a, kind) - _lanes(b, kind))
                    expected = difference.reshape(-1, width).sum(1).astype(np.uint32)
                else:
                    sign, function = group[stem]
                    kind = kinds[sign == "u"]
                    lanes = function(_lanes(a, kind), _lanes(b, kind), np.iinfo(kind))
                    expected = lanes.astype(kinds[1]).view(np.uint32)
                np.testing.assert_array_equal(got, expected, err_msg=f"{stem}{width}")


def test_dpx_functions_equal_their_definition(kernels: Kernels) -> None:
    words = _words()
    names = _dpx_names()
    for got, (stem, kind, tail) in zip(_run(kernels, "dpx", len(names), *words), names, strict=True):
        a, b, c = (word.view(KINDS[kind]) for word in words)
        expected = DPX[stem][1](a, b, c)
        if tail:
            expected = np.maximum(expected, 0)
        np.testing.assert_array_equal(got, expected.view(np.uint32), err_msg=f"{stem}_{kind}{tail}")
    bounds = _run(kernels, "bounds", 16, *words[:2])
    for k, kind in enumerate(["s32", "u32", "s32", "u32", "s16x2", "u16x2", "s16x2", "u16x2"]):
        a, b = (word.view(KINDS[kind]) for word in words[:2])
        first = a <= b if k & 2 else a >= b
        np.testing.assert_array_equal(bounds[k], np.where(first, a, b).view(np.uint32), err_msg=f"{k} {kind}")
        flags = first.astype(np.uint32)
        if kind.endswith("x2"):
            flags = flags[::2] | flags[1::2] << 1
        np.testing.assert_array_equal(bounds[k + 8], flags, err_msg=f"{k} {kind} predicate")


def test_dot_products_of_packed_numbers_wrap(kernels: Kernels) -> None:
    a, b, c = _words()
    got = _run(kernels, "dots", 12, a, b, c)
    for k in range(12):
        start = {0: 0, 1: 0, 2: 2}[k // 4]
        wide, narrow = ((np.uint16, np.uint8) if k % 2 else (np.int16, np.int8)) if k >= 4 else (None, None)
        eight = np.uint8 if k % 2 else np.int8
        left = _lanes(a, eight).reshape(-1, 4) if wide is None else _lanes(a, wide).reshape(-1, 2)
        right = _lanes(b, narrow or eight).reshape(-1, 4)[:, start : start + left.shape[1]]
        expected = ((left * right).sum(1) + c).astype(np.uint32)
        np.testing.assert_array_equal(got[k], expected, err_msg=str(k))
