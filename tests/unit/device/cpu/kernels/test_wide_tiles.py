"""Cooperative groups: tiles larger than a warp, and refused features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from tests.support.cpu.kernels import Kernels

WIDE = r"""
#define _CG_ABI_EXPERIMENTAL
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

// Tiles synchronise on their own: each goes as many rounds as it is large, and reads what all of its threads wrote.
template <class Tile> __device__ int rounds(const Tile& tile, int* shared, int count) {
    int first = threadIdx.x - tile.thread_rank(), own = threadIdx.x, seen = 0;
    for (int round = 0; round < count; ++round) {
        shared[own] = round * 1000 + own;
        tile.sync();
        int other = first + (tile.thread_rank() + 37 * (round + 1)) % tile.size();
        seen += shared[other] == round * 1000 + other;
        tile.sync();
    }
    return seen;
}
template <unsigned Size> __device__ void wide(int* shared, int* out) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<Size>(block);
    int t = tile.thread_rank();
    out += 10 * threadIdx.x;
    out[0] = tile.meta_group_rank() * 100 + tile.meta_group_size();
    out[1] = rounds(tile, shared, 1 + tile.meta_group_rank());
    out[2] = tile.any(t == int(Size) - 1) | tile.any(t == int(Size)) << 1;
    out[3] = tile.all(t < int(Size)) | tile.all(t != 40) << 1;
    out[4] = tile.shfl(threadIdx.x, Size - 3);
    out[5] = cg::reduce(tile, t, cg::plus<int>());
    out[6] = cg::reduce(tile, double(threadIdx.x), [](double a, double b) { return a > b ? a : b; });
    cg::thread_block_tile<Size> plain = tile;
    cg::sync(plain);
    out[7] = plain.meta_group_rank() * 100 + plain.meta_group_size();
    // A tile of a tile, in some of the tiles only.
    auto inner = cg::tiled_partition<Size / 2>(plain);
    if (inner.meta_group_rank() == 1) out[8] = cg::reduce(inner, 1, cg::plus<int>()) * 10 + inner.meta_group_size();
    auto warp = cg::tiled_partition<32>(block);
    out[9] = warp.shfl(tile.shfl(t, 5), 3);
}
extern "C" __global__ void tiles(int* out, int size) {
    __shared__ cg::block_tile_memory<1024> memory;
    __shared__ int shared[1024];
    auto block = cg::this_thread_block(memory);
#ifdef __HEARTH_CPU__  // older CUDA's names
    __shared__ cg::experimental::block_tile_memory<4, 1024> older;
    auto same = cg::experimental::tiled_partition<64>(cg::experimental::this_thread_block(older));
    if (same.size() != 64 || same.meta_group_rank() != threadIdx.x / 64) return;
#endif
    block.sync();
    switch (size) {
        case 64: return wide<64>(shared, out);
        case 128: return wide<128>(shared, out);
        case 256: return wide<256>(shared, out);
        case 512: return wide<512>(shared, out);
        case 1024: return wide<1024>(shared, out);
    }
}
"""


@pytest.fixture(scope="module")
def wide_tiles() -> Kernels:
    return Kernels(WIDE)


@pytest.mark.parametrize("size", [64, 128, 256, 512, 1024])
def test_tiles_of_more_than_a_warp(wide_tiles: Kernels, size: int) -> None:
    out = np.zeros((2, 1024, 10), np.int32)
    wide_tiles("tiles", 2, 1024, out[0], np.int32(size))  # both blocks write the same values
    t, count = np.arange(1024), 1024 // size
    rank, tile = t % size, t // size
    inner = rank // (size // 2) == 1
    expected = [
        tile * 100 + count,
        tile + 1,
        np.ones(1024),
        np.ones(1024),
        tile * size + size - 3,
        np.full(1024, size * (size - 1) // 2),
        tile * size + size - 1,
        tile * 100 + count,
        np.where(inner, size // 2 * 10 + 2, 0),
        np.full(1024, 5),
    ]
    np.testing.assert_array_equal(out[0], np.stack(expected, 1))


REFUSED: dict[str, Callable[[Refusal], bool]] = {
    "out[0] = cg::this_grid().num_clusters();": lambda e: "clusters" in e.message,
    "cg::this_multi_grid().sync();": lambda e: "multi_grid" in e.message,
    "cg::reduce(cg::this_thread_block(), 1, cg::plus<int>());": lambda e: "a tile or a coalesced" in e.message,
    "cg::tiled_partition<8>(cg::coalesced_threads());": lambda e: "thread_block or a tile" in e.message,
    "cg::tiled_partition<8>(cg::tiled_partition<8>(cg::this_thread_block()));": lambda e: "smaller" in e.message,
    "cg::tiled_partition<24>(cg::this_thread_block()).sync();": lambda e: "power of two" in e.message,
    "cg::tiled_partition<64>(cg::this_thread_block()).ballot(1);": lambda e: "ballot" in e.message,
    "cg::coalesced_threads().shfl_xor(1, 1);": lambda e: "shfl_xor" in e.message,
}


@pytest.mark.parametrize("line", REFUSED)
def test_unsupported_group_operations_are_refused(line: str) -> None:
    with pytest.raises(Refusal) as caught:
        Kernels(
            "#include <cooperative_groups/reduce.h>\nnamespace cg = cooperative_groups;\n"
            f'extern "C" __global__ void k(int* out) {{\n    {line}\n}}\n'
        )
    unsupported = "clusters" in line or "multi_grid" in line
    assert caught.value.reason is (Reason.UNSUPPORTED if unsupported else Reason.COMPILE_FAILED)
    assert REFUSED[line](caught.value), caught.value.message
