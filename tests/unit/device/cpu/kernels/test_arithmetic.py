"""Arithmetic that faults or is undefined for a host compiler, but has a result in a kernel."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from tests.support.cpu.kernels import Kernels
from tests.support.folders import ROOT

on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="divisions by zero fault on x86 alone")

TYPES = {
    "signed char": np.int8, "unsigned char": np.uint8, "short": np.int16, "unsigned short": np.uint16,
    "int": np.int32, "unsigned": np.uint32, "long long": np.int64, "unsigned long long": np.uint64,
}  # fmt: skip

SOURCE = "\n".join(
    f"""
extern "C" __global__ void divide_{dtype.__name__}(const {name}* a, const {name}* b, {name}* q, {name}* r) {{
    q[threadIdx.x] = a[threadIdx.x] / b[threadIdx.x];
    r[threadIdx.x] = a[threadIdx.x] % b[threadIdx.x];
}}
extern "C" __global__ void in_fibers_{dtype.__name__}(const {name}* a, const {name}* b, {name}* q, {name}* r) {{
    {name} x = a[threadIdx.x], y = b[threadIdx.x];
    __syncthreads();
    q[threadIdx.x] = x / y;
    __syncthreads();
    r[threadIdx.x] = x % y;
}}
"""
    for name, dtype in TYPES.items()
)

CONVERSIONS = r"""
extern "C" __global__ void from_float(const float* x, int* i, unsigned* u, long long* l, unsigned long long* ul) {
    int t = threadIdx.x;
    i[t] = __float2int_rz(x[t]); u[t] = __float2uint_rz(x[t]); l[t] = __float2ll_rz(x[t]); ul[t] = __float2ull_rz(x[t]);
}
extern "C" __global__ void from_double(const double* x, int* i, unsigned* u, long long* l, unsigned long long* ul) {
    int t = threadIdx.x;
    i[t] = __double2int_rz(x[t]); u[t] = __double2uint_rz(x[t]);
    l[t] = __double2ll_rz(x[t]); ul[t] = __double2ull_rz(x[t]);
}
extern "C" __global__ void rounding(const float* x, int* out) {
    int t = threadIdx.x;
    out[4 * t] = __float2int_rn(x[t]); out[4 * t + 1] = __float2int_rz(x[t]);
    out[4 * t + 2] = __float2int_ru(x[t]); out[4 * t + 3] = __float2int_rd(x[t]);
}
"""


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE + CONVERSIONS)


@on_x86
@pytest.mark.parametrize("form", ["divide", "in_fibers"])
@pytest.mark.parametrize("dtype", TYPES.values(), ids=lambda dtype: dtype.__name__)
def test_division_by_zero_has_a_result(kernels: Kernels, dtype: type[np.integer], form: str) -> None:
    # CUDA leaves the result undefined; NVIDIA's GPUs set every bit of the quotient.
    a = np.array([7, 0, 100, 9, 1], dtype)
    b = np.array([0, 0, 7, 0, 1], dtype)
    q, r = np.zeros_like(a), np.zeros_like(a)
    kernels(f"{form}_{dtype.__name__}", 3, 5, a, b, q, r)
    # clang divides values that fit into 32 bits in 32 bits: then only the low half is set
    if np.dtype(dtype).itemsize >= 4:
        np.testing.assert_array_equal(q.astype(np.uint32), [2**32 - 1, 2**32 - 1, 14, 2**32 - 1, 1])
        np.testing.assert_array_equal(r, [7, 0, 2, 9, 0])
    else:  # the division is done in the promoted type or in the type itself, and the quotient is truncated
        assert [q[2], r[2], q[4], r[4]] == [14, 2, 1, 0]


@on_x86
@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=["int32", "int64"])
def test_the_lowest_number_divided_by_minus_one_wraps(kernels: Kernels, dtype: type[np.signedinteger]) -> None:
    lowest = np.iinfo(dtype).min
    a, b = np.array([lowest, lowest, 5], dtype), np.array([-1, 1, -1], dtype)
    q, r = np.zeros_like(a), np.ones_like(a)
    kernels(f"divide_{dtype.__name__}", 1, 3, a, b, q, r)
    np.testing.assert_array_equal(q, [lowest, lowest, -5])
    np.testing.assert_array_equal(r, 0)


@on_x86
def test_other_arithmetic_faults_are_left_alone() -> None:
    script = """
    import ctypes, os, signal
    import numpy as np
    from tests.support.cpu.kernels import Kernels
    kernels = Kernels('extern "C" __global__ void k(int* x) { x[0] = x[1] / x[2]; }')
    x = np.array([5, 1, 0], np.int32)
    kernels("k", 1, 1, x)
    print("divided", x[0], flush=True)
    os.kill(os.getpid(), signal.SIGFPE)  # sent from outside, and as deadly as ever
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False,
        cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "divided -1\n", done.stderr
    assert done.returncode == -signal.SIGFPE


# Results of PTX's cvt.rzi.sat: values out of range saturate; a NaN gives 0, or only the top bit set if either side has
# 64 bits.
FLOATS = [1.9, -1.9, 3e9, -3e9, 1e30, -1e30, np.inf, -np.inf, np.nan]
INT, UINT, LONG, ULONG = np.iinfo(np.int32), np.iinfo(np.uint32), np.iinfo(np.int64), np.iinfo(np.uint64)


@pytest.mark.parametrize("source", [np.float32, np.float64], ids=["float", "double"])
def test_conversions_saturate(kernels: Kernels, source: type[np.floating]) -> None:
    x = np.array(FLOATS, source)
    i, u = np.zeros(9, np.int32), np.zeros(9, np.uint32)
    ll, ull = np.zeros(9, np.int64), np.zeros(9, np.uint64)
    kernels("from_float" if source is np.float32 else "from_double", 1, 9, x, i, u, ll, ull)
    wide = source is np.float64
    assert i.tolist() == [1, -1, INT.max, INT.min, INT.max, INT.min, INT.max, INT.min, INT.min if wide else 0]
    assert u.tolist() == [1, 0, 3000000000, 0, UINT.max, 0, UINT.max, 0, 1 << 31 if wide else 0]
    assert ll.tolist() == [1, -1, 3000000000, -3000000000, LONG.max, LONG.min, LONG.max, LONG.min, LONG.min]
    assert ull.tolist() == [1, 0, 3000000000, 0, ULONG.max, 0, ULONG.max, 0, 1 << 63]


def test_the_four_roundings(kernels: Kernels) -> None:
    out = np.zeros(16, np.int32)
    kernels("rounding", 1, 4, np.array([2.5, -2.5, 0.5, 1e10], np.float32), out)
    most = INT.max
    assert out.tolist() == [2, 2, 3, 2, -2, -2, -2, -3, 0, 0, 1, 0, most, most, most, most]
