"""The kernels that both sides of a row run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""

WILD = r"""
extern "C" __global__ void wild(long long address) { *(volatile int*)address = 1; }
"""

PACE = r"""
extern "C" __global__ void pace(long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while ((long long)(now - begin) < nanoseconds);
}
"""
PACE_NS = 10_000


def paced_on(library: Any) -> Callable[..., None]:
    """Returns a launch of a kernel that takes 10 us on a GPU, longer than it takes to launch it."""
    import numpy as np

    return functools.partial(library.RawKernel(PACE, "pace"), (1,), (1,), (np.int64(PACE_NS),))


def saxpy_on(library: Any) -> Callable[..., None]:
    """Returns a function that launches saxpy with one block of 128 threads; `library` is a hearth.Device or CuPy."""
    import numpy as np

    kernel = library.RawKernel(SAXPY, "saxpy")
    x, y = library.zeros(128, np.float32), library.zeros(128, np.float32)
    return functools.partial(kernel, (1,), (128,), (np.float32(2), x, y, np.int32(128)))
