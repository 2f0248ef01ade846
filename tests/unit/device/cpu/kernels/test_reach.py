"""The thread's indices and meeting points are correct in every function, however the kernel calls it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.cpu.kernels import Kernels

FUNCTORS = r"""
#pragma once
struct FromHeader { __device__ void operator()(int* p) const { p[threadIdx.x] = threadIdx.x + 1; } };
"""

SOURCE = r"""
#include "functors.cuh"
struct I { __device__ void operator()(int* p) const { p[threadIdx.x] = threadIdx.x + 1; } };
// Meets the block's other threads: writes threadIdx.x + 1 by way of the neighbour.
struct M {
    __device__ void operator()(int* p) const {
        __shared__ int s[256];
        s[(threadIdx.x + 1) % blockDim.x] = threadIdx.x + 1;
        __syncthreads();
        p[threadIdx.x] = s[(threadIdx.x + 1) % blockDim.x];
    }
};
template <class F> __global__ void apply(int* p) { F()(p); }
template <class F = M> __global__ void apply_default(int* p) { F()(p); }
template <class F> __global__ void by_value(F f, int* p) { f(p); }
__device__ void plain(int* p) { M()(p); }
template <void (*F)(int*)> __global__ void pointed(int* p) { F(p); }
template <class F> struct Wrapper { F f; __device__ void operator()(int* p) const { f(p); } };
using Alias = Wrapper<Wrapper<M>>;
template <class F = M> struct ClassDefault { __device__ static void call(int* p) { F()(p); } };
template <class F = I> __device__ void function_default(int* p) { F()(p); }
template <class... F> __global__ void variadic(int* p) { (F()(p), ...); }
template <template <class> class W> __global__ void nested(int* p) { W<M>()(p); }
struct Derived : M {};
struct Crtp { template <class T> struct Base { __device__ void run(int* p) { static_cast<T*>(this)->step(p); } }; };
struct Leaf : Crtp::Base<Leaf> { __device__ void step(int* p) { M()(p); } };
struct Shape { __device__ virtual void fill(int* p) const = 0; };
struct Square : Shape { __device__ void fill(int* p) const override { M()(p); } };
__device__ M make() { return {}; }
struct Place { int* p; int n; __device__ bool operator!=(Place o) const { return n != o.n; }
    __device__ Place& operator++() { ++n; return *this; }
    __device__ int& operator*() const { __syncthreads(); return p[threadIdx.x]; } };
struct Range { int* p; __device__ Place begin() const { return {p, 0}; }
    __device__ Place end() const { return {p, 3}; } };
__device__ Range steps(int* p) { return {p}; }
struct Params { int* p; };
struct Op { using Params = ::Params; __device__ void operator()(Params q) { M()(q.p); } };
template <class O> __global__ void Kernel(typename O::Params p) { O op; op(p); }
struct Guard { int* p; __device__ Guard(int* q) : p(q) { p[threadIdx.x] = threadIdx.x; __syncthreads(); }
    __device__ ~Guard() { __syncthreads(); p[threadIdx.x] += 1; } };
using Table = void (*)(int*);
__device__ Table table[] = {plain, function_default<>};
extern "C" {
__global__ void derived(int* p) { Derived d; d(p); }
__global__ void alias(int* p) { Alias()(p); }
__global__ void class_default(int* p) { ClassDefault<>::call(p); }
__global__ void function_default_(int* p) { function_default(p); }
__global__ void crtp(int* p) { Leaf().run(p); }
__global__ void is_virtual(int* p) { Square s; const Shape& shape = s; shape.fill(p); }
__global__ void from_table(int* p) { table[0](p); __syncthreads(); table[1](p); }
__global__ void returned(int* p) { auto f = make(); f(p); }
__global__ void range_for(int* p) { p[threadIdx.x] = threadIdx.x - 2; for (int& x : steps(p)) x += 1; }
__global__ void lambda(int* p) { auto f = [](int* q) { M()(q); }; f(p); }
__global__ void capture(int* p) { auto f = [=](auto g) { g(p); }; f(M()); }
__global__ void local_class(int* p) { struct L { int* p; __device__ void run() { M()(p); } } l{p}; l.run(); }
__global__ void scoped(int* p) { Guard guard(p); }
}
"""
NAMES = (
    "apply<I>", "apply<M>", "apply<FromHeader>", "apply_default<>", "by_value<M>", "pointed<plain>", "variadic<I, M>",
    "nested<Wrapper>", "Kernel<Op>",
)  # fmt: skip
PLAIN = (
    "derived", "alias", "class_default", "function_default_", "crtp", "is_virtual", "from_table", "returned",
    "range_for", "lambda", "capture", "local_class", "scoped",
)  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE, names=NAMES, **{"functors.cuh": FUNCTORS})


@pytest.mark.parametrize("threads", [1, 33, 256])
@pytest.mark.parametrize("name", [*NAMES, *PLAIN])
def test_every_thread_has_its_own_index(kernels: Kernels, name: str, threads: int) -> None:
    out = np.zeros(256, np.int32)
    arguments = (np.uint8(0), out) if name == "by_value<M>" else (out,)
    kernels(name, 1, threads, *arguments)
    np.testing.assert_array_equal(out[:threads], np.arange(1, threads + 1))
    assert not out[threads:].any()


def test_static_shared_memory_of_reachable_functions(kernels: Kernels) -> None:
    sizes = {name: kernels.module.function(name).attributes.static_shared_bytes for name in [*NAMES, *PLAIN]}
    without = {"apply<I>", "apply<FromHeader>", "function_default_", "range_for", "scoped"}
    assert sizes == {name: 0 if name in without else 1024 for name in sizes}


LIVES = r"""
// Each thread returns, or meets, at a place that its argument says.
extern "C" __global__ void lives(const int* what, int* out, int rounds) {
    const int t = threadIdx.x, w = what[t];
    if (w == 0) { out[t] = 1; return; }                       // never meets
    int met = 0;
    for (int i = 0; i < rounds; ++i) {
        if (w == 1 && i == t % rounds) break;                 // returns on the way
        met += __syncthreads_count(1);
    }
    out[t] = 10 + met;
}
// The same, within warps.
extern "C" __global__ void lanes(const int* what, int* out, int rounds) {
    const int t = threadIdx.x, w = what[t];
    if (w == 0) { out[t] = 1; return; }
    int met = 0;
    for (int i = 0; i < rounds; ++i) {
        if (w == 1 && i == t % rounds) break;
        met += __popc(__ballot_sync(0xffffffffu, 1));
    }
    out[t] = 10 + met;
}
__device__ constexpr int bits(int n) { int found = 0; while (n >>= 1) ++found; return found; }
static_assert(bits(256) == 8, "evaluated while compiling");
// A thread waits for another one of its block by each means that gives others a turn.
extern "C" __global__ void waits(int* flag, int* out, int means) {
    const int t = threadIdx.x, n = blockDim.x;
    if (t != n - 1) {
        if (means == 0) while (atomicAdd(flag, 0) == 0) {}
        if (means == 1) while (atomicCAS(flag, 1, 1) != 1) {}
        if (means == 2) while (*(volatile int*)flag == 0) __threadfence_block();
        if (means == 3) while (*(volatile int*)flag == 0) __nanosleep(10);
        if (means == 4) while (*(volatile int*)flag == 0) {}
        if (means == 5) while (*(volatile int*)flag == 0);
        if (means == 6) { int seen; do seen = *(volatile int*)flag; while (seen == 0); }
        if (means == 7) for (;;) { if (*(volatile int*)flag != 0) break; }
        if (means == 8) for (volatile int* f = flag; *f == 0;) {}
        if (means == 9) { while (int* f = flag) { if (*(volatile int*)f) break; } }
        if (means == 10) { do { if (*(volatile int*)flag) break; } while (true); }
    }
    out[t] = t + 1;
    __threadfence();
    if (t == n - 1) atomicExch(flag, 1);
}
"""


@pytest.fixture(scope="module")
def lives() -> Kernels:
    return Kernels(LIVES)


def _model(what: np.ndarray, rounds: int, group: Callable[[int], int]) -> np.ndarray:
    """Returns the values that `lives` and `lanes` write: each synchronization counts the members of the group that have
    not returned."""
    out = np.empty(len(what), np.int32)
    there = {t: 0 if w == 0 else t % rounds if w == 1 else rounds for t, w in enumerate(what)}
    for t, w in enumerate(what):
        fellows = [f for f in range(len(what)) if group(f) == group(t)]
        met = sum(sum(there[f] > i for f in fellows) for i in range(there[t]))
        out[t] = 1 if w == 0 else 10 + met
    return out


@pytest.mark.parametrize("threads", [1, 2, 31, 32, 33, 64, 100, 257])
@pytest.mark.parametrize("seed", range(6))
def test_returned_threads_take_no_further_part(lives: Kernels, threads: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    chances = [[1 / 3] * 3, [0.9, 0, 0.1], [0.02, 0, 0.98], [0, 0.5, 0.5], [1, 0, 0], [0, 1, 0]][seed]
    what = random.choice(3, threads, p=chances).astype(np.int32)
    rounds = int(random.integers(1, 7))
    for name, group in (("lives", lambda t: 0), ("lanes", lambda t: t // 32)):
        out = np.zeros(threads, np.int32)
        lives(name, 1, threads, what, out, np.int32(rounds))
        np.testing.assert_array_equal(out, _model(what, rounds, group), err_msg=f"{name} {what} {rounds}")


@pytest.mark.parametrize("means", range(11))
def test_thread_may_wait_for_a_later_thread(lives: Kernels, means: int) -> None:
    for threads in (2, 33, 128):
        flag, out = np.zeros(1, np.int32), np.zeros(threads, np.int32)
        lives("waits", 1, threads, flag, out, np.int32(means))
        np.testing.assert_array_equal(out, np.arange(1, threads + 1))
