"""Arrays of the tests of graphs."""

from __future__ import annotations

import numpy as np

import hearth

N = 64
SIZE = np.int32(N)


def ramp(gpu: hearth.Device, start: int = 0) -> hearth.DeviceArray:
    """Returns an array of the numbers from `start` to `start + N - 1`."""
    return gpu.asarray(np.arange(start, start + N, dtype=np.uint32))


def mixed(x: np.ndarray, y: np.ndarray, times: int = 1) -> np.ndarray:
    """Computes the result of `mix` on the host."""
    y = y.copy()
    for _ in range(times):
        y = (3 * y.astype(np.uint64) + x).astype(np.uint32)
    return y
