"""Shared memory, barriers, warp functions and cooperative groups, compared with the CUDA documentation."""

from __future__ import annotations

import numpy as np
import pytest

from hearth_proto.reasons import Refusal
from tests.support.cpu.kernels import Kernels

SOURCE = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
#define TILE 16
#define FULL 0xffffffffu

extern "C" __global__ void transpose(const float* in, float* out, int n) {
    __shared__ float tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    tile[threadIdx.y][threadIdx.x] = in[y * n + x];
    __syncthreads();
    out[(blockIdx.x * TILE + threadIdx.y) * n + blockIdx.y * TILE + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < n; t += TILE) {
        as[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
        bs[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}
__device__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(FULL, v, offset);
    return v;
}
__device__ float block_sum(float v) {
    static __shared__ float partial[32];
    int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    v = warp_sum(v);
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / warpSize ? partial[lane] : 0;
    if (warp == 0) v = warp_sum(v);
    return v;
}
extern "C" __global__ void total(const float* in, float* out, int n) {
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += in[i];
    v = block_sum(v);
    if (threadIdx.x == 0) atomicAdd(out, v);
}
extern "C" __global__ void dynamic(int* data) {
    extern __shared__ int both[];
    int* second = both + blockDim.x;
    both[threadIdx.x] = data[threadIdx.x];
    second[threadIdx.x] = 100 * data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = both[blockDim.x - 1 - threadIdx.x] + second[(threadIdx.x + 1) % blockDim.x];
}
extern __shared__ __align__(16) unsigned char outside[];
__device__ float* slot(int i) { return reinterpret_cast<float*>(outside) + i; }
template <class T> __global__ void rotate(T* data) {
    extern __shared__ double rows[][4];
    rows[threadIdx.x][1] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = rows[(threadIdx.x + 1) % blockDim.x][1];
    __syncthreads();
    *slot(threadIdx.x) = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] += ((float*)outside)[0];
}
extern "C" __global__ void votes(int* out) {
    int t = threadIdx.x;
    int* mine = out + 8 * t;
    mine[0] = __syncthreads_count(t % 3 == 0);
    mine[1] = __syncthreads_and(t < 1000);
    mine[2] = __syncthreads_or(t == 5);
    mine[3] = __syncthreads_and(t != 5);
    mine[4] = __ballot_sync(FULL, t % 2);
    mine[5] = __any_sync(FULL, t == 40);
    mine[6] = __all_sync(FULL, t >= 32);
    mine[7] = __syncthreads_or(0);
}
extern "C" __global__ void shuffles(int* out, double* wide, unsigned long long* big) {
    int t = threadIdx.x;
    int* mine = out + 8 * t;
    mine[0] = __shfl_sync(FULL, t, 3);
    mine[1] = __shfl_sync(FULL, t, t + 9, 8);
    mine[2] = __shfl_up_sync(FULL, t, 5);
    mine[3] = __shfl_up_sync(FULL, t, 3, 16);
    mine[4] = __shfl_down_sync(FULL, t, 5);
    mine[5] = __shfl_down_sync(FULL, t, 3, 4);
    mine[6] = __shfl_xor_sync(FULL, t, 7);
    mine[7] = __shfl_xor_sync(FULL, t, 12, 8);
    wide[t] = __shfl_xor_sync(FULL, t + 0.25, 1);
    big[t] = __shfl_down_sync(FULL, (1ull << 40) + t, 1);
}
extern "C" __global__ void matches(unsigned* out) {
    int t = threadIdx.x, predicate;
    unsigned* mine = out + 8 * t;
    mine[0] = __match_any_sync(FULL, t % 4);
    mine[1] = __match_all_sync(FULL, t / 32, &predicate);
    mine[2] = predicate;
    mine[3] = __match_all_sync(FULL, t, &predicate) + predicate;
    mine[4] = __reduce_add_sync(FULL, t);
    mine[5] = __reduce_max_sync(FULL, -t);
    mine[6] = __reduce_min_sync(FULL, unsigned(t));
    mine[7] = __reduce_xor_sync(FULL, unsigned(t)) | __reduce_or_sync(FULL, 1u << t % 32) ;
}
extern "C" __global__ void divergent(unsigned* out) {
    int t = threadIdx.x;
    if (t % 32 < 8) {
        unsigned m = __activemask();
        out[t] = m + __shfl_sync(m, t, 2);
    } else {
        unsigned m = __ballot_sync(0xffffff00u, t % 2);
        out[t] = m;
    }
    __syncwarp();
    if (t == 7) return;
    __syncthreads();
    if (t % 5 == 0) { auto g = cg::coalesced_threads(); atomicAdd(&out[64], g.thread_rank() == 0 ? g.size() : 0); }
}
extern "C" __global__ void early_exit(int* out, int n) {
    __shared__ int s[256];
    int t = threadIdx.x;
    if (t >= n) return;
    s[t] = t;
    __syncthreads();
    int v = s[n - 1 - t];
    __syncthreads();
    v += __shfl_xor_sync(FULL, v, 1);
    out[t] = v;
}
extern "C" __global__ void ordered(int* out) {
    __shared__ volatile int turn;
    if (threadIdx.x == 0) turn = 0;
    __syncthreads();
    while (atomicCAS((int*)&turn, (int)threadIdx.x, (int)threadIdx.x) != (int)threadIdx.x) {}
    out[threadIdx.x] = turn;
    __threadfence_block();
    atomicAdd((int*)&turn, 1);
}
template <unsigned N> __device__ float tile_sum(cg::thread_block_tile<N> g, float v) {
    for (int o = g.size() / 2; o > 0; o /= 2) v += g.shfl_down(v, o);
    return g.shfl(v, 0);
}
extern "C" __global__ void groups(const float* in, float* sums, int* out) {
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    cg::thread_block_tile<8> eight = cg::tiled_partition<8>(warp);
    int t = block.thread_rank();
    sums[t] = tile_sum(eight, in[t]);
    block.sync();
    int* mine = out + 10 * t;
    mine[0] = cg::reduce(warp, t, cg::plus<int>());
    mine[1] = cg::reduce(eight, t, cg::greater<int>());
    mine[2] = cg::reduce(eight, t, cg::less<int>());
    mine[3] = eight.thread_rank() * 1000 + eight.meta_group_rank() * 10 + eight.meta_group_size();
    mine[4] = eight.ballot(t % 2) | eight.any(t == 9) << 16 | eight.all(t < 64) << 17;
    mine[5] = cg::inclusive_scan(warp, 1);
    mine[6] = cg::exclusive_scan(eight, t);
    if (t % 3 == 0) {
        auto g = cg::coalesced_threads();
        mine[7] = g.size() * 1000 + g.thread_rank();
        mine[8] = cg::reduce(g, t, cg::plus<int>());
    }
    warp.sync();
    auto parity = cg::labeled_partition(warp, t % 4);
    mine[9] = parity.size() * 100 + parity.thread_rank() + (int)cg::this_grid().thread_rank() * 0;
    cg::sync(block);
}
extern "C" __global__ void ranks(unsigned* out) {
    auto grid = cg::this_grid();
    out[grid.thread_rank()] = grid.size() + cg::this_thread_block().group_index().x;
}
extern "C" __global__ void scan(const int* in, int* out) {
    extern __shared__ int temp[];
    int t = threadIdx.x, from = 0, to = 1, n = blockDim.x;
    temp[t] = in[blockIdx.x * n + t];
    __syncthreads();
    for (int offset = 1; offset < n; offset *= 2) {
        from = 1 - to; to = 1 - to; from = 1 - to;
        temp[to * 0 + 0] = temp[0];
        int v = t >= offset ? temp[t - offset] : 0;
        __syncthreads();
        temp[t] += v;
        __syncthreads();
    }
    out[blockIdx.x * n + t] = temp[t];
}
extern "C" __global__ void large_frame(float* out) {
    float local[6000];
    for (int i = 0; i < 6000; ++i) local[i] = i + threadIdx.x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 6000; ++i) sum += local[(i * 7) % 6000];
    out[threadIdx.x] = sum;
}
struct Accumulator {
    float* cells;
    __device__ Accumulator(float* p) : cells(p) { cells[threadIdx.x] = 0; __syncthreads(); }
    __device__ void add(float v) { cells[threadIdx.x] += v; }
};
extern "C" __global__ void constructor(float* out) {
    __shared__ float cells[64];
    Accumulator acc(cells);
    acc.add(threadIdx.x);
    out[threadIdx.x] = acc.cells[threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(SOURCE, names=["rotate<float>", "rotate<double>"])


T = np.arange(64)


def test_static_shared_bytes(kernels: Kernels) -> None:
    sizes = {
        name: kernels.module.function(name).attributes.static_shared_bytes
        for name in ("transpose", "matmul", "total", "dynamic")
    }
    assert sizes == {"transpose": 16 * 17 * 4, "matmul": 2 * 16 * 16 * 4, "total": 128, "dynamic": 0}


def test_transpose(kernels: Kernels) -> None:
    a = np.random.default_rng(0).random((128, 128), dtype=np.float32)
    out = np.zeros_like(a)
    kernels("transpose", (8, 8), (16, 16), a, out, np.int32(128))
    np.testing.assert_array_equal(out, a.T)


def test_tiled_matmul(kernels: Kernels) -> None:
    a, b = np.random.default_rng(0).random((2, 96, 96), dtype=np.float32)
    c = np.zeros_like(a)
    kernels("matmul", (6, 6), (16, 16), a, b, c, np.int32(96))
    np.testing.assert_allclose(c, a @ b, rtol=1e-4)


@pytest.mark.parametrize("block", [32, 256, 1024])
def test_block_reduction(kernels: Kernels, block: int) -> None:
    x = np.random.default_rng(0).random(50_000, dtype=np.float32)
    out = np.zeros(1, np.float32)
    kernels("total", 13, block, x, out, np.int32(len(x)))
    np.testing.assert_allclose(out[0], x.sum(dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize("n", [1, 33, 257, 1024])
def test_dynamic_shared(kernels: Kernels, n: int) -> None:
    data = np.arange(n, dtype=np.int32)
    expected = data[::-1] + 100 * np.roll(data, -1)
    kernels("dynamic", 1, n, data, shared=8 * n)
    np.testing.assert_array_equal(data, expected)


@pytest.mark.parametrize("dtype, name", [(np.float32, "float"), (np.float64, "double")])
def test_dynamic_shared_in_templates_and_outside_functions(kernels: Kernels, dtype: type, name: str) -> None:
    data = np.arange(40, dtype=dtype)
    kernels(f"rotate<{name}>", 1, 40, data, shared=40 * 32)
    np.testing.assert_array_equal(data, np.roll(np.arange(40), -1) + 1)


def test_names_of_dynamic_arrays_outside_functions_are_scoped_as_other_names() -> None:
    source = """
    extern __shared__ float smem[];
    namespace ns { extern __shared__ __align__(16) unsigned char bytes[]; }
    __device__ void put(float4* smem, int i) { smem[i] = make_float4(i, 0, 0, 0); }
    __device__ int first(const uchar4* smem, size_t* cells) { return smem->x + (int)cells[0]; }
    template <class T> __device__ T* same(T* p) { return p; }
    extern "C" __global__ void k(int* out) {
        int i = threadIdx.x; int* mine = out + 8 * i;
        put(reinterpret_cast<float4*>(smem), i); __syncthreads();
        mine[0] = (int)smem[4 * i];
        mine[1] = true and smem[4 * i];
        mine[2] = (int)::smem[4 * i] + (ns::bytes == (unsigned char*)&smem);
        { int a = i, smem = 3; mine[3] = a + smem; }
        mine[4] = first((const uchar4*)ns::bytes, (size_t*)smem);
        auto p = smem; p += 4; mine[5] = (int)(*p + same(smem)[4 * i]);
        auto captureless = [](int j) { return (int)smem[4 * j]; };
        struct Local { __device__ static int get(int j) { return (int)smem[4 * j]; } };
        mine[6] = captureless(i) + Local::get(i);
        mine[7] = [=] { return (int)smem[4 * i]; }();
    }"""
    out = np.zeros((4, 8), np.int32)
    Kernels(source)("k", 1, 4, out, shared=64)
    assert out.tolist() == [[i, int(i > 0), i + 1, i + 3, 0, i + 1, 2 * i, i] for i in range(4)]


def test_dynamic_arrays_in_functions_are_used_in_lambdas_local_classes_and_after_jumps() -> None:
    source = """
    namespace { namespace hearth::deep {
    __device__ int in_function(int n, int i) {
        extern __shared__ int index[]; index[i] = i; __syncthreads();
        struct Local { __device__ static int get(int j) { return index[j]; } };
        auto captureless = [](int j) { return index[j]; };
        return captureless(n - 1 - i) + Local::get(i);
    }
    } }
    extern "C" __global__ void k(int* out, int n) {
        int i = threadIdx.x;
        if (n < 0) goto end;
        extern __shared__ int own[], other[]; own[i] = i; __syncthreads();
        __shared__ extern volatile int rows[][4];
        out[3 * i] = own[n - 1 - i] * 10 + rows[0][i]; __syncthreads();
        out[3 * i + 1] = hearth::deep::in_function(n, i);
        out[3 * i + 2] = other == own;
    end: ;
    }"""
    out = np.zeros((4, 3), np.int32)
    Kernels(source)("k", 1, 4, out, np.int32(4), shared=64)
    assert out.tolist() == [[10 * (3 - i) + i, 3, 1] for i in range(4)]


def test_dynamic_arrays_in_templates_members_and_generic_lambdas() -> None:
    source = """
    template <class T> __device__ T in_template(int n, int i) {
        extern __shared__ __align__(16) T cells[]; extern __shared__ volatile T rows[][2], other[];
        cells[i] = i; __syncthreads();
        auto lambda = [=](auto j) { extern __shared__ T own[]; return cells[j] + own[j] + rows[0][j]; };
        const T result = lambda(n - 1 - i) + (other == cells); __syncthreads();
        return result;
    }
    template <class T> struct Holder {
        template <class U> __device__ static T get(int n, U i) {
            extern __shared__ T index[]; index[i] = 2 * i; __syncthreads();
            const T result = index[n - 1 - i]; __syncthreads();
            return result;
        }
    };
    extern "C" __global__ void k(int* out, int n) {
        int i = threadIdx.x;
        out[3 * i] = in_template<float>(n, i);
        out[3 * i + 1] = Holder<short>::get(n, i);
        auto lambda = [](auto& self, int j) -> int {
            if (j < 0) return 0;
            extern __shared__ int words[]; words[j] = j; __syncthreads();
            return words[3 - j] + self(self, -1);
        };
        out[3 * i + 2] = lambda(lambda, i);
    }"""
    out = np.zeros((4, 3), np.int32)
    Kernels(source)("k", 1, 4, out, np.int32(4), shared=64)
    assert out.tolist() == [[3 * (3 - i) + 1, 2 * (3 - i), 3 - i] for i in range(4)]


def test_dynamic_arrays_of_one_name_and_different_types_are_refused() -> None:
    source = """
    extern "C" __global__ void a(float* p) { extern __shared__ float s[]; p[0] = s[0]; }
    extern "C" __global__ void b(int* p) { extern __shared__ int s[]; p[0] = s[0]; }"""
    with pytest.raises(Refusal, match=r"kernel\.cu\(3\): error: .*'int"):
        Kernels(source)


def test_block_and_warp_votes(kernels: Kernels) -> None:
    out = np.zeros((64, 8), np.int32)
    kernels("votes", 1, 64, out)
    np.testing.assert_array_equal(out[:, :4], np.tile([22, 1, 1, 0], (64, 1)))
    assert (out[:, 4].view(np.uint32) == 0xAAAAAAAA).all()
    np.testing.assert_array_equal(out[:, 5], T // 32 == 1)
    np.testing.assert_array_equal(out[:, 6], T // 32 == 1)
    assert not out[:, 7].any()


def test_shuffles(kernels: Kernels) -> None:
    out, wide, big = np.zeros((64, 8), np.int32), np.zeros(64), np.zeros(64, np.uint64)
    kernels("shuffles", 1, 64, out, wide, big)
    lane = T % 32
    expected = [
        T - lane + 3,
        T - T % 8 + (T + 9) % 8,
        np.where(lane >= 5, T - 5, T),
        np.where(T % 16 >= 3, T - 3, T),
        np.where(lane + 5 < 32, T + 5, T),
        np.where(T % 4 + 3 < 4, T + 3, T),
        T ^ 7,
        np.where((lane ^ 12) <= (lane | 7), T ^ 12, T),
    ]
    np.testing.assert_array_equal(out, np.stack(expected, 1))
    np.testing.assert_array_equal(wide, (T ^ 1) + 0.25)
    np.testing.assert_array_equal(big, 2**40 + np.where(lane < 31, T + 1, T))


def test_match_and_reduce(kernels: Kernels) -> None:
    out = np.zeros((64, 8), np.uint32)
    kernels("matches", 1, 64, out)
    np.testing.assert_array_equal(out[:, 0], 0x11111111 << (T % 4))
    assert (out[:, 1] == 0xFFFFFFFF).all() and (out[:, 2] == 1).all() and (out[:, 3] == 0).all()
    warp = T // 32
    np.testing.assert_array_equal(out[:, 4], np.where(warp == 0, sum(range(32)), sum(range(32, 64))))
    np.testing.assert_array_equal(out[:, 5].view(np.int32), np.where(warp == 0, 0, -32))
    np.testing.assert_array_equal(out[:, 6], 32 * warp)
    assert (out[:, 7] == 0xFFFFFFFF).all()


def test_divergent_warps(kernels: Kernels) -> None:
    out = np.zeros(65, np.uint32)
    kernels("divergent", 1, 64, out)
    np.testing.assert_array_equal(out[:64], np.where(T % 32 < 8, 0xFF + T - T % 32 + 2, 0xAAAAAA00))
    assert out[64] == 13


@pytest.mark.parametrize("n", [64, 100, 256])
def test_threads_that_return_early(kernels: Kernels, n: int) -> None:
    out = np.zeros(256, np.int32)
    kernels("early_exit", 1, 256, out, np.int32(n))
    reversed_ = n - 1 - np.arange(n)
    np.testing.assert_array_equal(out[:n], reversed_ + reversed_[np.arange(n) ^ 1])


def test_spinning_thread_does_not_block_the_others(kernels: Kernels) -> None:
    out = np.full(96, -1, np.int32)
    kernels("ordered", 1, 96, out)
    np.testing.assert_array_equal(out, np.arange(96))


def test_cooperative_groups(kernels: Kernels) -> None:
    x = np.random.default_rng(0).random(64, dtype=np.float32)
    sums, out = np.zeros(64, np.float32), np.zeros((64, 10), np.int32)
    kernels("groups", 1, 64, x, sums, out)
    np.testing.assert_allclose(sums, np.repeat(x.reshape(8, 8).sum(1), 8), rtol=1e-5)
    np.testing.assert_array_equal(out[:, 0], np.where(T < 32, sum(range(32)), sum(range(32, 64))))
    np.testing.assert_array_equal(out[:, 1], T | 7)
    np.testing.assert_array_equal(out[:, 2], T & ~7)
    np.testing.assert_array_equal(out[:, 3], T % 8 * 1000 + T % 32 // 8 * 10 + 4)
    np.testing.assert_array_equal(out[:, 4], 0xAA | (T // 8 == 1) << 16 | 1 << 17)
    np.testing.assert_array_equal(out[:, 5], T % 32 + 1)
    np.testing.assert_array_equal(out[:, 6], [sum(range(t - t % 8, t)) for t in range(64)])
    for warp in (0, 32):
        members = [t for t in range(warp, warp + 32) if t % 3 == 0]
        for rank, t in enumerate(members):
            assert out[t, 7] == len(members) * 1000 + rank and out[t, 8] == sum(members)
    np.testing.assert_array_equal(out[:, 9], 800 + T % 32 // 4)


def test_grid_ranks(kernels: Kernels) -> None:
    out = np.zeros(60, np.uint32)
    kernels("ranks", 6, 10, out)
    np.testing.assert_array_equal(out, 60 + np.arange(60) // 10)


def test_scan_over_many_blocks(kernels: Kernels) -> None:
    x = np.random.default_rng(0).integers(0, 100, (50, 128)).astype(np.int32)
    out = np.zeros_like(x)
    kernels("scan", 50, 128, x, out, shared=512)
    np.testing.assert_array_equal(out, np.cumsum(x, 1))


def test_local_arrays_fit_on_a_fiber(kernels: Kernels) -> None:
    out = np.zeros(256, np.float32)
    kernels("large_frame", 2, 256, out)
    np.testing.assert_allclose(out, [sum(range(6000)) + 6000 * t for t in range(256)], rtol=1e-4)


def test_a_constructor_that_synchronises_is_seen(kernels: Kernels) -> None:
    out = np.zeros(64, np.float32)
    kernels("constructor", 3, 64, out)
    np.testing.assert_array_equal(out, T)
