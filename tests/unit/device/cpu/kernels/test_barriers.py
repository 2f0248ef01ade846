"""Barriers, copies and pipelines of libcu++ and their C forms, compared with their documentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from tests.support.cpu.kernels import Kernels, died_saying

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
// No more than `places` threads are inside at the same time; the mutex guards a plain counter.
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
    if (threadIdx.x == 0) {
        out[0] = most; out[1] = sum;
        out[2] = many->try_acquire() && mutex->try_acquire() && !mutex->try_acquire();
    }
}
extern "C" __global__ void overfull(int* out) {
    __shared__ barrier bar;
    if (threadIdx.x == 0) { init(&bar, 1); (void)bar.arrive(2); }
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
    inputs = np.random.default_rng(0).integers(-99, 99, (count, 32)).astype(np.int32)
    out = np.zeros((warps - 1, 32), np.int32)
    barriers("specialised", 1, 32 * warps, inputs, out, np.int32(count))
    weighted = (inputs * np.arange(1, count + 1)[:, None]).sum(axis=0)
    np.testing.assert_array_equal(out, [np.roll(weighted, -w) for w in range(1, warps)])


def test_counts_drops_and_completions(barriers: Kernels) -> None:
    visits = np.zeros((40, 40), np.int32)
    barriers("dropping", 1, 40, visits)
    np.testing.assert_array_equal(visits, np.tril(np.broadcast_to(40 - np.arange(40), (40, 40)), -1))
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


def test_more_arrivals_than_a_barrier_expects_end_the_process(barriers: Kernels, tmp_path: Path) -> None:
    assert "barrier: more arrivals than it expects" in died_saying(barriers.image, "overfull", 4, tmp_path)


COPIES = r"""
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>
#include <cuda/std/chrono>
namespace cg = cooperative_groups;
struct alignas(16) Four { float x, y, z, w; };
struct Seven { char bytes[7]; };

// Every form of memcpy_async that ends in a barrier: group and thread, pointer types, sizes.
extern "C" __global__ void barrier_copies(const int* in, int* out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ alignas(16) int s[6][64];
    __shared__ Seven odd[9];
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    if (block.thread_rank() == 0) init(&bar, block.size());
    block.sync();
    const int t = block.thread_rank(), half = t / 32 * 32;
    cuda::memcpy_async(block, s[0], in, sizeof(int) * 64, bar);
    cuda::memcpy_async(block, s[1], in + 64, cuda::aligned_size_t<16>(sizeof(int) * 64), bar);
    cuda::memcpy_async(warp, s[2] + half, in + 128 + half, sizeof(int) * 32, bar);
    cuda::memcpy_async(s[3] + t, in + 192 + t, sizeof(int), bar);
    cuda::memcpy_async((void*)(s[4] + t), (const void*)(in + 256 + t), cuda::aligned_size_t<4>(4), bar);
    const Four* fours = reinterpret_cast<const Four*>(in + 320);
    if (t < 16) cuda::memcpy_async(reinterpret_cast<Four*>(s[5]) + t, fours + t, sizeof(Four), bar);
    cuda::memcpy_async(block, odd, reinterpret_cast<const Seven*>(in), 7 * 9, bar);
    bar.arrive_and_wait();
    for (int i = 0; i < 6; ++i) out[i * 64 + t] = s[i][63 - t];
    out[384 + t] = t < 63 ? reinterpret_cast<signed char*>(odd)[62 - t] : 0;
}
// A block-scope pipeline of several stages in which all threads are both: two batches ahead of the computation.
template <int Stages>
__device__ void unified(const int* in, int* out, int batches) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, Stages> state;
    __shared__ int room[Stages][256];
    auto block = cg::this_thread_block();
    const int n = block.size(), t = block.thread_rank();
    auto pipe = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int compute = 0, fetch = 0; compute < batches; ++compute) {
        for (; fetch < batches && fetch < compute + Stages; ++fetch) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, room[fetch % Stages], in + fetch * n, sizeof(int) * n, pipe);
            pipe.producer_commit();
        }
        if (compute & 1) pipe.consumer_wait();
        else while (!pipe.consumer_wait_for(cuda::std::chrono::nanoseconds(50))) {}
        sum += room[compute % Stages][(t + compute + 1) % n] * (compute + 1);
        pipe.consumer_release();
    }
    out[t] = sum;
}
extern "C" __global__ void unified1(const int* in, int* out, int batches) { unified<1>(in, out, batches); }
extern "C" __global__ void unified3(const int* in, int* out, int batches) { unified<3>(in, out, batches); }

// Warps with roles: every `every`-th warp produces, the others consume; by role and by number of producers.
extern "C" __global__ void roles(const int* in, int* out, int batches, int every) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 4> state;
    __shared__ int room[4][32 * 8];
    auto block = cg::this_thread_block();
    const int t = block.thread_rank(), warp = t / 32, n = block.size();
    const bool produces = warp % every == 0;
    auto role = produces ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    auto pipe = cuda::make_pipeline(block, &state, role);
    const int producers = (n / 32 + every - 1) / every;
    if (produces) {
        for (int i = 0; i < batches; ++i) {
            pipe.producer_acquire();
            for (int j = warp / every * 32 + t % 32; j < 256; j += producers * 32)
                cuda::memcpy_async(&room[i % 4][j], in + i * 256 + j, sizeof(int), pipe);
            pipe.producer_commit();
        }
    } else {
        int sum = 0;
        for (int i = 0; i < batches; ++i) {
            pipe.consumer_wait();
            for (int j = 0; j < 256; ++j) sum += room[i % 4][j] * ((i + j + t) % 7);
            pipe.consumer_release();
        }
        out[t] = sum;
    }
    pipe.quit();
}
extern "C" __global__ void counted(const int* in, int* out, int batches) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ int room[2];
    auto block = cg::this_thread_block();
    const int t = block.thread_rank();
    auto pipe = cuda::make_pipeline(block, &state, size_t(1));
    int sum = 0;
    for (int i = 0; i < batches; ++i) {
        if (t == 40) {
            pipe.producer_acquire();
            cuda::memcpy_async(&room[i % 2], in + i, cuda::aligned_size_t<4>(4), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            sum = sum * 3 + room[i % 2];
            pipe.consumer_release();
        }
    }
    out[t] = sum;
}
// The thread's own pipeline, and the C primitives, with zero fill.
extern "C" __global__ void own(const int* in, int* out) {
    __shared__ int room[3][64];
    __shared__ alignas(16) char wide[64][16];
    __shared__ __mbarrier_t bar;
    const int t = threadIdx.x;
    if (t == 0) __mbarrier_init(&bar, blockDim.x);
    __syncthreads();
    auto pipe = cuda::make_pipeline();
    for (int i = 0; i < 3; ++i) {
        pipe.producer_acquire();
        cuda::memcpy_async(&room[i][t], in + i * 64 + t, sizeof(int), pipe);
        pipe.producer_commit();
    }
    cuda::pipeline_consumer_wait_prior<1>(pipe);
    int sum = room[0][t] + 2 * room[1][t];
    pipe.consumer_wait();
    pipe.consumer_release();
    pipe.consumer_wait();
    out[t] = sum + 3 * room[2][t];
    __syncthreads();
    __pipeline_memcpy_async(wide[t], in + 4 * t, 16, t % 17);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __pipeline_memcpy_async(&room[0][63 - t], in + t, 4);
    __pipeline_arrive_on(&bar);
    __mbarrier_token_t token = __mbarrier_arrive(&bar);
    while (!__mbarrier_test_wait(&bar, token)) {}
    out[64 + t] = room[0][t];
    int filled = 0;
    for (int i = 0; i < 16; ++i) filled += wide[(t + 1) % 64][i] * (i + 1);
    out[128 + t] = filled;
}
namespace old = nvcuda::experimental;
extern "C" __global__ void forerunner(const int* in, int* out) {
    __shared__ old::awbarrier bar;
    __shared__ alignas(16) int room[64], four[64][4];
    const int t = threadIdx.x;
    if (t == 0) init(&bar, blockDim.x);
    __syncthreads();
    old::pipeline pipe;
    memcpy_async(room[t], in[t], pipe);
    memcpy_async(old::segment<4>(four[t]), old::segment<2>(in + 2 * t), pipe);
    pipe.commit_and_wait();
    pipe.arrive_on(bar);
    auto token = bar.arrive();
    bar.wait(token);
    const int *f = four[(t + 5) % 64];
    out[t] = room[63 - t] + 10 * f[0] + 100 * f[1] + f[2] + f[3];
}
"""


@pytest.fixture(scope="module")
def copies() -> Kernels:
    return Kernels(COPIES)


def test_copies_of_groups_and_threads_are_there_after_the_barrier(copies: Kernels) -> None:
    inputs = np.random.default_rng(1).integers(-(2**31), 2**31, 384).astype(np.int32)
    out = np.zeros(448, np.int32)
    copies("barrier_copies", 1, 64, inputs, out)
    np.testing.assert_array_equal(out[:384].reshape(6, 64), inputs.reshape(6, 64)[:, ::-1])
    np.testing.assert_array_equal(out[384:447], inputs.view(np.int8)[:63][::-1])


@pytest.mark.parametrize("stages, threads", [(1, 96), (3, 33), (3, 256)])
def test_a_pipeline_of_all_threads(copies: Kernels, stages: int, threads: int) -> None:
    batches, t = 11, np.arange(threads)
    inputs = np.random.default_rng(2).integers(0, 1000, (batches, threads)).astype(np.int32)
    out = np.zeros(threads, np.int32)
    copies(f"unified{stages}", 1, threads, inputs, out, np.int32(batches))
    np.testing.assert_array_equal(out, sum(inputs[i][(t + i + 1) % threads] * (i + 1) for i in range(batches)))


@pytest.mark.parametrize("warps, every", [(2, 2), (8, 4), (5, 2), (7, 5)])
def test_a_pipeline_between_warps_with_roles(copies: Kernels, warps: int, every: int) -> None:
    batches, t, j = 13, np.arange(warps * 32), np.arange(256)
    inputs = np.random.default_rng(3).integers(0, 1000, (batches, 256)).astype(np.int32)
    out = np.zeros(warps * 32, np.int32)
    copies("roles", 1, warps * 32, inputs, out, np.int32(batches), np.int32(every))
    expected = sum((inputs[i] * ((i + j + t[:, None]) % 7)).sum(axis=1) for i in range(batches))
    np.testing.assert_array_equal(out, np.where(t // 32 % every == 0, 0, expected))


def test_one_producer_by_count_and_the_threads_own_pipeline(copies: Kernels) -> None:
    inputs = np.random.default_rng(4).integers(0, 100, 256).astype(np.int32)
    out = np.zeros(50, np.int32)
    copies("counted", 1, 50, inputs, out, np.int32(9))
    expected = 0
    for value in inputs[:9]:
        expected = expected * 3 + int(value)
    np.testing.assert_array_equal(out, np.where(np.arange(50) == 40, 0, expected))
    out = np.zeros((3, 64), np.int32)
    copies("own", 1, 64, inputs, out)
    rows = inputs[:192].reshape(3, 64)
    np.testing.assert_array_equal(out[0], rows[0] + 2 * rows[1] + 3 * rows[2])
    np.testing.assert_array_equal(out[1], inputs[63::-1])
    wide = inputs.view(np.int8).reshape(64, 16).copy()
    for row in range(64):
        wide[row, 16 - row % 17 :] = 0
    np.testing.assert_array_equal(out[2], np.roll((wide * np.arange(1, 17)).sum(axis=1), -1))
    copies("forerunner", 1, 64, inputs, out)
    pairs = np.roll(inputs[:128].reshape(64, 2), -5, axis=0)
    np.testing.assert_array_equal(out[0], inputs[63::-1] + 10 * pairs[:, 0] + 100 * pairs[:, 1])


@pytest.mark.parametrize(
    "line, name",
    [
        ("cuda::device::barrier_native_handle(bar);", "barrier_native_handle"),
        ("cuda::device::memcpy_async_tx(out, in, cuda::aligned_size_t<16>(16), bar);", "TMA"),
        ("auto token = cuda::device::barrier_arrive_tx(bar, 1, 16);", "TMA"),
    ],
)
def test_the_hardwares_form_of_a_barrier_is_refused(line: str, name: str) -> None:
    with pytest.raises(Refusal) as caught:
        Kernels(
            "#include <cuda/barrier>\n"
            'extern "C" __global__ void k(int* out, const int* in) {\n'
            "    __shared__ cuda::barrier<cuda::thread_scope_block> bar;\n"
            f"    {line}\n}}\n"
        )
    assert caught.value.reason is Reason.UNSUPPORTED and name in caught.value.message
    assert caught.value.details["line"] == "4"
