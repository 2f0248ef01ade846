"""Cooperative groups: the groups of a program after any nesting of partitions.

A group is modelled as the list of its threads in the order of their ranks, with its position among its siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cpu.kernels import Kernels

SOURCE = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

struct Report {
    unsigned size, rank, meta_size, meta_rank, ballot, same, total, before, last, any_all;
};
template <class Group> __device__ void report(const Group& g, unsigned value, bool flag, Report* out) {
    *out = {g.size(), g.thread_rank(), g.meta_group_size(), g.meta_group_rank(), g.ballot(flag), g.match_any(value % 3),
            cg::reduce(g, value, cg::plus<unsigned>()), cg::exclusive_scan(g, value), g.shfl(value, g.size() - 1),
            unsigned(g.any(flag)) | unsigned(g.all(flag)) << 1};
}

struct Plan {
    int steps, kinds[4], arguments[4];
};
template <int Depth>
__device__ void descend(const cg::coalesced_group& g, const Plan& plan, unsigned value, Report* out) {
    report(g, value, value >> Depth & 1, out + Depth);
    if constexpr (Depth < 4) {
        if (Depth == plan.steps) return;
        int argument = plan.arguments[Depth];
        switch (plan.kinds[Depth]) {
            case 0: descend<Depth + 1>(cg::tiled_partition(g, argument), plan, value, out); break;
            case 1: descend<Depth + 1>(cg::binary_partition(g, value >> argument & 1), plan, value, out); break;
            case 2: descend<Depth + 1>(cg::labeled_partition(g, (value >> argument) % 5), plan, value, out); break;
            default:  // threads converged in each of two branches, for which the compiler may emit common code
                if (value >> argument & 1) {
                    descend<Depth + 1>(cg::coalesced_threads(), plan, value, out);
                } else {
                    descend<Depth + 1>(cg::coalesced_threads(), plan, value, out);
                }
        }
    }
}
extern "C" __global__ void from_converged(const unsigned* values, Report* out, Plan plan) {
    unsigned t = cg::this_thread_block().thread_rank();
    descend<0>(cg::coalesced_threads(), plan, values[t], out + 5 * t);
}

template <unsigned Outer, unsigned Middle, unsigned Inner>
__device__ void nest(const unsigned* values, Report* out, Plan plan) {
    auto block = cg::this_thread_block();
    auto outer = cg::tiled_partition<Outer>(block);
    auto middle = cg::tiled_partition<Middle>(outer);
    cg::thread_block_tile<Middle> plain = middle;
    auto inner = cg::tiled_partition<Inner>(plain);
    unsigned t = block.thread_rank(), value = values[t];
    out += 7 * t;
    report(inner, value, value & 1, out++);
    out->size = plain.size() * 10000 + outer.size();
    out->rank = plain.thread_rank() * 10000 + outer.thread_rank();
    out->meta_size = plain.meta_group_size() * 10000 + outer.meta_group_size();
    out->meta_rank = plain.meta_group_rank() * 10000 + outer.meta_group_rank();
    descend<0>(cg::binary_partition(inner, value & 2), plan, value, out + 1);
}
extern "C" __global__ void from_tiles(const unsigned* values, Report* out, Plan plan, int shape) {
    switch (shape) {
        case 0: return nest<32, 16, 8>(values, out, plan);
        case 1: return nest<16, 4, 2>(values, out, plan);
        case 2: return nest<8, 2, 1>(values, out, plan);
        case 3: return nest<64, 32, 16>(values, out, plan);
        case 4: return nest<128, 64, 32>(values, out, plan);
        case 5: return nest<256, 128, 4>(values, out, plan);
    }
}

struct Any {
    unsigned long long size, rank, type;
};
__device__ Any by_value(cg::thread_group g) { g.sync(); return {g.size(), g.thread_rank(), g.get_type()}; }
__device__ Any by_reference(const cg::thread_group& g) {
    cg::sync(g);
    return {g.size(), cg::thread_rank(g), g.get_type()};
}
extern "C" __global__ void any_group(Any* out, unsigned* place) {
    auto block = cg::this_thread_block();
    auto eight = cg::tiled_partition<8>(block);
    cg::thread_group sixteen = cg::tiled_partition(block, 16);
    out += 10 * block.thread_rank();
    out[0] = by_value(block);
    out[1] = by_reference(eight);
    out[2] = by_value(eight);
    out[3] = by_reference(sixteen);
    out[4] = by_value(cg::tiled_partition(sixteen, 4));
    out[5] = by_value(cg::this_thread());
    out[6] = by_reference(cg::tiled_partition(eight, 2));
    if (block.thread_rank() % 3 == 0) out[7] = by_reference(cg::coalesced_threads());
    out[8] = by_value(cg::binary_partition(eight, block.thread_rank() < 20));
    cg::grid_group grid = cg::this_grid();
    cg::thread_group all = grid;
    out[9] = {all.size(), all.thread_rank(), all.get_type()};
    auto one = cg::this_thread();
    unsigned where = one.meta_group_rank() + 10 * one.meta_group_size();
    place[block.thread_rank()] = where + 100 * one.thread_rank() + 1000 * one.size();
}

extern "C" __global__ void places(unsigned* out) {
    auto block = cg::this_thread_block();
    auto grid = cg::this_grid();
    unsigned* mine = out + 24 * grid.thread_rank();
    dim3 all[] = {block.thread_index(), block.group_index(), block.dim_threads(), block.group_dim(), grid.block_index(),
                  grid.dim_blocks(), grid.thread_index(), grid.dim_threads()};
    for (int i = 0; i < 8; ++i) { mine[3 * i] = all[i].x; mine[3 * i + 1] = all[i].y; mine[3 * i + 2] = all[i].z; }
    if (block.num_threads() != block.size() || grid.size() != grid.num_threads() ||
        grid.num_threads() != grid.num_blocks() * block.size() ||
        grid.thread_rank() != grid.block_rank() * block.size() + block.thread_rank()) mine[0] = 0xffff;
}

// Each block's sum is complete when all threads have arrived; what lies between arriving and waiting is its own.
extern "C" __global__ void arrive_and_wait(int* sums, int* out) {
    __shared__ int sum;
    auto block = cg::this_thread_block();
    auto grid = cg::this_grid();
    if (block.thread_rank() == 0) sum = 0;
    auto cleared = block.barrier_arrive();
    int own = grid.thread_rank();
    block.barrier_wait(static_cast<cg::thread_block::arrival_token&&>(cleared));
    atomicAdd(&sum, own);
    block.sync();
    if (block.thread_rank() == 0) sums[grid.block_rank()] = sum;
    auto token = grid.barrier_arrive();
    int total = -own;
    grid.barrier_wait(static_cast<cg::grid_group::arrival_token&&>(token));
    for (unsigned i = 0; i < grid.num_blocks(); ++i) total += sums[i];
    out[grid.thread_rank()] = total;
}
"""


@dataclass(frozen=True)
class Group:
    """Threads in the order of their ranks."""

    threads: tuple[int, ...]
    meta_rank: int = 0
    meta_size: int = 1

    def split_by(self, key: Callable[[int, int], int]) -> list[Group]:
        """Returns the partitions with equal key(rank, thread), in the order of their first members."""
        parts: dict[int, list[int]] = {}
        for rank, thread in enumerate(self.threads):
            parts.setdefault(key(rank, thread), []).append(thread)
        return [Group(tuple(part), number, len(parts)) for number, part in enumerate(parts.values())]

    def tiles(self, size: int) -> list[Group]:
        return [self] if len(self.threads) <= size else self.split_by(lambda rank, _: rank // size)

    def by_predicate(self, predicate: Callable[[int], bool]) -> list[Group]:
        parts = self.split_by(lambda _, thread: predicate(thread))
        if len(parts) == 1:
            return [Group(self.threads)]
        return [Group(part.threads, int(predicate(part.threads[0])), 2) for part in parts]

    def converged(self, predicate: Callable[[int], bool]) -> list[Group]:
        return [Group(part.threads) for part in self.split_by(lambda _, thread: predicate(thread))]


def _bit(values: np.ndarray, place: int) -> Callable[[int], bool]:
    return lambda thread: bool(values[thread] >> place & 1)


def _report(group: Group, values: np.ndarray, place: int) -> list[tuple[int, ...]]:
    """Returns the `Report` of each member."""
    own = [int(values[thread]) for thread in group.threads]
    flags = [value >> place & 1 for value in own]
    ballot = sum(flag << rank for rank, flag in enumerate(flags))
    rows = []
    for rank, value in enumerate(own):
        same = sum((other % 3 == value % 3) << i for i, other in enumerate(own))
        votes = int(any(flags)) | int(all(flags)) << 1
        place_ = (len(own), rank, group.meta_size, group.meta_rank)
        rows.append((*place_, ballot, same, sum(own), sum(own[:rank]), own[-1], votes))
    return rows


def _expected(start: Sequence[Group], plan: Sequence[tuple[int, int]], values: np.ndarray) -> np.ndarray:
    """Returns the `Report` of each thread after each step."""
    out = np.zeros((len(values), 5, 10), np.uint32)
    groups = list(start)
    for depth in range(len(plan) + 1):
        for group in groups:
            out[list(group.threads), depth] = _report(group, values, depth)
        if depth == len(plan):
            break
        kind, argument = plan[depth]
        if kind == 0:
            groups = [part for group in groups for part in group.tiles(argument)]
        elif kind == 1:
            groups = [part for group in groups for part in group.by_predicate(_bit(values, argument))]
        elif kind == 2:
            groups = [
                part
                for group in groups
                for part in group.split_by(lambda _, thread: int(values[thread] >> argument) % 5)  # noqa: B023
            ]
        else:
            groups = [part for group in groups for part in group.converged(_bit(values, argument))]
    return out


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE)


def _packed(plan: Sequence[tuple[int, int]]) -> tuple[bytes, int]:
    padded = [*plan, *[(0, 1)] * (4 - len(plan))]
    numbers = [len(plan), *(kind for kind, _ in padded), *(argument for _, argument in padded)]
    return np.array(numbers, np.int32).tobytes(), 4


_tiles = st.tuples(st.just(0), st.sampled_from([1, 2, 4, 8, 16, 32]))
_group_steps = st.one_of(_tiles, st.tuples(st.integers(1, 2), st.integers(0, 9)))
_values = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).integers(0, 1000, 1024).astype(np.uint32)
)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.lists(_group_steps, max_size=3), st.booleans(), st.integers(0, 9), _values)
def test_partitions_of_converged_threads_nest(
    kernels: Kernels,
    threads: int,
    steps: list[tuple[int, int]],
    diverges: bool,
    place: int,
    values: np.ndarray,
) -> None:
    plan = [(3, place), *steps] if diverges else steps
    values = values[:threads]
    out = np.zeros((threads, 5, 10), np.uint32)
    kernels("from_converged", 1, threads, values, out, _packed(plan))
    warps = [Group(tuple(range(first, min(first + 32, threads)))) for first in range(0, threads, 32)]
    np.testing.assert_array_equal(out, _expected(warps, plan, values))


SHAPES = [(32, 16, 8), (16, 4, 2), (8, 2, 1), (64, 32, 16), (128, 64, 32), (256, 128, 4)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5), st.integers(1, 3), st.lists(_group_steps, max_size=4), _values)
def test_partitions_of_tiles_nest(
    kernels: Kernels, shape: int, count: int, plan: list[tuple[int, int]], values: np.ndarray
) -> None:
    outer, middle, inner = SHAPES[shape]
    threads = outer * count
    values = values[:threads]
    out = np.zeros((threads, 7, 10), np.uint32)
    kernels("from_tiles", 1, threads, values, out, _packed(plan), np.int32(shape))
    outers = Group(tuple(range(threads))).tiles(outer)
    middles = [part for group in outers for part in group.tiles(middle)]
    inners = [part for group in middles for part in group.tiles(inner)]
    for part in inners:
        np.testing.assert_array_equal(out[list(part.threads), 0], _report(part, values, 0))
    for small in middles:
        big = next(group for group in outers if small.threads[0] in group.threads)
        for rank, thread in enumerate(small.threads):
            ranks = rank * 10000 + big.threads.index(thread)
            sizes, meta_sizes = middle * 10000 + outer, small.meta_size * 10000 + count
            meta_ranks = small.meta_rank * 10000 + big.meta_rank
            assert list(out[thread, 1, :4]) == [sizes, ranks, meta_sizes, meta_ranks]
    start = [part for group in inners for part in group.by_predicate(_bit(values, 1))]
    np.testing.assert_array_equal(out[:, 2:], _expected(start, plan, values))


def test_any_group_acts_as_the_one_it_was_made_from(kernels: Kernels) -> None:
    out, place = np.zeros((2, 40, 10, 3), np.uint64), np.zeros(40, np.uint32)
    kernels("any_group", 1, 40, out[0], place)
    t = np.arange(40)
    np.testing.assert_array_equal(place, 1010)
    coalesced, grid, block = 1, 3, 4
    last_tile = np.where(t < 32, 16, 8)  # 40 threads are two tiles of 16 and one of 8
    expected = [
        (40, t, block),
        (8, t % 8, coalesced),
        (8, t % 8, coalesced),
        (last_tile, t % 16, coalesced),
        (4, t % 4, coalesced),
        (1, 0, coalesced),
        (2, t % 2, coalesced),
        None,
        (np.where(t // 8 == 2, 4, 8), np.where(t // 8 == 2, t % 4, t % 8), coalesced),
        (40, t, grid),
    ]
    for column, wanted in enumerate(expected):
        if wanted is not None:
            np.testing.assert_array_equal(
                out[0, :, column], np.stack(np.broadcast_arrays(*wanted, t)[:3], 1), str(column)
            )
    for warp in (range(0, 32, 3), range(33, 40, 3)):
        for rank, thread in enumerate(warp):
            assert list(out[0, thread, 7]) == [len(warp), rank, coalesced]


def test_places_in_block_and_grid(kernels: Kernels) -> None:
    grid, block = (3, 2, 4), (4, 3, 2)
    out = np.zeros((24 * 24, 8, 3), np.uint32)
    kernels("places", grid, block, out)
    b, t = np.divmod(np.arange(24 * 24), 24)
    of_block = np.stack([b % 3, b // 3 % 2, b // 6], 1)
    of_thread = np.stack([t % 4, t // 4 % 3, t // 12], 1)
    everywhere = np.ones((24 * 24, 1), np.uint32)
    rows = [
        of_thread,
        of_block,
        everywhere * block,
        everywhere * block,
        of_block,
        everywhere * grid,
        of_block * block + of_thread,
        everywhere * np.multiply(grid, block),
    ]
    np.testing.assert_array_equal(out, np.stack(rows, 1))


def test_arriving_and_waiting_apart(kernels: Kernels) -> None:
    sums, out = np.zeros(6, np.int32), np.zeros(6 * 40, np.int32)
    kernels("arrive_and_wait", 6, 40, sums, out, cooperative=True)
    ranks = np.arange(6 * 40)
    np.testing.assert_array_equal(sums, ranks.reshape(6, 40).sum(1))
    np.testing.assert_array_equal(out, ranks.sum() - ranks)
