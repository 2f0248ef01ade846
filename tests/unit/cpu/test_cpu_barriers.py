"""Asynchronous barriers, copies and pipelines of libcu++ and their C forms, against what their documentation defines."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_kernels import Kernels

BARRIERS = r"""
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/semaphore>
#include <cuda/std/chrono>
#include <cuda_awbarrier_primitives.h>
namespace cg = cooperative_groups;
using barrier = cuda::barrier<cuda::thread_scope_block>;
static_assert(sizeof(barrier) == 8 && sizeof(cuda::barrier<cuda::thread_scope_device>) == 8, "as on a GPU");

// Each round, every thread writes, arrives, does something else, waits, and reads what another wrote.
extern "C" __global__ void rounds(int* out, int count) {
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ barrier bar;
    __shared__ int slots[2][1024];
    const int t = threadIdx.x, n = blockDim.x;
    if (t == 0) init(&bar, n);
    __syncthreads();
    int sum = 0;
    for (int round = 0; round < count; ++round) {
        slots[round & 1][t] = round * 1000 + t;
        barrier::arrival_token token = bar.arrive();
        sum += round;
        if (round % 3 == 0) bar.wait(cuda::std::move(token));
        else if (round % 3 == 1) bar.wait_parity(round & 1);
        else while (!bar.try_wait_for(cuda::std::move(token), cuda::std::chrono::microseconds(1))) {}
        sum += slots[round & 1][(t + round) % n];
    }
    out[blockIdx.x * n + t] = sum;
}
// Warp 0 only arrives and never waits; the others wait by parity. Two barriers go back and forth (full and empty).
extern "C" __global__ void specialised(const int* in, int* out, int count) {
    __shared__ barrier full[2], empty[2];
    __shared__ int box[2][32];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32, consumers = blockDim.x - 32;
    if (t < 2) { init(full + t, 32); init(empty + t, consumers); }
    __syncthreads();
    if (warp == 0) {
        for (int i = 0; i < count; ++i) {
            if (i >= 2) empty[i & 1].wait_parity((i / 2 - 1) & 1);
            box[i & 1][lane] = in[i * 32 + lane];
            (void)full[i & 1].arrive();
        }
    } else {
        int sum = 0;
        for (int i = 0; i < count; ++i) {
            full[i & 1].wait_parity((i / 2) & 1);
            sum += box[i & 1][(lane + warp) % 32] * (i + 1);
            (void)empty[i & 1].arrive();
        }
        out[t - 32] = sum;
    }
}
// Thread t takes part in t rounds and drops out in the next; each reads how many there were.
extern "C" __global__ void dropping(int* seen) {
    __shared__ barrier bar;
    __shared__ int present[64];
    const int t = threadIdx.x, n = blockDim.x;
    if (t == 0) init(&bar, n);
    present[t] = 0;
    __syncthreads();
    for (int round = 0; round < t; ++round) {
        atomicAdd(&present[round], 1);
        bar.arrive_and_wait();
        seen[t * n + round] = present[round];
    }
    atomicAdd(&present[t], 1);
    bar.arrive_and_drop();
}
struct Count {
    int* phases;
    int* slot;
    __device__ void operator()() { ++*phases; *slot *= 2; }
};
// The completion runs once a phase, after the last arrival and before any wait returns.
extern "C" __global__ void completing(int* out) {
    using counted = cuda::barrier<cuda::thread_scope_block, Count>;
    __shared__ alignas(counted) char room[sizeof(counted)];
    __shared__ int phases, slot;
    counted& bar = *reinterpret_cast<counted*>(room);
    if (threadIdx.x == 0) {
        phases = 0; slot = 1;
        init(&bar, blockDim.x, Count{&phases, &slot});
    }
    __syncthreads();
    bool right = true;
    for (int round = 1; round <= 9; ++round) {
        bar.arrive_and_wait();
        right = right && phases == round && slot == (1 << round);
        __syncthreads();
    }
    out[threadIdx.x] = right;
}
// One thread arrives for many; a phase may be over before anybody waits.
extern "C" __global__ void weighted(int* out) {
    __shared__ barrier bar;
    __shared__ int data[64];
    if (threadIdx.x == 0) init(&bar, blockDim.x + 7);
    __syncthreads();
    data[threadIdx.x] = threadIdx.x * 3;
    barrier::arrival_token token = bar.arrive(threadIdx.x == 5 ? 8 : 1);
    out[threadIdx.x] = bar.max() == (1 << 20) - 1;
    bar.wait(cuda::std::move(token));
    out[threadIdx.x] += data[63 - threadIdx.x];
}
// Blocks meet in a barrier in device memory (a cooperative launch).
extern "C" __global__ void across(cuda::barrier<cuda::thread_scope_device>* bar, int* marks, int* out) {
    if (cg::this_grid().thread_rank() == 0) init(bar, gridDim.x * blockDim.x);
    cg::this_grid().sync();
    const int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    int sum = 0;
    for (int round = 0; round < 4; ++round) {
        marks[i] = round + i;
        bar->arrive_and_wait();
        sum += marks[(i + 41) % n];
        bar->arrive_and_wait();
    }
    out[i] = sum;
}
extern "C" __global__ void primitives(int* out, int count) {
    __shared__ __mbarrier_t bar;
    __shared__ int slots[1024];
    const int t = threadIdx.x, n = blockDim.x;
    if (t == 0) __mbarrier_init(&bar, n);
    __syncthreads();
    int sum = 0;
    for (int round = 0; round < count; ++round) {
        slots[t] = round + t;
        __mbarrier_token_t token = __mbarrier_arrive(&bar);
        if (round & 1) while (!__mbarrier_test_wait(&bar, token)) {}
        else while (!__mbarrier_try_wait_parity(&bar, 2 * round & 2, 100)) {}
        sum += slots[(t + 1) % n];
        while (!__mbarrier_try_wait(&bar, __mbarrier_arrive(&bar), 1000000)) {}
    }
    if (t == 0) __mbarrier_inval(&bar);
    out[t] = sum;
}
extern "C" __global__ void latches(int* out) {
    __shared__ alignas(8) char room[2][8];
    auto* ready = reinterpret_cast<cuda::latch<cuda::thread_scope_block>*>(room[0]);
    auto* done = reinterpret_cast<cuda::latch<cuda::thread_scope_block>*>(room[1]);
    __shared__ int sum;
    if (threadIdx.x == 0) {
        new (ready) cuda::latch<cuda::thread_scope_block>(1);
        new (done) cuda::latch<cuda::thread_scope_block>(blockDim.x - 1);
        sum = 0;
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) { sum = 100; ready->count_down(); done->wait(); out[0] = sum; }
    else { ready->wait(); atomicAdd(&sum, threadIdx.x); done->count_down(); }
}
// No more than `places` threads are inside at once; the mutex guards a plain counter.
extern "C" __global__ void semaphores(int* out, int places) {
    __shared__ alignas(8) char room[16];
    auto* many = reinterpret_cast<cuda::counting_semaphore<cuda::thread_scope_block>*>(room);
    auto* mutex = reinterpret_cast<cuda::binary_semaphore<cuda::thread_scope_block>*>(room + 8);
    __shared__ int inside, most, sum;
    if (threadIdx.x == 0) {
        new (many) cuda::counting_semaphore<cuda::thread_scope_block>(places);
        new (mutex) cuda::binary_semaphore<cuda::thread_scope_block>(1);
        inside = most = sum = 0;
    }
    __syncthreads();
    many->acquire();
    const int now = atomicAdd(&inside, 1) + 1;
    atomicMax(&most, now);
    __nanosleep(0);
    mutex->acquire();
    const int before = sum;
    __nanosleep(0);
    sum = before + threadIdx.x;
    mutex->release();
    atomicSub(&inside, 1);
    many->release();
    __syncthreads();
    if (threadIdx.x == 0) { out[0] = most; out[1] = sum; out[2] = many->try_acquire() && mutex->try_acquire() && !mutex->try_acquire(); }
}
// Lanes of one warp wait for lanes of another and of their own, in a chain against the order of their numbers.
extern "C" __global__ void chain(int* out) {
    __shared__ barrier turn[128];
    __shared__ int last;
    init(turn + threadIdx.x, 1);
    if (threadIdx.x == 0) last = 0;
    __syncthreads();
    const int next = (threadIdx.x * 37 + 37) % 128;
    if (threadIdx.x != 0) turn[threadIdx.x].wait_parity(0);
    out[threadIdx.x] = last++;
    if (next != 0) (void)turn[next].arrive();
}
"""


@pytest.fixture(scope="module")
def barriers() -> Kernels:
    return Kernels(BARRIERS)


@pytest.mark.parametrize("threads", [1, 33, 256])
def test_a_barrier_separates_rounds(barriers: Kernels, threads: int) -> None:
    count, t = 20, np.arange(threads)
    out = np.zeros((3, threads), np.int32)
    barriers("rounds", 3, threads, out, np.int32(count))
    expected = sum(r + r * 1000 + (t + r) % threads for r in range(count))
    np.testing.assert_array_equal(out, np.broadcast_to(expected, (3, threads)))
    primitive = np.zeros(threads, np.int32)
    barriers("primitives", 1, threads, primitive, np.int32(count))
    np.testing.assert_array_equal(primitive, sum(r + (t + 1) % threads for r in range(count)))


@pytest.mark.parametrize("warps", [2, 5])
def test_warps_with_roles_exchange_by_full_and_empty_barriers(barriers: Kernels, warps: int) -> None:
    count = 17
    given = np.random.default_rng(0).integers(-99, 99, (count, 32)).astype(np.int32)
    out = np.zeros((warps - 1, 32), np.int32)
    barriers("specialised", 1, 32 * warps, given, out, np.int32(count))
    weighted = (given * np.arange(1, count + 1)[:, None]).sum(axis=0)
    np.testing.assert_array_equal(out, [np.roll(weighted, -w) for w in range(1, warps)])


def test_counts_drops_and_completions(barriers: Kernels) -> None:
    seen = np.zeros((40, 40), np.int32)
    barriers("dropping", 1, 40, seen)
    np.testing.assert_array_equal(seen, np.tril(np.broadcast_to(40 - np.arange(40), (40, 40)), -1))
    out = np.zeros(64, np.int32)
    barriers("completing", 1, 64, out)
    np.testing.assert_array_equal(out, 1)
    barriers("weighted", 1, 64, out)
    np.testing.assert_array_equal(out, 3 * (63 - np.arange(64)) + 1)


def test_blocks_meet_in_a_barrier_of_device_scope(barriers: Kernels) -> None:
    n = 6 * 50
    word, marks, out = np.zeros(1, np.uint64), np.zeros(n, np.int32), np.zeros(n, np.int32)
    barriers("across", 6, 50, word, marks, out, cooperative=True)
    np.testing.assert_array_equal(out, 6 + 4 * ((np.arange(n) + 41) % n))


def test_latches_and_semaphores(barriers: Kernels) -> None:
    out = np.zeros(3, np.int32)
    barriers("latches", 1, 96, out)
    assert out[0] == 100 + sum(range(95))
    barriers("semaphores", 1, 96, out, np.int32(5))
    assert out.tolist() == [5, sum(range(96)), 1]


def test_a_chain_of_waits_through_all_lanes_ends(barriers: Kernels) -> None:
    out = np.zeros(128, np.int32)
    barriers("chain", 1, 128, out)
    order = [0]
    while len(order) < 128:
        order.append((order[-1] * 37 + 37) % 128)
    np.testing.assert_array_equal(out[order], np.arange(128))
