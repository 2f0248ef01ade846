"""Kernels, their parameters and their geometry."""

from __future__ import annotations

import struct
import threading

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.module import CpuModule
from hearthd.device.cpu.toolchain import find_toolchain
from tests.support.cpu.kernels import Kernels, pack

SOURCE = r"""
#include <cuda_runtime.h>
#include <cstdint>
struct Pair { char tag; double value; };
namespace inner {
__device__ int twice(int v) { return 2 * v; }
template <class T, int N> __global__ void scale(T* data, T by) { data[threadIdx.x] = data[threadIdx.x] * by + N; }
__global__ void plain(int* out) { out[0] = twice(21); }
__constant__ int level = 5;
}
extern "C" __global__ void saxpy(float a, const float* __restrict__ x, float* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
__device__ unsigned flat() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
extern "C" {
__global__ void where(unsigned* out) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned* mine = out + 12 * (block * blockDim.x * blockDim.y * blockDim.z + flat());
    mine[0] = threadIdx.x; mine[1] = threadIdx.y; mine[2] = threadIdx.z;
    mine[3] = blockIdx.x; mine[4] = blockIdx.y; mine[5] = blockIdx.z;
    mine[6] = blockDim.x; mine[7] = blockDim.y; mine[8] = blockDim.z;
    mine[9] = gridDim.x; mine[10] = gridDim.y; mine[11] = gridDim.z;
}
__global__ void mixed(char c, double d, short s, float4 v, Pair p, float3 t, bool flag, const __grid_constant__ dim3 g,
                      double* out) {
    double all[] = {double(c), d, double(s), v.x, v.w, double(p.tag), p.value, t.z, double(flag), double(g.y)};
    for (int i = 0; i < 10; ++i) out[i] = all[i];
}
__global__ void nothing() {}
__global__ void nothing_either(void) {}
static __global__ void __launch_bounds__(2 * 64, 2) bounded(int* out) { out[threadIdx.x] = blockDim.x; }
__constant__ float coefficients[4] = {1, 2, 3, 4};
__device__ int counter, table[3][2] = {{1, 2}, {3, 4}, {5, 6}};
}
extern "C" __constant__ double lone;
__device__ float (*chosen)(float) = sqrtf;
extern "C" __global__ void evaluate(float* x) {
    x[threadIdx.x] = coefficients[threadIdx.x] * chosen(x[threadIdx.x]) + lone;
}
extern "C" __global__ void count() { atomicAdd(&counter, 1); }
extern "C" __global__ void local_class(int* out) {
    struct Local { __device__ static int get() { return threadIdx.x; } };
    auto lambda = [](int v) { return v + threadIdx.x; };
    out[threadIdx.x] = lambda(Local::get());
}
extern "C" __global__ void lambdas(int* out) {
    auto f = [=] __device__(int v) { return v * 10 + threadIdx.x; };
    out[threadIdx.x] = f(blockDim.x);
}
extern "C" __global__ void recurse(int* out);
__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
extern "C" __global__ void recurse(int* out) { out[threadIdx.x] = fib(threadIdx.x); }
template <typename T> __global__ void special(T* out) { out[0] = 1; }
template <> __global__ void special<double>(double* out) { out[0] = 2; }
template __global__ void special<int>(int*);
extern "C" __global__ void div(int* q, int a, int b) { q[0] = a / b; }
"""
NAMES = [
    "inner::scale<float, 3>", "inner::scale<int, -1>", "inner::plain", "special<double>", "special<int>",
    "&inner::level", "inner::level", "&counter",
]  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE, names=NAMES)


def test_saxpy(kernels: Kernels) -> None:
    n = 100_003
    x, y = np.random.default_rng(1).random((2, n), dtype=np.float32)
    expected = np.float32(2.5) * x + y
    kernels("saxpy", (n + 255) // 256, 256, np.float32(2.5), x, y, np.int32(n))
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_every_thread_sees_its_indices(kernels: Kernels) -> None:
    grid, block = (3, 2, 2), (4, 3, 2)
    out = np.zeros((12 * 24, 12), np.uint32)
    kernels("where", grid, block, out)
    expected = [
        (tx, ty, tz, bx, by, bz, *block, *grid)
        for bz in range(2) for by in range(2) for bx in range(3)
        for tz in range(2) for ty in range(3) for tx in range(4)
    ]  # fmt: skip
    np.testing.assert_array_equal(out, expected)


def test_parameters_follow_c_layout(kernels: Kernels) -> None:
    function = kernels.module.function("mixed")
    assert function.parameters == (
        (0, 1), (8, 8), (16, 2), (32, 16), (48, 16), (64, 12), (76, 1), (80, 12), (96, 8)
    )  # fmt: skip
    out = np.zeros(10)
    pair = (struct.pack("=b7xd", 7, 8.5), 8)
    vector = (struct.pack("=4f", 1, 2, 3, 4), 16)
    triple = (struct.pack("=3f", 5, 6, 9), 4)
    dims = (struct.pack("=3I", 1, 44, 1), 4)
    kernels("mixed", 1, 1, np.int8(-3), np.float64(1.5), np.int16(-9), vector, pair, triple, np.bool_(True), dims, out)
    np.testing.assert_array_equal(out, [-3, 1.5, -9, 1, 4, 7, 8.5, 9, 1, 44])


def test_kernels_without_parameters(kernels: Kernels) -> None:
    assert kernels.module.function("nothing").parameters == ()
    kernels("nothing", 5, 7)
    kernels("nothing_either", 5, 7)


def test_templates_by_name_expression(kernels: Kernels) -> None:
    data = np.arange(4, dtype=np.float32)
    kernels("inner::scale<float, 3>", 1, 4, data, np.float32(2))
    np.testing.assert_array_equal(data, [3, 5, 7, 9])
    whole = np.arange(4, dtype=np.int32)
    kernels("inner::scale<int, -1>", 1, 4, whole, np.int32(10))
    np.testing.assert_array_equal(whole, [-1, 9, 19, 29])
    kernels("inner::plain", 1, 1, whole)
    assert whole[0] == 42
    kernels("special<int>", 1, 1, whole)
    assert whole[0] == 1
    double = np.zeros(1)
    kernels("special<double>", 1, 1, double)
    assert double[0] == 2


def test_names_that_are_not_exported_are_refused_with_a_list(kernels: Kernels) -> None:
    with pytest.raises(Refusal, match="saxpy") as caught:
        kernels.module.function("plain")
    assert caught.value.reason is Reason.FUNCTION_NOT_FOUND
    with pytest.raises(Refusal, match="coefficients") as caught:
        kernels.module.global_("nope")
    assert caught.value.reason is Reason.GLOBAL_NOT_FOUND


def test_globals_by_name(kernels: Kernels) -> None:
    import ctypes

    module = kernels.module
    address, size = module.global_("coefficients")
    assert size == 16
    ctypes.memmove(address, np.array([10, 20, 30, 40], np.float32).ctypes.data, 16)
    lone, size = module.global_("lone")
    ctypes.memmove(lone, struct.pack("=d", 0.5), 8)
    x = np.array([1, 4, 9, 16], np.float32)
    kernels("evaluate", 1, 4, x)
    np.testing.assert_array_equal(x, [10.5, 40.5, 90.5, 160.5])
    table, size = module.global_("table")
    assert size == 24 and list((ctypes.c_int * 6).from_address(table)) == [1, 2, 3, 4, 5, 6]
    level, size = module.global_("&inner::level")
    assert (level, size) == module.global_("inner::level") and ctypes.c_int.from_address(level).value == 5
    counter, _ = module.global_("counter")
    before = ctypes.c_int.from_address(counter).value
    kernels("count", 100, 100)
    assert ctypes.c_int.from_address(counter).value == before + 10_000


@pytest.mark.parametrize("name", ["exp", "min", "y1", "main"])
def test_kernels_may_have_the_names_of_library_functions(kernels: Kernels, name: str) -> None:
    out = np.zeros(1, np.int32)
    kernels("div", 1, 1, out, np.int32(84), np.int32(2))
    assert out[0] == 42
    other = Kernels(f'extern "C" __global__ void {name}(int* out) {{ out[0] = expf(0.0f) + min(3, 4); }}')
    other(name, 1, 1, out)
    assert out[0] == 4


def test_launch_bounds(kernels: Kernels) -> None:
    assert kernels.module.function("bounded").attributes.max_threads_per_block == 128
    assert kernels.module.function("saxpy").attributes.max_threads_per_block == 1024
    with pytest.raises(Refusal) as caught:
        kernels("bounded", 1, 129, np.zeros(200, np.int32))
    assert caught.value.reason is Reason.LAUNCH_INVALID


@pytest.mark.parametrize("grid, block", [((0, 1, 1), (1, 1, 1)), ((1, 1, 1), (0, 1, 1)), ((1, 1, 1), (32, 33, 1))])
def test_impossible_geometry_is_refused(kernels: Kernels, grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    with pytest.raises(Refusal) as caught:
        kernels("nothing", grid, block)
    assert caught.value.reason is Reason.LAUNCH_INVALID


def test_too_few_parameters_are_refused(kernels: Kernels) -> None:
    with pytest.raises(Refusal) as caught:
        kernels.module.function("saxpy").launch((1, 1, 1), (1, 1, 1), 0, b"\0" * 8)
    assert caught.value.reason is Reason.LAUNCH_INVALID


def test_builtins_in_local_classes_and_lambdas(kernels: Kernels) -> None:
    out = np.zeros(8, np.int32)
    kernels("local_class", 1, 8, out)
    np.testing.assert_array_equal(out, 2 * np.arange(8))
    kernels("lambdas", 1, 8, out)
    np.testing.assert_array_equal(out, 80 + np.arange(8))
    kernels("recurse", 1, 8, out)
    np.testing.assert_array_equal(out, [0, 1, 1, 2, 3, 5, 8, 13])


def test_many_threads_launch_concurrently(kernels: Kernels) -> None:
    function = kernels.module.function("saxpy")
    failures: list[int] = []

    def work(seed: int) -> None:
        n = 5000 + seed
        x = np.random.default_rng(seed).random(n, dtype=np.float32)
        for _ in range(30):
            y = np.ones(n, np.float32)
            function.launch(((n + 63) // 64, 1, 1), (64, 1, 1), 0, pack(np.float32(seed), x, y, np.int32(n)))
            if not np.allclose(y, seed * x + 1):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_modules_with_the_same_symbols_are_independent() -> None:
    text = """
    template <class T> __device__ T* cell() { static __device__ T value; return &value; }
    __device__ int state = %d;
    template <int N> __global__ void tile(int* out) { __shared__ int s[N + %d]; s[threadIdx.x] = state;
        __syncthreads(); out[0] = s[0] + sizeof(s) / 4; }
    extern "C" __global__ void get(int* out) { out[0] = state; state += 1; }
    """
    first, second = (Kernels(text % (value, value), names=["tile<1>"]) for value in (100, 200))
    out = np.zeros(1, np.int32)
    for module, value in ((first, 100), (second, 200)):
        module("get", 1, 1, out)
        assert out[0] == value
        module("tile<1>", 1, 1, out)
        assert out[0] == value + 1 + value + 1


def test_modules_are_unloaded_and_loaded_again(kernels: Kernels) -> None:
    out = np.zeros(8, np.int32)
    for _ in range(20):
        module = CpuModule(kernels.image, find_toolchain())
        module.function("recurse").launch((1, 1, 1), (8, 1, 1), 0, pack(out))
        del module  # unloads the code
    assert out[7] == 13


def test_invalid_image_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        CpuModule(b"\x7fELF nonsense", find_toolchain())
    assert caught.value.reason is Reason.MODULE_INVALID
