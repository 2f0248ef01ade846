"""CUB's block- and warp-wide collectives, compared with NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from tests.support.cpu.kernels import Kernels, died_saying

REDUCTIONS = r"""
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cub/util_ptx.cuh>

struct Mat { unsigned a, b, c, d; };
// Matrices: associative and not commutative.
struct Times {
    __device__ Mat operator()(const Mat& l, const Mat& r) const {
        return Mat{l.a * r.a + l.b * r.c, l.a * r.b + l.b * r.d, l.c * r.a + l.d * r.c, l.c * r.b + l.d * r.d};
    }
};
struct Most { template <class T> __device__ T operator()(const T& a, const T& b) const { return b > a ? b : a; } };
__device__ Mat mat(int v) { return Mat{unsigned(v), 1, 1, 0}; }

template <cub::BlockReduceAlgorithm A>
__device__ void reduce_with(const int* in, int valid, int* out, Mat* product) {
    typedef cub::BlockReduce<int, 96, A> Ints;
    constexpr cub::BlockReduceAlgorithm ordered =
        A == cub::BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY ? cub::BLOCK_REDUCE_RAKING : A;
    typedef cub::BlockReduce<Mat, 96, ordered> Mats;
    __shared__ union { typename Ints::TempStorage ints; typename Mats::TempStorage mats; } temp;
    const int t = threadIdx.x;
    int items[3] = {in[t], in[t + 96], in[t + 192]};
    int results[5];
    results[0] = Ints(temp.ints).Sum(in[t]); __syncthreads();
    results[1] = Ints(temp.ints).Sum(items); __syncthreads();
    results[2] = Ints(temp.ints).Sum(in[t], valid); __syncthreads();
    results[3] = Ints(temp.ints).Reduce(in[t], Most()); __syncthreads();
    results[4] = Ints(temp.ints).Reduce(items, Most()); __syncthreads();
    Mat m = Mats(temp.mats).Reduce(mat(in[t]), Times());
    if (t == 0) { for (int i = 0; i < 5; ++i) out[i] = results[i]; *product = m; }
}
extern "C" __global__ void reduces(const int* in, int valid, int* out, Mat* product) {
    reduce_with<cub::BLOCK_REDUCE_WARP_REDUCTIONS>(in, valid, out, product); __syncthreads();
    reduce_with<cub::BLOCK_REDUCE_RAKING>(in, valid, out + 5, product + 1); __syncthreads();
    reduce_with<cub::BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY>(in, valid, out + 10, product + 2);
}
// Three dimensions; the linear rank is row-major.
extern "C" __global__ void reduce3(const double* in, double* out) {
    typedef cub::BlockReduce<double, 4, cub::BLOCK_REDUCE_WARP_REDUCTIONS, 6, 5> Reduce;
    __shared__ typename Reduce::TempStorage temp;
    const int rank = cub::RowMajorTid(4, 6, 5);
    double sum = Reduce(temp).Sum(in[blockIdx.x * 120 + rank]);
    if (rank == 0) out[blockIdx.x] = sum;
}
struct Running {
    int total;
    __device__ int operator()(int aggregate) { int old = total; total += aggregate; return old; }
};
template <cub::BlockScanAlgorithm A>
__device__ void scan_with(const int* in, int* out, Mat* products) {
    typedef cub::BlockScan<int, 64, A> Ints;
    typedef cub::BlockScan<Mat, 64, A> Mats;
    __shared__ typename Ints::TempStorage temp;
    __shared__ typename Mats::TempStorage mats;
    const int t = threadIdx.x;
    int x[2] = {in[2 * t], in[2 * t + 1]}, y[2], one, aggregate;
    int* o = out;
#define ITEMS() o[2 * t] = y[0], o[2 * t + 1] = y[1], o += 128, __syncthreads()
#define ONE() o[t] = one, o += 64, __syncthreads()
    Ints(temp).InclusiveSum(x, y); ITEMS();
    Ints(temp).ExclusiveSum(x, y, aggregate); ITEMS(); one = aggregate; ONE();
    Ints(temp).InclusiveSum(x[0], one); ONE();
    Ints(temp).ExclusiveSum(x[0], one); ONE();
    Ints(temp).ExclusiveScan(x, y, -1000, Most()); ITEMS();
    Ints(temp).ExclusiveScan(x[0], one, 7, Most(), aggregate); ONE(); one = aggregate; ONE();
    Ints(temp).InclusiveScan(x, y, Most(), aggregate); ITEMS();
    Ints(temp).InclusiveScan(x[1], one, Most()); ONE();
    y[0] = x[0]; y[1] = x[1];
    Ints(temp).InclusiveSum(y, y); ITEMS();
    Running running = {5};
    for (int tile = 0; tile < 3; ++tile) {  // the callback of the first warp carries the total from tile to tile
        Ints(temp).ExclusiveSum(x, y, running); ITEMS();
        Ints(temp).InclusiveSum(x[0], one, running); ONE();
    }
    Mat m;
    Mats(mats).InclusiveScan(mat(x[0]), m, Times());
    products[t] = m;
    __syncthreads();
    Mats(mats).ExclusiveScan(mat(x[0]), m, mat(3), Times());
    products[64 + t] = m;
}
extern "C" __global__ void scans(const int* in, int* out, Mat* products, int size) {
    scan_with<cub::BLOCK_SCAN_RAKING>(in, out, products); __syncthreads();
    scan_with<cub::BLOCK_SCAN_WARP_SCANS>(in, out + size, products + 128); __syncthreads();
    scan_with<cub::BLOCK_SCAN_RAKING_MEMOIZE>(in, out + 2 * size, products + 256);
}
// Logical warps of any size; no __syncwarp between two uses, which is enough where nothing is kept in shared memory.
template <int Size>
__device__ void warps(const int* in, int* out) {
    typedef cub::WarpReduce<int, Size> Reduce;
    typedef cub::WarpScan<int, Size> Scan;
    __shared__ typename Reduce::TempStorage reduce[128 / Size];
    __shared__ typename Scan::TempStorage scan[128 / Size];
    const int t = threadIdx.x, w = t / Size, v = in[t];
    const bool head = v % 3 == 0;
    int a, b, aggregate;
    out[t] = Reduce(reduce[w]).Sum(v); __syncwarp();
    out[128 + t] = Reduce(reduce[w]).Reduce(v, Most()); __syncwarp();
    out[256 + t] = Reduce(reduce[w]).Sum(v, (Size + 1) / 2); __syncwarp();
    out[384 + t] = Reduce(reduce[w]).HeadSegmentedSum(v, head); __syncwarp();
    out[512 + t] = Reduce(reduce[w]).TailSegmentedReduce(v, head, Most()); __syncwarp();
    Scan(scan[w]).InclusiveSum(v, a, aggregate); out[640 + t] = a; out[768 + t] = aggregate; __syncwarp();
    Scan(scan[w]).ExclusiveScan(v, a, 9, Most()); out[896 + t] = a; __syncwarp();
    Scan(scan[w]).Scan(v, a, b, 4, Most()); out[1024 + t] = a; out[1152 + t] = b; __syncwarp();
    out[1280 + t] = Scan(scan[w]).Broadcast(v, Size - 1); __syncwarp();
    Scan(scan[w]).ExclusiveSum(v, a); out[1408 + t] = a; __syncwarp();
    Scan(scan[w]).InclusiveScan(v, a, 50, Most(), aggregate); out[1536 + t] = a; out[1664 + t] = aggregate;
}
extern "C" __global__ void warps32(const int* in, int* out) { warps<32>(in, out); }
extern "C" __global__ void warps8(const int* in, int* out) { warps<8>(in, out); }
extern "C" __global__ void warps1(const int* in, int* out) { warps<1>(in, out); }
struct Wide { double x; int y[5]; };
extern "C" __global__ void shuffles(const int* in, int* out) {
    const int t = threadIdx.x;
    Wide wide; wide.x = in[t] * 0.5; for (int i = 0; i < 5; ++i) wide.y[i] = in[t] + i;
    Wide up = cub::ShuffleUp<32>(wide, 3, 0, 0xffffffff), down = cub::ShuffleDown<16>(wide, 5, 15, 0xffffffff);
    Wide same = cub::ShuffleIndex<8>(wide, 6, 0xffffffff);
    out[t] = up.y[4]; out[64 + t] = down.y[2]; out[128 + t] = int(same.x * 2) - 2 * (same.y[3] != int(same.x * 2) + 3);
    out[192 + t] = cub::MatchAny<2>(in[t]);
}
"""


@pytest.fixture(scope="module")
def reductions() -> Kernels:
    return Kernels(REDUCTIONS)


def _ints(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, count).astype(np.int32)


def _products(values: np.ndarray, start: int | None = None) -> np.ndarray:
    """Returns the running products of the matrices {v, 1, 1, 0}, modulo 2**32; with `start`, the exclusive ones."""
    running, results = np.eye(2, dtype=np.uint32), []
    for value in [start, *values[:-1]] if start is not None else values:
        running = running @ np.array([[value, 1], [1, 0]]).astype(np.int64).astype(np.uint32)
        results.append(running.ravel())
    return np.array(results)


@pytest.mark.parametrize("valid", [1, 50, 96])
def test_block_reductions_of_all_algorithms(reductions: Kernels, valid: int) -> None:
    inputs = _ints(288)
    out, product = np.zeros((3, 5), np.int32), np.zeros((3, 4), np.uint32)
    reductions("reduces", 1, 96, inputs, np.int32(valid), out, product)
    expected = [inputs[:96].sum(), inputs.sum(), inputs[:valid].sum(), inputs[:96].max(), inputs.max()]
    np.testing.assert_array_equal(out, [expected] * 3)
    np.testing.assert_array_equal(product, [_products(inputs[:96])[-1]] * 3)
    sums, values = np.zeros(3), np.random.default_rng(1).random((3, 120))
    reductions("reduce3", 3, (4, 6, 5), values, sums)
    np.testing.assert_allclose(sums, values.sum(axis=1))


def test_block_scans_of_all_algorithms(reductions: Kernels) -> None:
    inputs = _ints(128, 2)
    single, total = inputs[::2], inputs.sum()
    maxima, most1 = np.maximum.accumulate(inputs), np.maximum.accumulate(single)
    expected = [
        inputs.cumsum(), inputs.cumsum() - inputs, np.full(64, total), single.cumsum(), single.cumsum() - single,
        np.maximum(np.r_[-1000, maxima[:-1]], -1000), np.maximum(np.r_[7, most1[:-1]], 7), np.full(64, single.max()),
        maxima, np.maximum.accumulate(inputs[1::2]), inputs.cumsum(),
    ]  # fmt: skip
    for carried in (5, 5 + total + single.sum(), 5 + 2 * (total + single.sum())):
        expected += [inputs.cumsum() - inputs + carried, single.cumsum() + carried + total]
    flat = np.concatenate(expected)
    out, products = np.zeros((3, flat.size), np.int32), np.zeros((3, 2, 64, 4), np.uint32)
    reductions("scans", 1, 64, inputs, out, products, np.int32(flat.size))
    np.testing.assert_array_equal(out, [flat] * 3)
    np.testing.assert_array_equal(products, [[_products(single), _products(single, 3)]] * 3)


@pytest.mark.parametrize("size", [1, 8, 32])
def test_warp_reductions_and_scans(reductions: Kernels, size: int) -> None:
    inputs = _ints(128, 3)
    out = np.zeros((14, 128), np.int32)
    reductions(f"warps{size}", 1, 128, inputs, out)
    rows, results = inputs.reshape(-1, size), out.reshape(14, -1, size)
    np.testing.assert_array_equal(results[:3, :, 0], [rows.sum(1), rows.max(1), rows[:, : (size + 1) // 2].sum(1)])
    for row, heads, tails in zip(rows, results[3], results[4], strict=True):
        flags = row % 3 == 0
        starts = [0, *(i for i in range(1, size) if flags[i])]
        for start, end in zip(starts, [*starts[1:], size], strict=True):
            assert heads[start] == row[start:end].sum()
        starts = [0, *(i for i in range(1, size) if flags[i - 1])]
        for start, end in zip(starts, [*starts[1:], size], strict=True):
            assert tails[start] == row[start:end].max()
    maxima, everywhere = np.maximum.accumulate(rows, axis=1), np.ones_like(rows)
    before = np.c_[np.full(len(rows), -(2**31)), maxima[:, :-1]]
    expected = [
        rows.cumsum(1), everywhere * rows.sum(1)[:, None], np.maximum(before, 9), np.maximum(maxima, 4),
        np.maximum(before, 4), everywhere * rows[:, -1:], rows.cumsum(1) - rows, np.maximum(maxima, 50),
        everywhere * rows.max(1)[:, None],
    ]  # fmt: skip
    np.testing.assert_array_equal(results[5:], expected)


def test_shuffles_of_wide_types(reductions: Kernels) -> None:
    inputs, t = _ints(64, 4), np.arange(64)
    out = np.zeros((4, 64), np.int32)
    reductions("shuffles", 1, 64, inputs, out)
    np.testing.assert_array_equal(out[0], inputs[np.where(t % 32 >= 3, t - 3, t)] + 4)
    np.testing.assert_array_equal(out[1], inputs[np.where(t % 16 + 5 <= 15, t + 5, t)] + 2)
    np.testing.assert_array_equal(out[2], inputs[t // 8 * 8 + 6])
    low = inputs.reshape(2, 1, 32) & 3
    np.testing.assert_array_equal(
        out[3].view(np.uint32), ((low == low.transpose(0, 2, 1)) << np.arange(32, dtype=np.uint64)).sum(2).ravel()
    )


ARRANGEMENTS = r"""
#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_exchange.cuh>
#include <cub/warp/warp_load.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_store.cuh>

template <cub::BlockLoadAlgorithm L, cub::BlockStoreAlgorithm S>
__device__ void copy_with(const int* in, int* out, int valid) {
    typedef cub::BlockLoad<int, 64, 3, L> Load;
    typedef cub::BlockStore<int, 64, 3, S> Store;
    __shared__ union { typename Load::TempStorage load; typename Store::TempStorage store; } temp;
    int items[3];
    Load(temp.load).Load(in, items); __syncthreads();
    for (int& item : items) item = item * 64 + threadIdx.x;
    Store(temp.store).Store(out, items); __syncthreads();
    Load(temp.load).Load(in, items, valid, -1); __syncthreads();
    Store(temp.store).Store(out + 192, items, valid + 1); __syncthreads();
}
extern "C" __global__ void copies(const int* in, int* out, int valid) {
    copy_with<cub::BLOCK_LOAD_DIRECT, cub::BLOCK_STORE_DIRECT>(in, out, valid);
    copy_with<cub::BLOCK_LOAD_TRANSPOSE, cub::BLOCK_STORE_TRANSPOSE>(in, out + 384, valid);
    copy_with<cub::BLOCK_LOAD_WARP_TRANSPOSE, cub::BLOCK_STORE_WARP_TRANSPOSE>(in, out + 768, valid);
    copy_with<cub::BLOCK_LOAD_VECTORIZE, cub::BLOCK_STORE_VECTORIZE>(in, out + 1152, valid);
    copy_with<cub::BLOCK_LOAD_STRIPED, cub::BLOCK_STORE_STRIPED>(in, out + 1536, valid);
    copy_with<cub::BLOCK_LOAD_STRIPED, cub::BLOCK_STORE_DIRECT>(in, out + 1920, valid);
}
// Items become their own rank in the new arrangement: out holds, thread by thread, what each got.
extern "C" __global__ void exchanges(const int* in, const int* ranks, int* out) {
    typedef cub::BlockExchange<int, 64, 3> Exchange;
    __shared__ typename Exchange::TempStorage temp;
    const int t = threadIdx.x;
    int x[3], y[3], r[3], g[3]; bool valid[3];
    for (int i = 0; i < 3; ++i) {
        x[i] = in[3 * t + i]; r[i] = ranks[3 * t + i]; g[i] = r[i] % 5 ? r[i] : -1; valid[i] = r[i] % 7 != 0;
    }
#define SKIP(n) for (int i = 0; i < 3; ++i) if ((i * 64 + t) % n == 0) y[i] = -7
#define PUT() for (int i = 0; i < 3; ++i) out[3 * t + i] = y[i]; out += 192; __syncthreads()
    Exchange(temp).StripedToBlocked(x, y); PUT();
    Exchange(temp).BlockedToStriped(x, y); PUT();
    Exchange(temp).WarpStripedToBlocked(x, y); PUT();
    Exchange(temp).BlockedToWarpStriped(x, y); PUT();
    Exchange(temp).ScatterToBlocked(x, y, r); PUT();
    Exchange(temp).ScatterToStriped(x, y, r); PUT();
    for (int i = 0; i < 3; ++i) y[i] = x[i];
    Exchange(temp).BlockedToStriped(y); Exchange(temp).StripedToBlocked(y); PUT();
    for (int i = 0; i < 3; ++i) y[i] = -7;
    Exchange(temp).ScatterToStripedGuarded(x, y, g); SKIP(5); PUT();
    Exchange(temp).ScatterToStripedFlagged(x, y, r, valid); SKIP(7); PUT();
}
template <class Key, int Items>
__device__ void sort_with(const Key* in, Key* out, int* order, int begin, int end) {
    typedef cub::BlockRadixSort<Key, 64, Items, int> Pairs;
    typedef cub::BlockRadixSort<Key, 64, Items> Keys;
    __shared__ union { typename Pairs::TempStorage pairs; typename Keys::TempStorage keys; } temp;
    const int t = threadIdx.x, n = 64 * Items;
    Key k[Items]; int v[Items];
#define FILL() for (int i = 0; i < Items; ++i) k[i] = in[t * Items + i], v[i] = t * Items + i
#define TAKE(at) for (int i = 0; i < Items; ++i) out[at] = k[i], order[at] = v[i]; out += n; order += n; __syncthreads()
    FILL(); Pairs(temp.pairs).Sort(k, v, begin, end); TAKE(t * Items + i);
    FILL(); Pairs(temp.pairs).SortDescending(k, v, begin, end); TAKE(t * Items + i);
    FILL(); Pairs(temp.pairs).SortBlockedToStriped(k, v, begin, end); TAKE(i * 64 + t);
    FILL(); Pairs(temp.pairs).SortDescendingBlockedToStriped(k, v, begin, end); TAKE(i * 64 + t);
    FILL(); Keys(temp.keys).Sort(k); TAKE(t * Items + i);
}
#define SORT(name, Key) extern "C" __global__ void name(const Key* in, Key* out, int* order, int begin, int end) { \
    sort_with<Key, 3>(in, out, order, begin, end); \
}
SORT(sort_u32, unsigned) SORT(sort_i64, long long) SORT(sort_f32, float) SORT(sort_f64, double)
SORT(sort_i8, signed char)
// By the hundreds only, so that equal keys show whether their order is kept.
struct ByHundreds { __device__ bool operator()(int a, int b) const { return a / 100 < b / 100; } };
extern "C" __global__ void merges(const int* in, int valid, int* out, int* order) {
    typedef cub::BlockMergeSort<int, 64, 3, int> Sort;
    typedef cub::WarpMergeSort<int, 3, 16, int> Warp;
    __shared__ typename Sort::TempStorage temp;
    __shared__ typename Warp::TempStorage warps[4];
    const int t = threadIdx.x;
    int k[3], v[3];
#define FILL3() for (int i = 0; i < 3; ++i) k[i] = in[t * 3 + i], v[i] = t * 3 + i
#define TAKE3() for (int i = 0; i < 3; ++i) out[t * 3 + i] = k[i], order[t * 3 + i] = v[i]; \
    out += 192; order += 192; __syncthreads()
    FILL3(); Sort(temp).Sort(k, v, ByHundreds()); TAKE3();
    FILL3(); Sort(temp).StableSort(k, v, ByHundreds(), valid, 100000); TAKE3();
    FILL3(); Warp(warps[t / 16]).Sort(k, v, ByHundreds()); TAKE3();
    FILL3(); Warp(warps[t / 16]).StableSort(k, ByHundreds()); TAKE3();
}
template <cub::BlockHistogramAlgorithm A>
__device__ void count_with(const unsigned char* in, unsigned* out) {
    typedef cub::BlockHistogram<unsigned char, 64, 3, 37, A> Histogram;
    __shared__ typename Histogram::TempStorage temp;
    __shared__ unsigned bins[37];
    unsigned char x[3] = {in[threadIdx.x * 3], in[threadIdx.x * 3 + 1], in[threadIdx.x * 3 + 2]};
    Histogram(temp).Histogram(x, bins); __syncthreads();
    Histogram(temp).Composite(x, bins); __syncthreads();
    if (threadIdx.x < 37) out[threadIdx.x] = bins[threadIdx.x];
    __syncthreads();
}
extern "C" __global__ void counts(const unsigned char* in, unsigned* out) {
    count_with<cub::BLOCK_HISTO_ATOMIC>(in, out); count_with<cub::BLOCK_HISTO_SORT>(in, out + 37);
}
struct Differs { __device__ bool operator()(int a, int b) const { return a / 4 != b / 4; } };
struct DiffersAt { __device__ bool operator()(int a, int b, int i) const { return a / 4 != b / 4 || i % 10 == 0; } };
struct Minus { __device__ int operator()(int a, int b) const { return a - b; } };
extern "C" __global__ void neighbours(const int* in, int valid, int* out) {
    typedef cub::BlockDiscontinuity<int, 64> Flags;
    typedef cub::BlockAdjacentDifference<int, 64> Difference;
    typedef cub::BlockShuffle<int, 64> Shuffle;
    __shared__ typename Flags::TempStorage flags;
    __shared__ typename Difference::TempStorage difference;
    __shared__ typename Shuffle::TempStorage shuffle;
    const int t = threadIdx.x;
    int x[3] = {in[t * 3], in[t * 3 + 1], in[t * 3 + 2]}, y[3], z[3], edge = -5;
#define OUT(a) for (int i = 0; i < 3; ++i) out[t * 3 + i] = a[i]; out += 192; __syncthreads()
    Flags(flags).FlagHeads(y, x, Differs()); OUT(y);
    Flags(flags).FlagHeads(y, x, Differs(), in[0] + 1000); OUT(y);
    Flags(flags).FlagTails(y, x, Differs()); OUT(y);
    Flags(flags).FlagTails(y, x, DiffersAt(), in[191]); OUT(y);
    Flags(flags).FlagHeadsAndTails(y, in[0], z, in[191], x, Differs()); OUT(y); OUT(z);
    Difference(difference).SubtractLeft(x, y, Minus()); OUT(y);
    Difference(difference).SubtractLeft(x, y, Minus(), 70); OUT(y);
    Difference(difference).SubtractLeftPartialTile(x, y, Minus(), valid); OUT(y);
    Difference(difference).SubtractRight(x, y, Minus(), 70); OUT(y);
    Difference(difference).SubtractRightPartialTile(x, y, Minus(), valid); OUT(y);
    y[0] = y[1] = y[2] = -3;
    Shuffle(shuffle).Up(x, y, edge); __syncthreads(); if (t == 0) y[0] = edge; OUT(y);
    Shuffle(shuffle).Down(x, y, edge); __syncthreads(); if (t == 63) y[2] = edge; OUT(y);
    int one = -9, turned;
    Shuffle(shuffle).Offset(x[0], one, -4); __syncthreads();
    if (t < 4) one = -9;
    Shuffle(shuffle).Rotate(x[0], turned, 9u); __syncthreads();
    z[0] = one; z[1] = turned; z[2] = 0; OUT(z);
}
extern "C" __global__ void warp_io(const int* in, const int* ranks, int* out) {
    typedef cub::WarpLoad<int, 3, cub::WARP_LOAD_TRANSPOSE, 16> Load;
    typedef cub::WarpLoad<int, 3, cub::WARP_LOAD_STRIPED, 16> Striped;
    typedef cub::WarpStore<int, 3, cub::WARP_STORE_STRIPED, 16> Store;
    typedef cub::WarpExchange<int, 3, 16> Exchange;
    __shared__ union {
        typename Load::TempStorage load; typename Striped::TempStorage striped;
        typename Store::TempStorage store; typename Exchange::TempStorage exchange;
    } temp[4];
    const int t = threadIdx.x, w = t / 16;
    int x[3], y[3], r[3];
    Load(temp[w].load).Load(in + w * 48, x); __syncwarp();
    Store(temp[w].store).Store(out + w * 48, x, 40); out += 192; __syncwarp();
    Striped(temp[w].striped).Load(in + w * 48, x, 40, -2); __syncwarp();
    OUT(x);
    Load(temp[w].load).Load(in + w * 48, x); __syncwarp();
    Exchange(temp[w].exchange).BlockedToStriped(x, y); __syncwarp(); OUT(y);
    Exchange(temp[w].exchange).StripedToBlocked(x, y); __syncwarp(); OUT(y);
    for (int i = 0; i < 3; ++i) r[i] = ranks[(t % 16) * 3 + i];
    Exchange(temp[w].exchange).ScatterToStriped(x, r); __syncwarp(); OUT(x);
}
"""


@pytest.fixture(scope="module")
def arrangements() -> Kernels:
    return Kernels(ARRANGEMENTS)


def _striped(values: np.ndarray, threads: int = 64) -> np.ndarray:
    """Returns the items of each thread, by thread, of `values` in striped arrangement."""
    return values.reshape(-1, threads).T.ravel()


def _unstriped(values: np.ndarray, threads: int = 64) -> np.ndarray:
    return values.reshape(threads, -1).T.ravel()


@pytest.mark.parametrize("valid", [0, 100, 191])
def test_loads_and_stores_of_all_algorithms(arrangements: Kernels, valid: int) -> None:
    inputs = _ints(192, 5)
    out = np.full((6, 2, 192), -3, np.int32)
    arrangements("copies", 1, 64, inputs, out, np.int32(valid))
    place = np.arange(192)
    guarded = np.where(place < valid, inputs, np.where(place == valid, -1, -3))
    np.testing.assert_array_equal(out[:4], [[inputs * 64 + place // 3, guarded]] * 4)
    np.testing.assert_array_equal(out[4], [inputs * 64 + place % 64, guarded])
    mixed = np.where(place < valid, inputs, -1)
    turned = np.where(place <= valid, _striped(mixed), -3)
    np.testing.assert_array_equal(out[5], [_striped(inputs * 64 + place % 64), turned])


def test_exchanges(arrangements: Kernels) -> None:
    inputs, ranks = _ints(192, 6), np.random.default_rng(7).permutation(192).astype(np.int32)
    out = np.zeros((9, 192), np.int32)
    arrangements("exchanges", 1, 64, inputs, ranks, out)
    scattered = np.zeros(192, np.int32)
    scattered[ranks] = inputs
    warps = inputs.reshape(2, 96)
    place = np.arange(192)
    expected = [
        _unstriped(inputs), _striped(inputs), np.ravel([_unstriped(w, 32) for w in warps]),
        np.ravel([_striped(w, 32) for w in warps]), scattered, _striped(scattered), inputs,
        _striped(np.where(place % 5 == 0, -7, scattered)), _striped(np.where(place % 7 == 0, -7, scattered)),
    ]  # fmt: skip
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", ["u32", "i64", "f32", "f64", "i8"])
@pytest.mark.parametrize("bits", [None, (3, 7)])
def test_radix_sorts_are_stable_and_use_the_requested_bits(
    arrangements: Kernels, name: str, bits: tuple[int, int] | None
) -> None:
    dtype = np.dtype({"u32": "u4", "i64": "i8", "f32": "f4", "f64": "f8", "i8": "i1"}[name])
    random = np.random.default_rng(8)
    keys = random.integers(0, 256, 192 * dtype.itemsize).astype(np.uint8).view(dtype)
    if dtype.kind == "f":
        keys = random.normal(size=192).astype(dtype)
        keys[:20], keys[20:22] = random.choice(np.array([0.0, -0.0, 1.0], dtype), 20), [np.inf, -np.inf]
    unsigned = np.dtype(f"u{dtype.itemsize}")
    raw, sign = (keys + dtype.type(0)).view(unsigned), unsigned.type(1 << (8 * dtype.itemsize - 1))
    if dtype.kind == "f":  # the sum turned -0.0 into 0.0
        raw = np.where(raw & sign, ~raw, raw | sign)
    elif dtype.kind == "i":
        raw = raw ^ sign
    begin, end = bits or (0, 8 * dtype.itemsize)
    digits = (raw >> unsigned.type(begin)) & unsigned.type((1 << (end - begin)) - 1)
    out, order = np.zeros((5, 192), dtype), np.zeros((5, 192), np.int32)
    arrangements(f"sort_{name}", 1, 64, keys, out, order, np.int32(begin), np.int32(end))
    up, down = np.argsort(digits, kind="stable"), np.argsort(~digits, kind="stable")
    np.testing.assert_array_equal(order[:4], [up, down, up, down])
    np.testing.assert_array_equal(out[:4], keys[order[:4]])
    np.testing.assert_array_equal(out[4], np.sort(keys))


@pytest.mark.parametrize("valid", [1, 100, 192])
def test_merge_sorts_are_stable(arrangements: Kernels, valid: int) -> None:
    inputs = np.abs(_ints(192, 9))
    out, order = np.zeros((4, 192), np.int32), np.zeros((4, 192), np.int32)
    arrangements("merges", 1, 64, inputs, np.int32(valid), out, order)
    np.testing.assert_array_equal(order[0], np.argsort(inputs // 100, kind="stable"))
    np.testing.assert_array_equal(order[1, :valid], np.argsort(inputs[:valid] // 100, kind="stable"))
    np.testing.assert_array_equal(out[:2, :valid], [inputs[order[0, :valid]], inputs[order[1, :valid]]])
    np.testing.assert_array_equal(out[1, valid:], 100000)
    np.testing.assert_array_equal(
        order[2].reshape(4, 48), np.argsort(inputs.reshape(4, 48) // 100, axis=1, kind="stable") + 48 * np.c_[:4]
    )
    np.testing.assert_array_equal(out[2:], [inputs[order[2]]] * 2)


def test_histograms_neighbours_and_warp_arrangements(arrangements: Kernels) -> None:
    bytes_ = np.random.default_rng(10).integers(0, 37, 192).astype(np.uint8)
    bins = np.zeros((2, 37), np.uint32)
    arrangements("counts", 1, 64, bytes_, bins)
    np.testing.assert_array_equal(bins, [2 * np.bincount(bytes_, minlength=37)] * 2)

    x, valid, place = np.random.default_rng(11).integers(0, 12, 192).astype(np.int32), 100, np.arange(192)
    out = np.zeros((14, 192), np.int32)
    arrangements("neighbours", 1, 64, x, np.int32(valid), out)
    change = x[1:] // 4 != x[:-1] // 4
    left, right = np.r_[x[0], x[1:] - x[:-1]], x - np.r_[x[1:], 70]
    single = x[::3]
    rolled = np.zeros((64, 3), np.int32)
    rolled[:, 0], rolled[:, 1] = np.r_[[-9] * 4, single[:-4]], np.roll(single, -9)
    expected = [
        np.r_[True, change], np.r_[True, change], np.r_[change, True], np.r_[change | (place[1:] % 10 == 0), False],
        np.r_[False, change], np.r_[change, False], left, np.r_[x[0] - 70, left[1:]], np.where(place < valid, left, x),
        right, np.where(place < valid - 1, right, x), np.r_[x[-1], x[:-1]], np.r_[x[1:], x[0]], rolled.ravel(),
    ]  # fmt: skip
    np.testing.assert_array_equal(out, expected)

    ranks = np.random.default_rng(12).permutation(48).astype(np.int32)
    out = np.full((5, 192), -3, np.int32)
    arrangements("warp_io", 1, 64, x, ranks, out)
    warps = x.reshape(4, 48)
    turned = np.array([_unstriped(w, 16) for w in warps])
    within = np.arange(48)
    scattered = np.zeros((4, 48), np.int32)
    scattered[:, ranks] = warps
    np.testing.assert_array_equal(out[0].reshape(4, 48), np.where(within < 40, turned, -3))
    np.testing.assert_array_equal(out[1].reshape(4, 48), [_striped(np.where(within < 40, w, -2), 16) for w in warps])
    np.testing.assert_array_equal(out[2:4].reshape(2, 4, 48), [[_striped(w, 16) for w in warps], turned])
    np.testing.assert_array_equal(out[4].reshape(4, 48), [_striped(w, 16) for w in scattered])


def test_threads_that_are_missing_end_the_process(reductions: Kernels, tmp_path: Path) -> None:
    message = died_saying(reductions.image, "reduces", 64, tmp_path)
    assert "not as many threads take part as the template's block dimensions say" in message


SUM = """
extern "C" __global__ void total(int* out) {
    typedef cub::BlockReduce<int, 64> Reduce;
    __shared__ typename Reduce::TempStorage temp;
    int sum = Reduce(temp).Sum(threadIdx.x);
    if (threadIdx.x == 0) *out = sum;
}
"""


@pytest.mark.parametrize("include", ["<cub/block/block_reduce.cuh>", '"cub/cub.cuh"'])
def test_the_backends_own_headers_serve_where_cubs_are_sent_along(include: str) -> None:
    sent = {"cub/block/block_reduce.cuh": '#error "asm"\n', "cub/cub.cuh": '#error "asm"\n', "cub/other.cuh": ""}
    kernels = Kernels(f"#include {include}\n#include <cub/other.cuh>\n{SUM}", **sent)
    out = np.zeros(1, np.int32)
    kernels("total", 1, 64, out)
    assert out[0] == sum(range(64))


@pytest.mark.parametrize(
    "source, name",
    [
        ("cub::DeviceReduce::Sum(nullptr, bytes, in, in, 4);", "CUB's device-wide algorithms"),
        ("typedef cub::BlockRadixSort<Pair, 32, 1> Sort; Pair keys[1]; Sort().Sort(keys);", "BlockRadixSort of keys"),
        ("#include <cub/block/block_run_length_decode.cuh>", "cub::BlockRunLengthDecode"),
    ],
)
def test_unsupported_cub_features_are_refused_by_name(source: str, name: str) -> None:
    with pytest.raises(Refusal) as caught:
        Kernels(
            "#include <cub/cub.cuh>\nstruct Pair { int a; float b; };\n"
            f'extern "C" __global__ void k(int* in) {{\n    size_t bytes = 0;\n{source}\n}}\n'
        )
    assert caught.value.reason is Reason.UNSUPPORTED and name in caught.value.message
    assert caught.value.details["line"] == "5"
