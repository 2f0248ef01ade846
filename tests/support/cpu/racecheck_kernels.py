"""Kernels with and without races in shared memory, compiled with checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hearthd.device.cpu.module import CpuModule
from hearthd.device.cpu.racecheck import Race
from hearthd.device.cpu.toolchain import find_toolchain
from tests.support.cpu.kernels import compile_source, pack

HEADER = r"""
__device__ inline void put(int* place, int value) {
    place[0] = value;  // header line 3
}
"""

SOURCE = r"""
#include <cooperative_groups.h>
#include <cuda/barrier>
#include "put.h"
namespace cg = cooperative_groups;
#define FULL 0xffffffffu

extern "C" __global__ void volatile_reduction(float* x) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t < 32) {
        volatile float* v = s;
        v[t] += v[t + 32]; v[t] += v[t + 16]; v[t] += v[t + 8];  // [reduces]
        v[t] += v[t + 4]; v[t] += v[t + 2]; v[t] += v[t + 1];
    }
    if (t == 0) x[0] = s[0];
}
extern "C" __global__ void mended_reduction(float* x) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t < 32) {
        float mine = s[t] + s[t + 32];
        for (int step = 16; step > 0; step /= 2) {
            s[t] = mine;
            __syncwarp();
            mine += s[t ^ step];
            __syncwarp();
        }
        if (t == 0) x[0] = mine;
    }
}
template <bool Waits> __device__ void block_reduction(float* x) {
    __shared__ float s[256];
    int t = threadIdx.x;
    s[t] = x[t];  // [fills]
    if (Waits) __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (t < step) s[t] += s[t + step];  // [adds]
        __syncthreads();
    }
    if (t == 0) x[0] = s[0];
}
extern "C" __global__ void good_block_reduction(float* x) { block_reduction<true>(x); }
extern "C" __global__ void bad_block_reduction(float* x) { block_reduction<false>(x); }

template <bool Waits> __device__ void rotate(int* x, int rounds) {
    extern __shared__ int line[];
    int t = threadIdx.x, n = blockDim.x;
    for (int i = 0; i < rounds; ++i) {
        line[t] = x[t] + i;  // [writes]
        __syncthreads();
        x[t] = line[(t + 1) % n];  // [reads]
        if (Waits) __syncthreads();
    }
}
extern "C" __global__ void good_rotation(int* x, int rounds) { rotate<true>(x, rounds); }
extern "C" __global__ void bad_rotation(int* x, int rounds) { rotate<false>(x, rounds); }

#define TILE 8
template <bool Waits> __device__ void product(const float* a, const float* b, float* c, int n) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int t = 0; t < n; t += TILE) {
        as[y][x] = a[row * n + t + x];  // [loads a]
        bs[y][x] = b[(t + y) * n + column];  // [loads b]
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += as[y][k] * bs[k][x];  // [multiplies]
        if (Waits) __syncthreads();
    }
    c[row * n + column] = sum;
}
extern "C" __global__ void good_product(const float* a, const float* b, float* c, int n) { product<true>(a, b, c, n); }
extern "C" __global__ void bad_product(const float* a, const float* b, float* c, int n) { product<false>(a, b, c, n); }

extern "C" __global__ void histogram(const int* x, int* out) {
    __shared__ int bins[16];
    int t = threadIdx.x;
    if (t < 16) bins[t] = 0;
    __syncthreads();
    atomicAdd(&bins[x[t] % 16], 1);
    atomicMax(&bins[x[t] % 16], 0);
    __syncthreads();
    if (t < 16) atomicAdd(&out[t], bins[t]);
}
extern "C" __global__ void uncleared_histogram(const int* x, int* out) {
    __shared__ int bins[16];
    int t = threadIdx.x;
    if (t < 16) bins[t] = 0;  // [clears]
    atomicAdd(&bins[x[t] % 16], 1);  // [counts]
    __syncthreads();
    if (t < 16) out[t] = bins[t];
}
extern "C" __global__ void plain_histogram(const int* x, int* out) {
    __shared__ int bins[16];
    int t = threadIdx.x;
    if (t < 16) bins[t] = 0;
    __syncthreads();
    bins[x[t] % 16]++;  // [increments]
    __syncthreads();
    if (t < 16) out[t] = bins[t];
}
extern "C" __global__ void same_flag(const int* x, int* out) {
    __shared__ bool found;
    __shared__ float4 wide;
    int t = threadIdx.x;
    if (t == 0) found = false;
    __syncthreads();
    if (x[t] > 2) found = true;
    wide = make_float4(1, 2, 3, 4);
    __syncthreads();
    out[t] = found + int(wide.w);
}
extern "C" __global__ void other_flag(int* out) {
    __shared__ int last;
    last = threadIdx.x / 2;  // [differs]
    __syncthreads();
    out[threadIdx.x] = last;
}
extern "C" __global__ void shuffled(float* x) {
    __shared__ float partial[32];
    int t = threadIdx.x, lane = t % 32;
    float v = x[t];
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(FULL, v, d);
    if (lane == 0) partial[t / 32] = v;
    __syncthreads();
    if (t < 32) {
        v = t < blockDim.x / 32 ? partial[t] : 0;
        for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(FULL, v, d);
        if (t == 0) x[0] = v;
    }
}
// Neither shuffles nor votes order memory.
extern "C" __global__ void shuffle_is_no_barrier(int* x) {
    __shared__ int s[32];
    int t = threadIdx.x;
    s[t] = x[t];  // [before the vote]
    if (__any_sync(FULL, 1)) x[t] = __shfl_xor_sync(FULL, s[t ^ 1], 1);  // [behind the vote]
}
extern "C" __global__ void early_return(int* x, int n) {
    __shared__ int s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    if (t >= n) return;
    __syncthreads();
    x[t] = s[127 - t];
}
extern "C" __global__ void late_return(int* x, int n) {
    __shared__ int s[128];
    int t = threadIdx.x;
    s[t] = x[t];  // [left before]
    if (t >= n) return;
    x[t] = s[127 - t];  // [read behind]
}
template <bool Whole> __device__ void tiles(int* x) {
    __shared__ int s[64];
    int t = threadIdx.x;
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    s[t] = x[t];  // [tile writes]
    tile.sync();
    int v = s[t ^ 4];
    tile.sync();
    s[t ^ 4] = v + 1;
    unsigned half = t % 32 < 16 ? 0xffffu : 0xffff0000u;
    if (Whole) __syncwarp(half);
    x[t] = s[t ^ 8];  // [half reads]
    if (t % 32 < 16) {
        __syncwarp(0xffffu);
        s[t] = 7;
    }
}
extern "C" __global__ void nested_tiles(int* x) { tiles<true>(x); }
extern "C" __global__ void narrow_tiles(int* x) { tiles<false>(x); }
extern "C" __global__ void bytes(unsigned char* x, unsigned char* out) {
    __shared__ unsigned char s[256];
    __shared__ short halves[64];
    int t = threadIdx.x;
    s[t] = x[t];
    halves[t] = t;
    __syncthreads();
    if (t < 32) out[t] = reinterpret_cast<uchar4*>(s)[t].y + halves[t ^ 1];
    else s[128 + t] = t;
}
extern "C" __global__ void bad_bytes(unsigned char* out) {
    __shared__ __align__(16) unsigned char s[256];
    int t = threadIdx.x;
    s[t] = t;  // [one byte]
    out[t] = s[t];
    if (t == 9) reinterpret_cast<int4*>(s)[1] = make_int4(1, 2, 3, 4);  // [sixteen bytes]
}
extern "C" __global__ void copies(int* x) {
    struct Six { int v[6]; };
    __shared__ Six a[32], b[32];
    int t = threadIdx.x;
    for (int i = 0; i < 6; ++i) a[t].v[i] = t;
    b[t] = a[t ^ 1];  // [copies a struct]
    __syncthreads();
    memcpy(&a[t], &b[t], x[0]);  // [copies bytes]
    x[t] = a[(t + 1) % 32].v[3];  // [reads a copy]
}
extern "C" __global__ void global_only(int* x) {
    x[0] = threadIdx.x;
    x[1] += threadIdx.x;
}
extern "C" __global__ void handed_over(int* out, int fences) {
    __shared__ int data, ready;
    int t = threadIdx.x;
    if (t == 0) ready = 0;
    __syncthreads();
    if (t == 33) {
        if (fences == 2) __threadfence_block();
        data = 5;  // [gives]
        if (fences == 1) __threadfence_block();
        atomicExch(&ready, 1);
    }
    if (t == 1) {
        while (atomicAdd(&ready, 0) == 0) {}
        __threadfence_block();
        *out = data;  // [takes]
        if (fences == 1) *out += ready - 1;
    }
}
extern "C" __global__ void locked(int* out) {
    __shared__ int lock, sum;
    if (threadIdx.x == 0) lock = sum = 0;
    __syncthreads();
    for (bool done = false; !done;) {
        if (atomicCAS(&lock, 0, 1) == 0) {
            sum = sum + threadIdx.x;
            __threadfence_block();
            atomicExch(&lock, 0);
            done = true;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) *out = sum;
}
extern "C" __global__ void from_header(int* out) {
    __shared__ int s;
    put(&s, threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = s;
}
extern "C" __global__ void arrivals(int* x, int waits) {
    __shared__ cuda::barrier<cuda::thread_scope_block> pair[2];
    auto& barrier = pair[1];
    __shared__ int s[96];
    int t = threadIdx.x;
    if (t == 0) init(&barrier, blockDim.x);
    __syncthreads();
    for (int round = 0; round < 3; ++round) {
        s[t] = x[t] + round;  // [before the arrival]
        auto token = barrier.arrive();
        if (!waits) x[t] = s[95 - t];  // [ahead of the wait]
        barrier.wait(std::move(token));
        if (waits) x[t] = s[95 - t];
        barrier.arrive_and_wait();
    }
}
extern "C" __global__ void wide_tiles(int* x, int across) {
    __shared__ cg::block_tile_memory<256> room;
    __shared__ int s[256];
    int t = threadIdx.x;
    auto tile = cg::tiled_partition<64>(cg::this_thread_block(room));
    s[t] = x[t];  // [wide writes]
    tile.sync();
    int v = s[t ^ 63];
    tile.sync();
    s[t] = v;
    tile.sync();
    if (tile.any(t == 5)) x[t] = 1;
    if (across) x[t] = s[t ^ 64];  // [across tiles]
}
extern "C" __global__ void grid_wide(int* x) {
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = t;
    cg::this_grid().sync();
    x[blockIdx.x * 64 + t] = s[63 - t];
}
// Runs a program, an operation a thread and phase: 4 numbers (what, place, value, mask).
extern "C" __global__ void interpret(const unsigned* program, int phases, int* out) {
    extern __shared__ int memory[];
    unsigned char* small = reinterpret_cast<unsigned char*>(memory);
    unsigned t = threadIdx.x, seen = 0;
    for (int p = 0; p < phases; ++p) {
        const unsigned* op = program + 4 * (p * blockDim.x + t);
        switch (op[0]) {
            case 1: seen += memory[op[1]]; break;
            case 2: memory[op[1]] = op[2]; break;
            case 3: atomicAdd(&memory[op[1]], op[2]); break;
            case 4: seen += small[op[1]]; break;
            case 5: small[op[1]] = op[2]; break;
            case 6: seen += reinterpret_cast<int2*>(memory)[op[1]].y; break;
            case 7: __syncwarp(op[3]); break;
            case 8: __syncthreads(); break;
            case 9: seen += __shfl_sync(op[3], seen, 0); break;
            case 10: return;
            case 11: hearth::yield(); break;  // orders nothing
        }
    }
    out[t] = seen;
}
"""


class Checked:
    """The source compiled with checks; a call returns the races of a launch."""

    def __init__(self) -> None:
        toolchain = dataclasses.replace(find_toolchain(), racecheck=True)
        self.module = CpuModule(compile_source(toolchain, SOURCE, headers={"put.h": HEADER}), toolchain)

    def __call__(
        self, name: str, block: int | tuple[int, int, int], *args: object, grid: int = 1, shared: int = 0,
        cooperative: bool = False,
    ) -> Sequence[Race]:  # fmt: skip
        sizes = (block, 1, 1) if isinstance(block, int) else block
        return self.module.function(name).launch((grid, 1, 1), sizes, shared, pack(*args), cooperative)
