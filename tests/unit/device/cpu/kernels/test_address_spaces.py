"""Address spaces: a pointer refers to shared, local, constant or global memory, and can be converted to an address in
it."""

from __future__ import annotations

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from tests.support.cpu.kernels import Kernels

SOURCE = r"""
namespace tables { __constant__ float weights[100]; }
__constant__ int first = 1, second = 2;
__device__ int counter;
extern __shared__ float dynamic[];

__device__ unsigned kind(const void* p) {
    return __isShared(p) | __isLocal(p) << 1 | __isConstant(p) << 2 | __isGlobal(p) << 3;
}
template <int N> __device__ float* own_buffer() { __shared__ float buffer[N]; return buffer; }

// Pointers through memory, so that nothing of them is known when the kernel is compiled.
extern "C" __global__ void spaces(int* given, unsigned* out, const void** pointers, int meet) {
    __shared__ int plain[33];
    __shared__ double wide;
    int mine[4] = {(int)threadIdx.x, 0, 0, 0};
    const int at = 16 * (blockIdx.x * blockDim.x + threadIdx.x);
    const void** my = pointers + at;
    const void* all[] = {plain, plain + 32, &wide, own_buffer<8>(), own_buffer<64>() + 63, dynamic, dynamic + 15,
                         mine, mine + 3, tables::weights + 99, &first, &second, given, &counter, out, &my};
    for (int k = 0; k < 16; ++k) my[k] = all[k];
    if (meet) __syncthreads();
    for (int k = 0; k < 16; ++k) out[at + k] = kind(my[k]);
    if (meet) __syncthreads();
}
extern "C" __global__ void windows(int* out, float* given) {
    __shared__ __align__(128) float data[64];
    float local = 3.0f;
    int i = threadIdx.x;
    data[i] = i; dynamic[i] = 100 + i;
    unsigned here = (unsigned)__cvta_generic_to_shared(&data[i]),
        there = (unsigned)__cvta_generic_to_shared(&dynamic[i]);
    __syncthreads();
    float a = *(float*)__cvta_shared_to_generic(here), b = *(float*)__cvta_shared_to_generic(there);
    float c = *(float*)__cvta_global_to_generic(__cvta_generic_to_global(given + i));
    float d = *(float*)__cvta_local_to_generic(__cvta_generic_to_local(&local));
    float e = *(const float*)__cvta_constant_to_generic(__cvta_generic_to_constant(tables::weights));
    int aligned = ((unsigned)__cvta_generic_to_shared(data) % 128 == 0) + 2 * (here
        + 4 == (unsigned)__cvta_generic_to_shared(&data[i] + 1));
    int all[] = {(int)a, (int)b, (int)c, (int)d, (int)e, aligned};
    for (int k = 0; k < 6; ++k) out[6 * i + k] = all[k];
}
extern "C" __global__ void fill(float w) { for (int k = 0; k < 100; ++k) const_cast<float&>(tables::weights[k]) = w; }
"""
SHARED, LOCAL, CONSTANT, GLOBAL = 1, 2, 4, 8
KINDS = [SHARED] * 7 + [LOCAL] * 2 + [CONSTANT] * 3 + [GLOBAL] * 3 + [LOCAL]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE)


@pytest.mark.parametrize("meet", [0, 1])
@pytest.mark.parametrize("grid", [1, 40])
def test_pointer_belongs_to_one_space(kernels: Kernels, meet: int, grid: int) -> None:
    inputs, out, pointers = (
        np.zeros(64, np.int32),
        np.zeros((96 * grid, 16), np.uint32),
        np.zeros((96 * grid, 16), np.uint64),
    )
    kernels("spaces", grid, 96, inputs, out, pointers, np.int32(meet), shared=64)
    np.testing.assert_array_equal(out, np.tile(KINDS, (96 * grid, 1)))


def test_address_within_a_space_converts_back_to_its_pointer(kernels: Kernels) -> None:
    out, inputs = np.zeros((64, 6), np.int32), np.arange(64, dtype=np.float32) + 7
    kernels("fill", 1, 1, np.float32(9))
    kernels("windows", 1, 64, out, inputs, shared=256)
    i = np.arange(64)
    np.testing.assert_array_equal(out, np.stack([i, 100 + i, 7 + i, 0 * i + 3, 0 * i + 9, 0 * i + 3], 1))


@pytest.mark.parametrize("source, feature", [
    ("__global__ void k(const __grid_constant__ int n, int* o) { *o = __isGridConstant(&n); }", "grid constants"),
    ("template <class T> __constant__ T c; __global__ void k(int* o) { *o = __isConstant(&c<int>); }", "__constant__"),
    ("__global__ void k(int* o) { *o = __isClusterShared(o); }", "clusters"),
])  # fmt: skip
def test_space_that_is_not_known_is_refused(source: str, feature: str) -> None:
    with pytest.raises(Refusal) as refused:
        Kernels(source)
    assert refused.value.reason == Reason.UNSUPPORTED
    assert feature in str(refused.value)
