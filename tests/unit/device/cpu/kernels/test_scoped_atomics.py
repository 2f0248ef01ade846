"""cuda::atomic and related types: every operation compared with its definition, across blocks, and spin-waits within a
block."""

from __future__ import annotations

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from tests.support.cpu.kernels import Kernels

SOURCE = r"""
#include <cuda/atomic>
#include <cuda/latch>
#include <cuda/semaphore>
#include <cuda/std/atomic>

// Totals over all threads, which do not depend on their order.
template <class T> __global__ void integers(T* cells, T* olds) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    cuda::atomic_ref<T, cuda::thread_scope_device> c0(cells[0]), c2(cells[2]), c3(cells[3]);
    olds[t] = c0.fetch_add(T(1));
    cuda::atomic_ref<T>(cells[1]).fetch_sub(T(2), cuda::memory_order_relaxed);
    c2.fetch_min(T(t % 100), cuda::std::memory_order_acq_rel); c3.fetch_max(T(t % 100));
    reinterpret_cast<cuda::atomic<T>&>(cells[4]).fetch_or(T(1) << (t % 7));
    cuda::atomic_ref<T>(cells[5]).fetch_and(T(~(T(1) << (t % 7))));
    cuda::std::atomic_ref<T>(cells[6]).fetch_xor(T(t));
    auto& seven = reinterpret_cast<cuda::std::atomic<T>&>(cells[7]);
    T seen = seven.load();
    while (!seven.compare_exchange_weak(seen, T(seen + 3), cuda::std::memory_order::acq_rel,
        cuda::std::memory_order::relaxed)) {}
    cuda::atomic_ref<T> eight(cells[8]);
    ++eight; eight++; --eight; eight += T(2); eight -= T(1);
    if (t == 0) {
        cuda::atomic<T, cuda::thread_scope_block> own{T(5)};
        T expected = 4;
        cells[9] = own.exchange(6); cells[10] = own.compare_exchange_strong(expected, T(9)); cells[11] = expected;
        own = 7; cells[12] = own; own |= T(8); own &= T(13); own ^= T(1);
            cells[13] = own.load(cuda::memory_order_relaxed);
        cells[14] = own.is_lock_free() && sizeof own == sizeof(T) && n > 0;
        own.store(1, cuda::memory_order_release); cuda::std::atomic_store(&own, T(3));
        cells[15] = cuda::std::atomic_fetch_add_explicit(&own, T(4), cuda::std::memory_order_relaxed)
            + cuda::std::atomic_load(&own);
    }
}
template <class T> __global__ void floats(T* cells) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    cuda::atomic_ref<T> a(cells[0]), b(cells[1]), c(cells[2]);
    a.fetch_add(T(0.5)); b.fetch_max(T(t)); c.fetch_min(T(-t)); a -= T(0.25);
}
struct Pair { float x; int y; __device__ bool operator==(const Pair& o) const { return x == o.x && y == o.y; } };
enum class Mode : unsigned char { off, on = 200 };
extern "C" __global__ void kinds(int* out, int* data) {
    cuda::atomic<Pair> pair(Pair{1.5f, 2});
    Pair seen = pair.load();
    out[0] = pair.compare_exchange_strong(seen, Pair{2.5f, 3}) && pair.load() == Pair{2.5f, 3};
    cuda::atomic<int*> pointer(data);
    int* old = pointer.fetch_add(3); ++pointer; pointer -= 2;
    out[1] = (old == data) + 10 * int(pointer.load() - data);
    cuda::atomic<bool> flag{false}; out[2] = flag.exchange(true) + 2 * flag;
    cuda::atomic<Mode> mode{Mode::off}; mode = Mode::on; out[3] = int(mode.load());
    cuda::std::atomic_flag once = ATOMIC_FLAG_INIT; bool was = once.test_and_set();
    out[4] = was + 2 * once.test(); once.clear(); out[4] += 4 * once.test();
    cuda::std::atomic_int named(4); out[5] = named++;
    cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_device);
    cuda::std::atomic_thread_fence(cuda::std::memory_order_acquire);
}

// Each spins for another thread of its block; block by block in turn, too.
extern "C" __global__ void ring(int* out, int* turns) {
    __shared__ cuda::atomic<int, cuda::thread_scope_block> token;
    if (threadIdx.x == 0) token.store(0);
    __syncthreads();
    const int me = blockDim.x - 1 - threadIdx.x;   // the last rank begins
    while (token.load(cuda::memory_order_acquire) != me) {}
    *out += me;   // by turns, so without an atomic; of each block its own
    token.store(me + 1, cuda::memory_order_release);
    __syncthreads();
    out[1 + blockIdx.x * blockDim.x + threadIdx.x] = token;
}
__device__ cuda::atomic<int, cuda::thread_scope_device> spin_lock{0};
__device__ cuda::std::atomic_flag flag_lock;
__device__ cuda::counting_semaphore<cuda::thread_scope_device> permit{1};
__device__ cuda::atomic<int> probe;
// Others run between the reading and the writing.
__device__ void critical(long long& counter) {
    const long long seen = counter;
    for (int i = 0; i < 40; ++i) probe.load();
    counter = seen + 1;
}
extern "C" __global__ void locks(long long* counters) {
    int expected;
    do expected = 0; while (!spin_lock.compare_exchange_weak(expected, 1, cuda::memory_order_acquire));
    critical(counters[0]);
    spin_lock.store(0, cuda::memory_order_release);
    while (flag_lock.test_and_set(cuda::std::memory_order_acquire)) {}
    critical(counters[1]);
    flag_lock.clear(cuda::std::memory_order_release);
    permit.acquire();
    critical(counters[2]);
    permit.release();
}
extern "C" __global__ void waits(int* out) {
    __shared__ cuda::atomic<int> stage;
    __shared__ int value;
    if (threadIdx.x == 0) stage = 0;
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) { value = 42; stage = 1; stage.notify_all(); }
    else stage.wait(0);
    out[threadIdx.x] = value;
    while (stage.fetch_or(0) == 0) {}
    __syncthreads();
    __shared__ alignas(8) unsigned char room[sizeof(cuda::latch<cuda::thread_scope_block>)];
    auto* all = reinterpret_cast<cuda::latch<cuda::thread_scope_block>*>(room);
    if (threadIdx.x == 0) { new (all) cuda::latch<cuda::thread_scope_block>(blockDim.x); value = 0; }
    __syncthreads();
    atomicAdd(&value, 1);
    all->arrive_and_wait();
    out[blockDim.x + threadIdx.x] = value;
}
"""
INTEGERS = {
    "int": np.int32, "unsigned": np.uint32, "long long": np.int64, "unsigned long long": np.uint64, "short": np.int16,
    "unsigned char": np.uint8,
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    names = [f"integers<{kind}>" for kind in INTEGERS] + ["floats<float>", "floats<double>"]
    return Kernels("#include <new>\n" + SOURCE, names=names)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_operations_of_many_blocks_add_up(kernels: Kernels, kind: str) -> None:
    dtype, n = INTEGERS[kind], 24 * 64
    cells, olds = np.zeros(16, dtype), np.zeros(n, dtype)
    cells[2], cells[5] = 101, 127
    kernels(f"integers<{kind}>", 24, 64, cells, olds)
    t = np.arange(n)
    expected = [
        n,
        -2 * n,
        0,
        99,
        127,
        0,
        np.bitwise_xor.reduce(t),
        3 * n,
        2 * n,
        5,
        0,
        6,
        7,
        (7 | 8) & 13 ^ 1,
        1,
        3 + 7,
    ]
    np.testing.assert_array_equal(cells, np.array(expected).astype(dtype))
    np.testing.assert_array_equal(np.sort(olds), np.sort(t.astype(dtype)))


@pytest.mark.parametrize("kind, dtype", [("float", np.float32), ("double", np.float64)])
def test_floating_point_operations_add_up(kernels: Kernels, kind: str, dtype: type) -> None:
    cells = np.zeros(3, dtype)
    kernels(f"floats<{kind}>", 20, 64, cells)
    assert cells.tolist() == [0.25 * 1280, 1279, -1279]


def test_objects_of_other_types(kernels: Kernels) -> None:
    out, data = np.zeros(6, np.int32), np.zeros(8, np.int32)
    kernels("kinds", 1, 1, out, data)
    assert out.tolist() == [1, 21, 2, 200, 2, 4]


@pytest.mark.parametrize("threads", [1, 33, 256])
def test_thread_that_spins_lets_its_block_continue(kernels: Kernels, threads: int) -> None:
    out = np.zeros(1 + threads, np.int32)
    kernels("ring", 1, threads, out, out)
    assert out[0] == threads * (threads - 1) // 2
    assert (out[1:] == threads).all()
    waited = np.zeros(2 * threads, np.int32)
    kernels("waits", 1, threads, waited)
    assert (waited == np.repeat([42, threads], threads)).all()


def test_locks_exclude_threads_of_all_blocks(kernels: Kernels) -> None:
    counters = np.zeros(3, np.int64)
    kernels("locks", 12, 96, counters)
    assert counters.tolist() == [12 * 96] * 3


def test_object_that_is_too_large_is_refused() -> None:
    source = (
        "#include <cuda/atomic>\nstruct S { int x[3]; };\n__global__ void k(S* s) { cuda::atomic_ref<S>(*s).load(); }"
    )
    with pytest.raises(Refusal) as refused:
        Kernels(source, names=["k"])
    assert refused.value.reason == Reason.UNSUPPORTED
    assert "atomic objects of a size" in str(refused.value)
