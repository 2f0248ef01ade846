"""Cooperative groups: shuffles, reductions, scans and copies, compared with NumPy."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from tests.support.cpu.kernels import Kernels

SOURCE = r"""
#include <cuda_fp16.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cooperative_groups/memcpy_async.h>
namespace cg = cooperative_groups;

// --- every operation and type
template <class T, class Group> __device__ void numbers(const Group& g, T value, T* out) {
    out[0] = cg::reduce(g, value, cg::plus<T>());
    out[1] = cg::reduce(g, value, cg::less<T>());
    out[2] = cg::reduce(g, value, cg::greater<T>());
    out[3] = cg::inclusive_scan(g, value);
    out[4] = cg::exclusive_scan(g, value);
    out[5] = cg::inclusive_scan(g, value, cg::greater<T>());
    out[6] = cg::exclusive_scan(g, value, cg::less<T>());
}
template <class T, class Group> __device__ void bits(const Group& g, T value, T* out) {
    cg::bit_and<T> all;
    out[7] = cg::reduce(g, value, all);
    out[8] = cg::reduce(g, value, cg::bit_or<T>());
    out[9] = cg::reduce(g, value, cg::bit_xor<T>());
    out[10] = cg::inclusive_scan(g, value, cg::bit_or<T>());
}
template <class T> __device__ void with_bits(const T* in, T* out) {
    auto block = cg::this_thread_block();
    unsigned t = block.thread_rank();
    T value = in[t];
    auto tile = cg::tiled_partition<8>(block);
    auto wide = cg::tiled_partition<64>(block);
    out += 33 * t;
    numbers(tile, value, out);
    bits(tile, value, out);
    auto some = cg::binary_partition(cg::tiled_partition<32>(block), t % 3 == 0);
    numbers(some, value, out + 11);
    bits(some, value, out + 11);
    numbers(wide, value, out + 22);
    bits(wide, value, out + 22);
}
template <class T> __device__ void without_bits(const T* in, T* out) {
    auto block = cg::this_thread_block();
    unsigned t = block.thread_rank();
    T value = in[t];
    out += 33 * t;
    numbers(cg::tiled_partition<8>(block), value, out);
    numbers(cg::binary_partition(cg::tiled_partition<32>(block), t % 3 == 0), value, out + 11);
    numbers(cg::tiled_partition<64>(block), value, out + 22);
}
#define NUMBERS(name, T, function) extern "C" __global__ void name(const T* in, T* out) { function(in, out); }
NUMBERS(int8, signed char, with_bits)
NUMBERS(uint16, unsigned short, with_bits)
NUMBERS(int32, int, with_bits)
NUMBERS(uint64, unsigned long long, with_bits)
NUMBERS(float32, float, without_bits)
NUMBERS(float64, double, without_bits)
NUMBERS(float16, __half, without_bits)

// --- operations of the program's own, which need neither commute nor be free of state: x -> a x + b
struct Line {
    unsigned a, b;
};
struct Compose {
    int* calls;
    __device__ Line operator()(const Line& f, const Line& g) const {
        atomicAdd(calls + threadIdx.x, 1);
        return {f.a * g.a, f.a * g.b + f.b};
    }
};
extern "C" __global__ void lines(const Line* in, Line* out, int* calls) {
    auto block = cg::this_thread_block();
    unsigned t = block.thread_rank();
    Compose compose{calls};
    auto tile = cg::tiled_partition<16>(block);
    auto some = cg::binary_partition(cg::tiled_partition<32>(block), t % 5 < 3);
    auto wide = cg::tiled_partition<128>(block);
    out += 7 * t;
    out[0] = cg::inclusive_scan(tile, in[t], compose);
    out[1] = cg::exclusive_scan(tile, in[t], compose);
    out[2] = cg::inclusive_scan(some, in[t], compose);
    out[3] = cg::exclusive_scan(some, in[t], [=](Line f, Line g) { return compose(f, g); });
    out[4] = cg::inclusive_scan(wide, in[t], compose);
    out[5] = cg::exclusive_scan(wide, in[t], compose);
    out[6] = cg::reduce(some, in[t], compose);
}

// --- elements of any type, and sources that are out of bounds
struct Twelve { float x; int y; unsigned short z, w; };  // no padding: that need not be copied
struct Large { double x, y; int z, w; };
struct Largest { double all[4]; };
template <class T> __device__ bool same(const T& a, const T& b) {
    const char *x = (const char*)&a, *y = (const char*)&b;
    for (unsigned i = 0; i < sizeof(T); ++i) if (x[i] != y[i]) return false;
    return true;
}
template <class T> __device__ T element(unsigned t) {
    T made;
    for (unsigned i = 0; i < sizeof(T); ++i) ((unsigned char*)&made)[i] = t * 7 + i;
    return made;
}
template <class T> __device__ unsigned moved() {
    auto block = cg::this_thread_block();
    unsigned t = block.thread_rank(), wrong = 0;
    const T own = element<T>(t);
    auto tile = cg::tiled_partition<8>(block);
    wrong |= !same(tile.shfl(own, 3), element<T>((t & ~7) + 3));
    wrong |= !same(tile.shfl_up(own, 2), element<T>(t % 8 < 2 ? t : t - 2)) << 1;
    wrong |= !same(tile.shfl_down(own, 3), element<T>(t % 8 > 4 ? t : t + 3)) << 2;
    wrong |= !same(tile.shfl_xor(element<T>(t), 5), element<T>(t ^ 5)) << 3;
    auto odd = cg::binary_partition(cg::tiled_partition<32>(block), t % 2);
    wrong |= !same(odd.shfl(own, 3), element<T>((t & ~31) + t % 2 + 6)) << 4;
    wrong |= !same(odd.shfl_up(own, 1), element<T>(t % 32 < 2 ? t : t - 2)) << 5;
    wrong |= !same(odd.shfl_down(own, 2), element<T>(t % 32 > 27 ? t : t + 4)) << 6;
    return wrong;
}
extern "C" __global__ void elements(unsigned* out) {
    out += 7 * threadIdx.x;
    out[0] = moved<char>();
    out[1] = moved<unsigned short>();
    out[2] = moved<float>();
    out[3] = moved<Twelve>();
    out[4] = moved<long long>();
    out[5] = moved<Large>();
    out[6] = moved<Largest>();
}
extern "C" __global__ void bounds(int* out, int distance) {
    auto block = cg::this_thread_block();
    int t = block.thread_rank();
    auto tile = cg::tiled_partition<8>(block);
    auto warp = cg::coalesced_threads();
    out += 10 * t;
    out[0] = tile.shfl(t, distance);
    out[1] = tile.shfl_up(t, distance);
    out[2] = tile.shfl_down(t, distance);
    out[3] = tile.shfl_xor(t, distance % 8);
    out[4] = warp.shfl(t, distance);
    out[5] = warp.shfl_up(t, distance);
    out[6] = warp.shfl_down(t, distance);
    auto half = cg::binary_partition(warp, t % 2);
    out[7] = half.shfl(t, distance % 16);
    out[8] = half.shfl_up(t, distance);
    out[9] = half.shfl_down(t, distance);
}
extern "C" __global__ void matches(const float* f, const long long* l, unsigned* out) {
    auto block = cg::this_thread_block();
    unsigned t = block.thread_rank();
    auto tile = cg::tiled_partition<16>(block);
    auto some = cg::binary_partition(tile, t % 16 < 5);
    int equal[3];
    out += 7 * t;
    out[0] = tile.match_any(f[t]);
    out[1] = some.match_any(l[t]);
    out[2] = tile.match_all(f[t], equal[0]);
    out[3] = tile.match_all(l[t / 16], equal[1]);
    out[4] = some.match_all((unsigned char)(t % 16 < 5), equal[2]);
    out[5] = equal[0] | equal[1] << 1 | equal[2] << 2;
    auto by_address = cg::labeled_partition(some, f + (t / 2) % 2);
    out[6] = by_address.size() | by_address.meta_group_rank() << 8 | by_address.meta_group_size() << 16;
}
// --- one thread of a group
extern "C" __global__ void invoked(int* count, int* out) {
    auto block = cg::this_thread_block();
    int t = block.thread_rank();
    auto tile = cg::tiled_partition<16>(block);
    cg::invoke_one(block, [=](int by) { atomicAdd(count, by); }, 1000);
    cg::invoke_one(tile, [=] { atomicAdd(count, 1); });
    auto some = cg::binary_partition(tile, t % 4 == 1);
    auto wide = cg::tiled_partition<64>(block);
    auto counted = [=](int by) { return atomicAdd(count + 1, by) * 0 + int(some.size()); };
    out[3 * t] = cg::invoke_one_broadcast(some, counted, 7);
    out[3 * t + 1] = cg::invoke_one_broadcast(wide, [=] { atomicAdd(count + 2, 1); return int(t / 64); });
    out[3 * t + 2] = cg::invoke_one_broadcast(tile, [=] { return t / 16; });
}
// --- copies that a group shares
template <class Group>
__device__ void copied(const Group& g, const char* from, char* to, int start, int bytes, int number) {
    __shared__ double room[4][32];
    char* middle = (char*)room[number];
    cg::memcpy_async(g, middle + start, from + start, bytes);
    cg::wait(g);
    for (int i = g.size() - 1 - g.thread_rank(); i < bytes; i += g.size()) to[start + i] = middle[start + i];
    g.sync();
}
extern "C" __global__ void copies(const char* from, char* to, int start, int bytes) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<16>(block);
    auto some = cg::binary_partition(tile, threadIdx.x % 16 < 3);
    copied(block, from, to, start, bytes, 3);
    if (tile.meta_group_rank() == 1) copied(tile, from + 256, to + 256, start, bytes, 0);
    if (tile.meta_group_rank() == 2 && threadIdx.x % 16 < 3) copied(some, from + 512, to + 512, start, bytes, 1);
    if (threadIdx.x == 5) copied(cg::this_thread(), from + 768, to + 768, start, bytes, 2);
}
extern "C" __global__ void copied_elements(const int* from, int* out) {
    __shared__ int stages[2][32];
    auto block = cg::this_thread_block();
    int total = 0;
    cg::memcpy_async(block, stages[0], 32, from, 32);
    for (int i = 0; i < 4; ++i) {
        if (i < 3) cg::memcpy_async(block, (void*)stages[(i + 1) % 2], (const void*)(from + 32 * (i + 1)), 128u);
        if (i < 3) cg::wait_prior<1>(block);
        else cg::wait_prior<0>(block);
        total += stages[i % 2][31 - threadIdx.x] * (i + 1);
        block.sync();
    }
    cg::memcpy_async(block, stages[0], 32, from + 1, 7);  // the smaller count is copied
    cg::wait(block);
    out[threadIdx.x] = total;
    out[32 + threadIdx.x] = stages[0][threadIdx.x];
}
"""

UPDATES = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#if __has_include(<cuda/atomic>)
#include <cuda/atomic>
using Atomic = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;
#else
struct Atomic {
    unsigned& value;
    explicit Atomic(unsigned& of) : value(of) {}
    __device__ unsigned load() const { return atomicAdd(&value, 0u); }
    __device__ void store(unsigned wanted) const { atomicExch(&value, wanted); }
    __device__ bool compare_exchange_strong(unsigned& old, unsigned wanted) const {
        unsigned before = atomicCAS(&value, old, wanted), expected = old;
        old = before;
        return before == expected;
    }
};
#endif
namespace cg = cooperative_groups;

template <class Group> __device__ void updated(const Group& g, unsigned value, unsigned* places, unsigned* out) {
    Atomic sum(places[0]), most(places[1]), stored(places[2]), from(places[4]), above(places[5]);
    cg::reduce_update_async(g, sum, value, cg::plus<unsigned>());
    cg::reduce_update_async(g, most, value, [](unsigned a, unsigned b) { return a > b ? a : b; });
    cg::reduce_store_async(g, stored, value, cg::greater<unsigned>());
    cg::reduce_store_async(g, places + 3, value, cg::bit_xor<unsigned>());
    out[0] = cg::inclusive_scan_update(g, from, value);
    out[1] = cg::exclusive_scan_update(g, from, value);
    out[2] = cg::inclusive_scan_update(g, above, value, cg::greater<unsigned>());
    out[3] = cg::exclusive_scan_update(g, above, value, [](unsigned a, unsigned b) { return a + b; });
}
extern "C" __global__ void updates(const unsigned* in, unsigned* places, unsigned* out) {
    auto block = cg::this_thread_block();
    unsigned t = block.thread_rank();
    auto tile = cg::tiled_partition<16>(block);
    auto some = cg::binary_partition(tile, t % 16 < 5);
    auto wide = cg::tiled_partition<64>(block);
    unsigned group = t / 16, part = some.meta_group_rank();
    updated(tile, in[t], places + 6 * group, out + 12 * t);
    updated(some, in[t], places + 6 * (8 + 2 * group + part), out + 12 * t + 4);
    updated(wide, in[t], places + 6 * (24 + wide.meta_group_rank()), out + 12 * t + 8);
}
"""


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE)


T = np.arange(128)


def _warp_parts(chosen: np.ndarray) -> list[np.ndarray]:
    """Returns for each warp the threads that are chosen, and those that are not."""
    return [part for warp in np.split(T, 4) for part in (warp[chosen[warp]], warp[~chosen[warp]])]


GROUPINGS = [np.split(T, 16), _warp_parts(T % 3 == 0), np.split(T, 2)]
"""The groups of `numbers`: tiles of 8, two parts of each warp, tiles of 64."""


def _extreme(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    dtype = np.dtype(kind)
    if dtype.kind == "f":  # sums of these numbers are exact in every order
        return rng.integers(-8, 9, 128).astype(dtype), np.zeros((128, 3, 11), dtype)
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, 128, dtype, endpoint=True)
    return values, np.zeros((128, 3, 11), dtype)


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "uint64", "float16", "float32", "float64"])
def test_reductions_and_scans_of_numbers(kernels: Kernels, kind: str) -> None:
    values, out = _extreme(kind)
    kernels(kind, 1, 128, values, out)
    for column, groups in enumerate(GROUPINGS):
        for group in groups:
            v, got = values[group], out[group, column]
            sums, least = np.add.accumulate(v, dtype=v.dtype), np.minimum.accumulate(v)
            expected = {
                0: sums[-1],
                1: v.min(),
                2: v.max(),
                3: sums,
                4: np.concatenate([[v.dtype.type(0)], sums[:-1]]),
                5: np.maximum.accumulate(v),
                6: np.concatenate([[v.dtype.type(0)], least[:-1]]),
            }
            if v.dtype.kind != "f":
                expected |= {
                    7: np.bitwise_and.reduce(v),
                    8: np.bitwise_or.reduce(v),
                    9: np.bitwise_xor.reduce(v),
                    10: np.bitwise_or.accumulate(v),
                }
            for place, wanted in expected.items():
                np.testing.assert_array_equal(got[:, place], wanted, f"{column} {place} {group}")


def test_operations_of_the_program(kernels: Kernels) -> None:
    rng = np.random.default_rng(5)
    lines = rng.integers(0, 2**32, (128, 2), dtype=np.uint32)
    out, calls = np.zeros((128, 7, 2), np.uint32), np.zeros(128, np.int32)
    kernels("lines", 1, 128, lines, out, calls)

    def compose(f: np.ndarray, g: np.ndarray) -> np.ndarray:
        a, b, c, d = (int(number) for number in (*f, *g))
        return np.array([a * c % 2**32, (a * d + b) % 2**32], np.uint32)

    def composed(group: np.ndarray) -> list[np.ndarray]:
        return [reduce(lambda before, own: compose(own, before), lines[group[: i + 1]]) for i in range(len(group))]

    zero = np.zeros(2, np.uint32)
    for column, groups in ((0, np.split(T, 8)), (2, _warp_parts(T % 5 < 3)), (4, [T])):
        for group in groups:
            wanted = composed(group)
            np.testing.assert_array_equal(out[group, column], wanted)
            np.testing.assert_array_equal(out[group, column + 1], [zero, *wanted[:-1]])
            if column == 2:
                np.testing.assert_array_equal(out[group, 6], [wanted[-1]] * len(group))
    # Each thread calls the operator itself: the last thread of a tile of 16 takes 4 steps, that of 128 takes 5 and at
    # least 2.
    assert calls.min() > 0 and calls[15] >= 8 + 2 * 5


def test_elements_of_any_type_move(kernels: Kernels) -> None:
    out = np.ones((128, 7), np.uint32)
    kernels("elements", 1, 128, out)
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("distance", [0, 1, 7, 8, 13, 16, 31, 33, 40])
def test_sources_out_of_bounds(kernels: Kernels, distance: int) -> None:
    out = np.zeros((32, 10), np.int32)
    kernels("bounds", 1, 32, out, np.int32(distance))
    t = np.arange(32)
    within, half = t % 8, t // 2
    # the hardware's shuffle uses five bits of the distance; groups of other sizes compute the lane
    step = distance % 32
    expected = [
        t - within + distance % 8,
        np.where(within >= step, t - step, t),
        np.where(within + step < 8, t + step, t),
        t ^ distance % 8,
        np.full(32, step),
        np.where(t >= step, t - step, t),
        np.where(t + step < 32, t + step, t),
        distance % 16 * 2 + t % 2,
        np.where(half >= distance, t - 2 * distance, t),
        np.where(half + distance < 16, t + 2 * distance, t),
    ]
    np.testing.assert_array_equal(out, np.stack(expected, 1))


def test_matches(kernels: Kernels) -> None:
    rng = np.random.default_rng(0)
    floats, longs = rng.integers(0, 4, 64).astype(np.float32), rng.integers(0, 3, 64) << 40
    floats[16:32] = -0.5
    out = np.zeros((64, 7), np.uint32)
    kernels("matches", 1, 64, floats, longs, out)

    def any_of(values: np.ndarray) -> list[int]:
        return [sum(int(other == own) << i for i, other in enumerate(values)) for own in values]

    for tile in np.split(np.arange(64), 4):
        np.testing.assert_array_equal(out[tile, 0], any_of(floats[tile]))
        equal = len(set(floats[tile])) == 1
        np.testing.assert_array_equal(out[tile, 2], 0xFFFF if equal else 0)
        np.testing.assert_array_equal(out[tile, 3], 0xFFFF)
        np.testing.assert_array_equal(out[tile, 5], int(equal) | 6)
        for part in (tile[:5], tile[5:]):
            np.testing.assert_array_equal(out[part, 1], any_of(longs[part]))
            np.testing.assert_array_equal(out[part, 4], (1 << len(part)) - 1)
            label = part // 2 % 2
            rank = label if label[0] == 0 else 1 - label
            sizes = np.array([(label == own).sum() for own in label])
            np.testing.assert_array_equal(out[part, 6], sizes | rank << 8 | 2 << 16)


def test_one_thread_is_invoked(kernels: Kernels) -> None:
    count, out = np.zeros(3, np.int32), np.zeros((128, 3), np.int32)
    kernels("invoked", 1, 128, count, out)
    np.testing.assert_array_equal(count, [1008, 7 * 16, 2])
    np.testing.assert_array_equal(out, np.stack([np.where(T % 4 == 1, 4, 12), T // 64, T // 16], 1))


@pytest.mark.parametrize("start, size", [(0, 256), (0, 0), (8, 104), (4, 20), (16, 64), (3, 201), (2, 6), (1, 1)])
def test_copies_that_a_group_shares(kernels: Kernels, start: int, size: int) -> None:
    source = np.random.default_rng(1).integers(1, 128, (4, 256)).astype(np.int8)
    target, expected = np.zeros_like(source), np.zeros_like(source)
    kernels("copies", 1, 64, source, target, np.int32(start), np.int32(size))
    expected[:, start : start + size] = source[:, start : start + size]
    np.testing.assert_array_equal(target, expected)


def test_copies_in_stages_and_by_elements(kernels: Kernels) -> None:
    source = np.random.default_rng(1).integers(0, 1000, (4, 32)).astype(np.int32)
    out = np.zeros((2, 32), np.int32)
    kernels("copied_elements", 1, 32, source, out)
    np.testing.assert_array_equal(out[0], (source[:, ::-1] * np.arange(1, 5)[:, None]).sum(0))
    np.testing.assert_array_equal(out[1], [*source[0, 1:8], *source[2, 7:]])


def test_reductions_and_scans_that_update() -> None:
    values = np.random.default_rng(2).integers(1, 1000, 128).astype(np.uint32)
    places, out = np.zeros((26, 6), np.uint32), np.zeros((128, 3, 4), np.uint32)
    places[:, 0], places[:, 1], places[:, 4], places[:, 5] = 5, 600, 7, 500
    Kernels(UPDATES)("updates", 1, 128, values, places, out)
    tiles = np.split(T, 8)
    parts = [part for tile in tiles for part in (tile[5:], tile[:5])]
    for column, groups, first in ((0, tiles, 0), (1, parts, 8), (2, np.split(T, 2), 24)):
        for number, group in enumerate(groups):
            v, got, place = values[group].astype(np.int64), out[group, column], places[first + number]
            total, before = v.sum(), np.concatenate([[0], np.cumsum(v)[:-1]])
            most = max(500, v.max())
            assert list(place) == [
                5 + total,
                max(600, v.max()),
                v.max(),
                np.bitwise_xor.reduce(v),
                7 + 2 * total,
                most + total,
            ]
            np.testing.assert_array_equal(got[:, 0], 7 + before + v)
            np.testing.assert_array_equal(got[:, 1], 7 + total + before)
            np.testing.assert_array_equal(got[:, 2], np.maximum(500, np.maximum.accumulate(v)))
            np.testing.assert_array_equal(got[:, 3], most + before)
