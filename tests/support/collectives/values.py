"""Inputs of collectives for every dtype, the results that NumPy computes from them, and the tolerance for a backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import hearth
from tests.support.daemon.harness import BACKEND

try:
    import ml_dtypes
except ImportError:
    SMALL: list[np.dtype[Any]] = []
    """Float dtypes that NumPy itself does not have."""
    EIGHT: list[np.dtype[Any]] = []
    """Float dtypes of 8 bits."""
else:
    EIGHT = [np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]
    SMALL = [np.dtype(ml_dtypes.bfloat16), *EIGHT]

INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
NUMBERS = [*INTEGERS, *FLOATS, *SMALL]
EVERYTHING = [*NUMBERS, *map(np.dtype, ("bool", "complex64", "complex128", "datetime64[s]", "S5"))]
"""Dtypes for operations that only move data, which accept every dtype."""
OPS = ("sum", "mean", "min", "max", "prod")
ORDERS = [(0, 1), (3, 1), (0, 1, 2), (2, 0, 3), (0, 1, 2, 3), (3, 1, 0, 2)]
N = 15
"""Number of elements from one rank to one other rank. It is odd, so that no dtype's memory is a multiple of an
alignment."""

Arrays = list[hearth.DeviceArray]
Cells = Iterator[tuple[str, hearth.DeviceArray, np.ndarray]]
"""(name, array, expected contents at the end) of each case."""


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype in which the expected values are computed."""
    if dtype.kind in "iu":
        return np.dtype(np.int64 if dtype.kind == "i" else np.uint64)
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def values(dtype: np.dtype[Any], shape: tuple[int, ...], rank: int, op: str = "") -> np.ndarray:
    """Returns a rank's input. Sums and products of reduction inputs are exact in any order, except for integers, which
    wrap."""
    rng = np.random.default_rng([rank, len(dtype.name), *shape])
    if dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    if op == "mean":
        return (rng.integers(-2, 3, shape) * (1 if dtype in EIGHT else 12)).astype(dtype)
    if op == "prod":
        return rng.choice([-2.0, -1.0, 1.0, 2.0], shape).astype(dtype)
    if op:
        return rng.integers(-2, 3, shape).astype(dtype)
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype).reshape(shape)


def reduced(op: str, hosts: Sequence[np.ndarray]) -> np.ndarray:
    dtype = hosts[0].dtype
    if op in ("min", "max"):
        rows = [host.astype(wide(dtype)) for host in hosts]
        return (np.minimum if op == "min" else np.maximum).reduce(rows).astype(dtype)
    with np.errstate(over="ignore"):
        total = (np.multiply if op == "prod" else np.add).reduce([host.astype(wide(dtype)) for host in hosts])
        if op == "mean":
            count = total.dtype.type(len(hosts))
            if dtype.kind in "iu":  # the sum wraps, and the quotient is truncated towards zero
                total = total.astype(dtype).astype(total.dtype)
                total = total // count + ((total < 0) & (total % count != 0)).astype(total.dtype)
            else:
                total = total / count
        return np.asarray(total).astype(dtype)


def same(name: str, array: hearth.DeviceArray, expected: np.ndarray) -> None:
    actual = array.get()
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, name
    if actual.tobytes() == expected.tobytes():
        return
    if expected.dtype.kind in "iubcMS" or BACKEND == "cpu":
        raise AssertionError(f"{name}: {actual.ravel()[:8]} instead of {expected.ravel()[:8]}")
    eps = 2.0 ** -{"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}.get(expected.dtype.name, 2)
    both = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(*both, rtol=4 * eps, atol=4 * eps, err_msg=name)


def up(group: hearth.Group, hosts: Sequence[np.ndarray]) -> Arrays:
    return [gpu.asarray(host) for gpu, host in zip(group.devices, hosts, strict=True)]


def check(cells: Cells) -> None:
    """Compares all cells, after all of their operations have been submitted."""
    for name, array, expected in list(cells):
        same(name, array, expected)


def reducible(group: hearth.Group) -> list[np.dtype[Any]]:
    """Returns the dtypes that this backend reduces: NCCL has no 16-bit integers, and float8 only on some GPUs. Checks
    that every other dtype is refused by name on every device."""
    reduced_dtypes = []
    for dtype in NUMBERS:
        refused = []
        if dtype in EIGHT or dtype.name in ("int16", "uint16"):
            group.all_reduce([gpu.zeros(4, dtype) for gpu in group.devices])
            for gpu in group.devices:
                try:
                    gpu.synchronize()
                except hearth.UnsupportedError as error:
                    assert dtype.name in str(error)
                    refused.append(gpu)
            assert refused in ([], list(group.devices)), dtype
        if not refused:
            reduced_dtypes.append(dtype)
    return reduced_dtypes
