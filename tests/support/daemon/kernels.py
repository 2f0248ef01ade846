"""Kernels that several tests use, and one that runs until it is released."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import hearth
from hearth_proto.v1 import commands_pb2
from tests.support.client.internals import connection_of, number_of

COMMON = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void add_one(int* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1;
}
// y[i] = 3 * y[i] + x[i]: neither commutes nor cancels, so every misplaced launch shows.
extern "C" __global__ void mix(const unsigned* x, unsigned* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 3u * y[i] + x[i];
}
extern "C" __global__ void spin(long long nanoseconds) {
    long long start = clock64();
    while (clock64() - start < nanoseconds) {}
}
"""

COOPERATIVE = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
// Each round reads what other blocks wrote in the one before.
extern "C" __global__ void rounds(int* a, int* b, int n, int count) {
    cg::grid_group grid = cg::this_grid();
    int step = gridDim.x * blockDim.x;
    for (int round = 0; round < count; ++round) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) b[i] = 3 * a[(i + 37) % n] + 1;
        grid.sync();
        int* other = a; a = b; b = other;
    }
}
extern "C" __global__ void meet(int* out) {
    extern __shared__ int mine[];
    mine[threadIdx.x] = blockIdx.x + 1;
    cg::this_grid().sync();
    if (threadIdx.x == 0) out[blockIdx.x] = mine[blockDim.x - 1];
}
"""

GATE = r"""
__device__ volatile int gate, begun;
extern "C" __global__ void hold(int* after) { begun = 1; while (!gate) {} if (after) *after += 1; }
"""


def described(module: Any) -> commands_pb2.ModuleResult:
    """Returns the daemon's description of a module: whether it came from the cache, the duration of its compile, and
    its log."""
    command = commands_pb2.Command()
    command.describe_module.module = number_of(module)
    return connection_of(module).call(command).module


def unload(module: Any) -> None:
    """Makes the daemon unload a module that the client still refers to."""
    command = commands_pb2.Command()
    command.unload_module.module = number_of(module)
    connection_of(module).submit(command)


class Gate:
    """A kernel that runs until `open` is called. The variable that the kernel polls is not a kernel argument, so that a
    write to it does not wait for the kernel."""

    def __init__(self, gpu: hearth.Device) -> None:
        self._gpu = gpu
        self._module = gpu.RawModule(code=GATE)
        self._kernel = self._module.get_function("hold")
        self._gate, self._begun = (self._module.get_global(name, np.int32) for name in ("gate", "begun"))
        self._side = gpu.stream()
        # Resources that the first use creates (such as staging memory) could wait for running kernels, so they are
        # created now.
        self._gate.set(np.zeros(1, np.int32), stream=self._side)
        self._side.synchronize()

    def hold(self, after: hearth.DeviceArray | None = None, stream: hearth.Stream | None = None) -> None:
        """Launches the kernel, which adds one to `after` when it ends. The timeout ends the kernel if the test fails
        first."""
        argument = np.uint64(0) if after is None else after
        self._kernel((1,), (1,), (argument,), stream=stream, timeout=60)

    @property
    def begun(self) -> bool:
        """True if the kernel has started on the device."""
        return bool(self._begun.get(stream=self._side)[0])

    def open(self) -> None:
        self._gate.set(np.ones(1, np.int32), stream=self._side)
        self._side.synchronize()

    def close(self) -> None:
        """Makes later calls of `hold` wait for the next `open`; no held kernel may be running."""
        self._gate.set(np.zeros(1, np.int32), stream=self._side)
        self._side.synchronize()


@contextlib.contextmanager
def gated(gpu: hearth.Device) -> Iterator[Gate]:
    """Yields a gate, which is always opened at the end."""
    gate = Gate(gpu)
    try:
        yield gate
    finally:
        with contextlib.suppress(hearth.HearthError):  # the error of an earlier command may be raised here
            gate.open()
        with contextlib.suppress(hearth.HearthError):
            gpu.synchronize()


def common(gpu: hearth.Device, name: str) -> hearth.Function:
    """Returns a kernel of `COMMON`."""
    return gpu.RawModule(code=COMMON).get_function(name)


def saxpy_works(gpu: hearth.Device) -> None:
    """Checks that the device runs a kernel and returns correct results."""
    x = gpu.asarray(np.arange(1000, dtype=np.float32))
    y = gpu.ones(1000, np.float32)
    common(gpu, "saxpy")((4,), (256,), (np.float32(2), x, y, np.int32(1000)))
    np.testing.assert_array_equal(y.get(), 2 * np.arange(1000, dtype=np.float32) + 1)
