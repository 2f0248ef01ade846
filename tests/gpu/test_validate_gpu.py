"""mode="validate" on a GPU: a module that was compiled with -fsanitize=address reports reads outside of its arrays.

Requires HEARTH_TEST_BACKEND=cuda.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, on_gpu

pytestmark = [pytest.mark.gpu, on_gpu]

SANITIZE = ("-fsanitize=address",)

CODE = r"""
__device__ int launches;
__constant__ float factor = 2;

extern "C" __global__ void read_at(const int* __restrict__ x, long long at, int* out) { *out = x[at]; }

extern "C" __global__ void read_wide(const float4* x, long long at, float4* out) { *out = x[at]; }

extern "C" __global__ void add_at(int* x, long long at) { atomicAdd(x + at, 1); }

extern "C" __global__ void stencil(const float* x, float* y, int n) {
    __shared__ float tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] * factor : 0;
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&launches, 1);
    if (i < n) y[i] = tile[threadIdx.x] + x[i + 1];   // the last thread reads one element too many
}

extern "C" __global__ void generic(const int* x, int n, int* out) {
    __shared__ int own[4];
    if (threadIdx.x < 4) own[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const int* from = threadIdx.x & 1 ? (const int*)own : x;
    out[threadIdx.x] = from[threadIdx.x & 3];
    if (n < 0) out[0] = clock();
}

struct Node { int value; const int* next; };
template <typename T> __global__ void copy(const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
"""


@pytest.fixture(scope="module")
def module(gpu: hearth.Device) -> hearth.RawModule:
    return gpu.RawModule(code=CODE, options=SANITIZE, name_expressions=("copy<double>", "copy<char>"))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hearth.Device]:
    daemon = DaemonProcess(tmp_path_factory.mktemp("compiled"), {}, 1)
    try:
        with daemon.connect() as node:
            yield node.device(0)
    finally:
        daemon.stop()
        daemon.remove()


def error_of(gpu: hearth.Device) -> hearth.HearthError:
    with pytest.raises(hearth.HearthError) as caught:
        gpu.synchronize()
    return caught.value


@pytest.mark.parametrize(("at", "words"), [(16, "0 bytes after"), (-1, "4 bytes before"), (500, "1936 bytes after")])
def test_read_outside_of_an_array(gpu: hearth.Device, module: hearth.RawModule, at: int, words: str) -> None:
    x, out = gpu.ones(16, np.int32), gpu.zeros(1, np.int32)
    kernel = module.get_function("read_at")
    kernel(1, 1, (x, np.int64(15), out), mode="validate")
    gpu.synchronize()
    assert out.get() == 1
    kernel(1, 1, (x, np.int64(at), out), mode="validate")
    error = error_of(gpu)
    assert error.reason == "OUT_OF_BOUNDS_READ" and words in error.message and "argument 0" in error.message
    assert error.details["block"] == "0, 0, 0"
    assert (x.get() == 1).all()


def test_vector_that_begins_inside(gpu: hearth.Device, module: hearth.RawModule) -> None:
    x, out = gpu.zeros(6, np.float32), gpu.zeros(4, np.float32)
    module.get_function("read_wide")(1, 1, (x, np.int64(0), out), mode="validate")
    gpu.synchronize()
    module.get_function("read_wide")(1, 1, (x, np.int64(1), out), mode="validate")
    assert error_of(gpu).reason == "OUT_OF_BOUNDS_READ"


def test_atomic_outside_of_an_array(gpu: hearth.Device, module: hearth.RawModule) -> None:
    x = gpu.zeros(16, np.int32)
    module.get_function("add_at")(1, 1, (x, np.int64(15)), mode="validate")
    gpu.synchronize()
    assert x.get()[15] == 1
    module.get_function("add_at")(1, 1, (x, np.int64(16)), mode="validate")
    assert error_of(gpu).reason == "OUT_OF_BOUNDS_WRITE"


def test_block_of_the_access_is_named(gpu: hearth.Device, module: hearth.RawModule) -> None:
    n = 1000
    x, y = gpu.ones(n, np.float32), gpu.zeros(n, np.float32)
    module.get_function("stencil")(4, 256, (x, y, np.int32(n)), mode="validate")
    error = error_of(gpu)
    assert error.reason == "OUT_OF_BOUNDS_READ" and error.details["block"] == "3, 0, 0"
    assert (y.get()[:-1] == 3).all()
    module.get_function("stencil")(4, 256, (x, y, np.int32(n - 1)), mode="validate")
    gpu.synchronize()


def test_shared_memory_and_template_kernels(gpu: hearth.Device, module: hearth.RawModule) -> None:
    x, out = gpu.full(4, 9, np.int32), gpu.zeros(32, np.int32)
    module.get_function("generic")(1, 32, (x, np.int32(1), out), mode="validate")
    gpu.synchronize()
    assert out.get()[:4].tolist() == [9, 1, 9, 3]
    for name, dtype in (("copy<double>", np.float64), ("copy<char>", np.int8)):
        a, b = gpu.ones(1001, dtype), gpu.zeros(1001, dtype)
        module.get_function(name)(4, 256, (a, b, np.int32(1001)), mode="validate")
        gpu.synchronize()
        assert (b.get() == 1).all()
        module.get_function(name)(4, 256, (a, b, np.int32(1002)), mode="validate")
        assert error_of(gpu).reason == "OUT_OF_BOUNDS_WRITE"


def test_ordinary_launches_of_the_module_are_right(gpu: hearth.Device, module: hearth.RawModule) -> None:
    n = 100_000
    x, y = gpu.ones(n + 1, np.float32), gpu.zeros(n, np.float32)
    module.get_function("stencil")(-(-n // 256), 256, (x, y, np.int32(n)))
    assert (y.get() == 3).all()


def test_without_the_option_only_writes_are_found(gpu: hearth.Device) -> None:
    plain: Any = gpu.RawModule(code=CODE, name_expressions=("copy<double>",))
    x, out = gpu.ones(16, np.int32), gpu.zeros(1, np.int32)
    plain.get_function("read_at")(1, 1, (x, np.int64(16), out), mode="validate")
    gpu.synchronize()
    plain.get_function("add_at")(1, 1, (x, np.int64(16)), mode="validate")
    assert error_of(gpu).reason == "OUT_OF_BOUNDS_WRITE"
