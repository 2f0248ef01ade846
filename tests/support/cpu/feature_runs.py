"""Features that run on the CPU backend, each with a snippet and its expected results."""

from __future__ import annotations

import math

from tests.support.cpu.feature_table import Runs

_LANGUAGE = "Language"
_THREADS = "Threads, barriers and warps"
_GROUPS = "Cooperative groups"
_ATOMIC = "Atomic functions"
_ARITHMETIC = "Arithmetic"
_HEADERS = "Headers and types"
_CG = ("cooperative_groups.h", "cooperative_groups/reduce.h", "cooperative_groups/scan.h")
_NAMED = "namespace cg = cooperative_groups;"

RUNS = [
    # ---- language ----
    Runs(
        _LANGUAGE,
        "built-in variables",
        "`threadIdx`, `blockIdx`, `blockDim`, `gridDim`, `warpSize` in kernels and in functions that these call; "
        "a program's own variables, parameters and members may have these names",
        "const int i = where(); if (i < 64) out[i] = 100 * blockIdx.x + threadIdx.x + gridDim.x + warpSize;",
        [*(34 + t for t in range(32)), *(134 + t for t in range(32))],
        "__device__ int where() { return blockIdx.x * blockDim.x + threadIdx.x; }",
        grid=2,
    ),
    Runs(
        _LANGUAGE,
        "C++17",
        "templates, lambdas, classes, virtual functions, function pointers, recursion, `constexpr`, `if constexpr`",
        """
        const Square square{3}; const Shape* shape = &square; int (*f)(int) = factorial;
        const auto add = [=](auto v) { return v + threadIdx.x; };
        if (threadIdx.x == 0) { out[0] = shape->area(); out[1] = f(5); out[2] = pick<true>(1, 2); out[3] = add(0.5); }
        """,
        [9, 120, 1, 0.5],
        """
        struct Shape { __device__ virtual int area() const = 0; };
        struct Square : Shape {
            int a;
            __device__ Square(int v) : a(v) {}
            __device__ int area() const override { return a * a; }
        };
        __device__ int factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }
        template <bool First> __device__ int pick(int a, int b) { if constexpr (First) return a; else return b; }
        """,
    ),
    Runs(
        _LANGUAGE,
        "C++20",
        "with `-std=c++20`: concepts, `auto` parameters, designated initialisers",
        "const Point p{.x = 1, .y = 2}; if (threadIdx.x == 0) out[0] = twice(p.y);",
        [4],
        """
        template <class T> concept Number = requires(T v) { v + v; };
        struct Point { int x, y; };
        __device__ auto twice(Number auto v) { return v + v; }
        """,
        options=("-std=c++20",),
    ),
    Runs(
        _LANGUAGE,
        "functors as template arguments",
        "of kernels, functions and classes; functions reached through a base class, a default argument, a "
        "returned object",
        "",
        [4 * t for t in range(32)],
        """
        struct Index { __device__ int operator()() const { return threadIdx.x; } };
        struct Derived : Index {};
        struct Both { Index first; Derived second; };
        template <class F = Derived> __device__ int defaulted() { return F()(); }
        template <class F> struct Made { __device__ F operator()() const { return F(); } };
        template <template <class> class M, class F> __global__ void sum(double* out) {
            out[threadIdx.x] = F()() + M<F>()()() + defaulted() + Both().second();
        }
        """,
        expression="sum<Made, Index>",
    ),
    Runs(
        _LANGUAGE,
        "barriers in functors",
        "`__syncthreads()`, shuffles and static shared memory reached through a template argument",
        "",
        [63 - t for t in range(64)],
        """
        struct Exchange {
            __device__ int operator()(int v) const {
                __shared__ int cells[64];
                cells[threadIdx.x] = v;
                __syncthreads();
                return cells[63 - threadIdx.x];
            }
        };
        template <class F> __global__ void apply(double* out) { out[threadIdx.x] = F()(threadIdx.x); }
        """,
        block=64,
        expression="apply<Exchange>",
    ),
    Runs(
        _LANGUAGE,
        "`__constant__`, `__device__`, `__managed__`",
        "variables at namespace scope, by their names from the host",
        "if (threadIdx.x == 0) { total += table[2]; out[0] = total; out[1] = shared_by_all; }",
        [37, 4],
        "__constant__ int table[3] = {1, 2, 30}; __device__ int total = 7; __managed__ int shared_by_all = 4;",
    ),
    Runs(
        _LANGUAGE,
        "variable templates with `__constant__`",
        "and `__device__`",
        "if (threadIdx.x == 0) out[0] = half<double> + half<float>;",
        [1],
        "template <class T> __constant__ T half = T(0.5);",
    ),
    Runs(
        _LANGUAGE,
        "names of the C library",
        "a program's own `time`, `index`, `y1`, ... as variables, functions and kernels",
        "if (threadIdx.x == 0) out[0] = time + y1(2);",
        [7],
        "__device__ int time = 5; __device__ int y1(int v) { return v; }",
        global_names=True,
    ),
    Runs(
        _LANGUAGE,
        "own types of fixed width",
        "`typedef long long int64_t` and similar typedefs, with which sources for NVRTC begin",
        "int64_t v = 1ll << 40; uint8_t w = 257; if (threadIdx.x == 0) { out[0] = v; out[1] = w; }",
        [2**40, 1],
        "typedef long long int64_t; typedef unsigned char uint8_t;",
        global_names=True,
    ),
    Runs(
        _LANGUAGE,
        "own overloads",
        "`atomicMax(float*, float)`, `atomicAdd(long*, long)` and others that CUDA does not have",
        "__shared__ float most; if (threadIdx.x == 0) most = 0; __syncthreads(); atomicMax(&most, float(threadIdx.x));"
        " __syncthreads(); out[threadIdx.x] = most;",
        [31] * 32,
        """
        __device__ float atomicMax(float* p, float v) {
            return __int_as_float(::atomicMax(reinterpret_cast<int*>(p), __float_as_int(v)));
        }
        """,
        global_names=True,
    ),
    Runs(
        _LANGUAGE,
        "placement `new`",
        "without `#include <new>`",
        "__shared__ char room[sizeof(Cell)]; if (threadIdx.x == 0) { Cell* c = new (room) Cell(6); out[0] = c->v; }",
        [6],
        "struct Cell { int v; __device__ Cell(int v) : v(v) {} };",
        global_names=True,
    ),
    Runs(
        _LANGUAGE,
        "a compiler barrier in assembly",
        '`asm volatile("" ::: "memory")`, which is no PTX',
        'out[threadIdx.x] = 1; asm volatile("" ::: "memory"); out[threadIdx.x] += 1;',
        [2] * 32,
    ),
    Runs(
        _LANGUAGE,
        "`__shared__`",
        "static, in functions and templates; dynamic (`extern __shared__`), in and outside functions",
        """
        extern __shared__ int dynamic[];
        int* fixed = slots<int>();
        dynamic[threadIdx.x] = threadIdx.x; fixed[threadIdx.x] = 100 * threadIdx.x;
        __syncthreads();
        out[threadIdx.x] = dynamic[63 - threadIdx.x] + fixed[(threadIdx.x + 1) % 64];
        """,
        [63 - t + 100 * ((t + 1) % 64) for t in range(64)],
        "template <class T> __device__ T* slots() { __shared__ T cells[64]; return cells; }",
        block=64,
        shared=256,
    ),
    Runs(
        _LANGUAGE,
        "qualifiers and pragmas",
        "`__launch_bounds__`, `__restrict__`, `__forceinline__`, `__noinline__`, `__align__`, "
        "`__grid_constant__`, `#pragma unroll`",
        """
        Pair pair = {1, 2}; double sum = 0;
        #pragma unroll 4
        for (int i = 0; i < 8; ++i) sum += add(pair, i);
        out[threadIdx.x] = sum + sizeof(Pair);
        """,
        [8 * 3 + 28 + 16] * 32,
        """
        struct __align__(16) Pair { int a, b; };
        __device__ __noinline__ int add(const Pair& __restrict__ p, int i) { return p.a + p.b + i; }
        __global__ void __launch_bounds__(128) bounded(const __grid_constant__ Pair p, int* o) { *o = p.a; }
        """,
    ),
    Runs(
        _LANGUAGE,
        "`malloc`, `free`, `new`, `delete`",
        "in kernels, from the process's heap",
        "int* p = static_cast<int*>(malloc(8)); p[1] = threadIdx.x; int* q = new int(p[1]); out[threadIdx.x] = *q;"
        " delete q; free(p);",
        list(range(32)),
    ),
    Runs(
        _LANGUAGE,
        "`printf`, `assert`, `__trap`",
        "output reaches the daemon's client as on a GPU; a failed assertion is a fault with block, thread and line",
        'assert(threadIdx.x < 32); if (threadIdx.x > 99) { printf("%d\\n", 1); __trap(); } out[0] = 1;',
        [1],
    ),
    # ---- threads ----
    Runs(
        _THREADS,
        "block barriers",
        "`__syncthreads`, `__syncthreads_count`, `_and`, `_or`; threads that have returned are not waited for",
        """
        if (threadIdx.x >= 60) return;
        out[threadIdx.x] = __syncthreads_count(threadIdx.x % 3 == 0) * 100 + __syncthreads_and(threadIdx.x < 60) * 10
                           + __syncthreads_or(threadIdx.x == 5);
        """,
        [2011] * 60,
        block=64,
    ),
    Runs(
        _THREADS,
        "warp shuffles",
        "`__shfl_sync`, `_up_`, `_down_`, `_xor_` with any width, for 32 and 64 bits",
        """
        const int t = threadIdx.x; double v = 0.5 + t;
        for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffff, v, o);
        out[t] = v + 1000 * __shfl_up_sync(0xffffffff, t, 3, 8) + 100000 * __shfl_sync(0xffffffff, t, 5);
        """,
        [512 + 1000 * (t - 3 if t % 8 >= 3 else t) + 500000 for t in range(32)],
    ),
    Runs(
        _THREADS,
        "warp votes, matches and reductions",
        "`__ballot_sync`, `__any_sync`, `__all_sync`, `__match_any_sync`, `__match_all_sync`, `__reduce_*_sync`, "
        "`__activemask`, `__syncwarp`",
        """
        const unsigned t = threadIdx.x, full = 0xffffffff; int same;
        const unsigned ballot = __ballot_sync(full, t % 2), match = __match_any_sync(full, t % 4);
        __match_all_sync(full, 7, &same); __syncwarp();
        if (t == 1) {
            out[0] = ballot; out[1] = match; out[2] = same; out[4] = __popc(__activemask());
        }
        const unsigned sum = __reduce_add_sync(full, t);
        out[3] = sum;
        """,
        [0xAAAAAAAA, 0x22222222, 1, 496, 1],
        options=("-DSM_80",),  # NVRTC compiles it only for compute capability 8.0 and later
    ),
    Runs(
        _THREADS,
        "divergence",
        "warp functions in branches, with the mask of the lanes that take part",
        """
        const int t = threadIdx.x;
        if (t < 8) out[t] = __shfl_sync(0xff, t, 2);
        else out[t] = __popc(__ballot_sync(0xffffff00, t % 2));
        """,
        [2] * 8 + [12] * 24,
    ),
    Runs(
        _THREADS,
        "programmatic dependent launch",
        "`cudaGridDependencySynchronize`, `cudaTriggerProgrammaticLaunchCompletion` and `griddepcontrol` as inline PTX "
        "do nothing: a kernel starts after the one before it has ended",
        """
        cudaTriggerProgrammaticLaunchCompletion();
        asm volatile("griddepcontrol.launch_dependents;");
        if (threadIdx.x == 0) out[0] = 5;
        cudaGridDependencySynchronize();
        asm volatile("griddepcontrol.wait;" ::: "memory"); __asm__ volatile ( "griddepcontrol.wait;" : : : "memory");
        const char* text = "griddepcontrol.wait;";
        if (threadIdx.x == 0) out[1] = text[0] == 'g';
        """,
        [5, 1],
        includes=("cuda_device_runtime_api.h",),
    ),
    Runs(
        _THREADS,
        "spin-waits on atomic functions",
        "an atomic function that changes nothing (a failed `atomicCAS`, `atomicAdd(p, 0)`) lets other threads of the "
        "block run; so do fences, `__nanosleep` and loops in sources that mention `volatile`",
        """
        __shared__ int turn; if (threadIdx.x == 0) turn = 0; __syncthreads();
        const int t = threadIdx.x;
        while (atomicCAS(&turn, t, t) != t) {}
        out[t] = turn;
        __threadfence_block();
        atomicExch(&turn, t + 1);
        """,
        list(range(32)),
    ),
    Runs(
        _THREADS,
        "fences",
        "`__threadfence`, `__threadfence_block`, `__threadfence_system`",
        "out[threadIdx.x] = threadIdx.x; __threadfence(); __threadfence_block(); __threadfence_system();",
        list(range(32)),
    ),
    # ---- groups ----
    Runs(
        _GROUPS,
        "blocks and tiles",
        "`this_thread_block`, `tiled_partition`, ranks, `sync`, `shfl*`, `any`, `all`, `ballot`, `match_*`",
        """
        cg::thread_block block = cg::this_thread_block();
        auto eight = cg::tiled_partition<8>(cg::tiled_partition<32>(block));
        int v = block.thread_rank();
        for (int o = 4; o > 0; o /= 2) v += eight.shfl_down(v, o);
        out[block.thread_rank()] = eight.shfl(v, 0) * 10 + eight.thread_rank();
        cg::sync(block);
        """,
        [10 * sum(range(t - t % 8, t - t % 8 + 8)) + t % 8 for t in range(32)],
        _NAMED,
        _CG,
    ),
    Runs(
        _GROUPS,
        "collectives",
        "`reduce` (plus, less, greater, bit operations), `inclusive_scan`, `exclusive_scan`",
        """
        auto warp = cg::tiled_partition<32>(cg::this_thread_block());
        const int t = threadIdx.x;
        out[t] = cg::reduce(warp, t, cg::plus<int>()) + 1000 * cg::inclusive_scan(warp, 1);
        out[t] += 100000 * cg::exclusive_scan(warp, 1);
        """,
        [496 + 1000 * (t + 1) + 100000 * t for t in range(32)],
        "namespace cg = cooperative_groups;",
        _CG,
    ),
    Runs(
        _GROUPS,
        "`coalesced_threads`",
        "the lanes that are in a branch together",
        "if (threadIdx.x % 3 == 0) { auto g = cg::coalesced_threads(); out[threadIdx.x / 3] = 100 * g.size() + "
        "g.thread_rank(); }",
        [1100 + rank for rank in range(11)],
        _NAMED,
        _CG,
    ),
    Runs(
        _GROUPS,
        "partitions by value",
        "`binary_partition`, `labeled_partition`, with `meta_group_rank` and `meta_group_size`",
        """
        auto warp = cg::tiled_partition<32>(cg::this_thread_block());
        auto label = cg::labeled_partition(warp, int(threadIdx.x % 4));
        auto odd = cg::binary_partition(warp, threadIdx.x % 2);
        out[threadIdx.x] = label.meta_group_size() * 1000 + label.size() * 100 + odd.size();
        out[threadIdx.x] += label.thread_rank() * 10000 + label.meta_group_rank() * 1e6 + odd.meta_group_rank() * 1e7;
        """,
        [4816 + 10_000 * (t // 4) + 1_000_000 * (t % 4) + 10_000_000 * (t % 2) for t in range(32)],
        _NAMED,
        _CG,
    ),
    Runs(
        _GROUPS,
        "nested tiles",
        "`meta_group_rank` and `meta_group_size` count within the group that was partitioned",
        """
        auto eight = cg::tiled_partition<8>(cg::tiled_partition<32>(cg::this_thread_block()));
        out[threadIdx.x] = eight.meta_group_rank() * 10 + eight.meta_group_size();
        """,
        [10 * (t % 32 // 8) + 4 for t in range(64)],
        _NAMED,
        _CG,
        block=64,
    ),
    Runs(
        _GROUPS,
        "large tiles",
        "`block_tile_memory`, `tiled_partition<64>` and larger",
        """
        __shared__ cg::block_tile_memory<64> memory;
        auto block = cg::this_thread_block(memory);
        auto tile = cg::tiled_partition<64>(block);
        out[threadIdx.x] = cg::reduce(tile, int(threadIdx.x), cg::plus<int>()) + tile.size();
        """,
        [2016 + 64] * 64,
        _NAMED,
        _CG,
        block=64,
    ),
    Runs(
        _GROUPS,
        "copies of a group",
        "`memcpy_async`, `wait`, `wait_prior`; the copy is complete when `memcpy_async` returns",
        """
        __shared__ int copied[32];
        auto block = cg::this_thread_block();
        cg::memcpy_async(block, copied, numbers, sizeof copied);
        cg::wait(block);
        out[threadIdx.x] = copied[31 - threadIdx.x];
        """,
        [*[0] * 30, 4, 3],
        "__device__ int numbers[32] = {3, 4};" + _NAMED,
        (*_CG, "cooperative_groups/memcpy_async.h"),
    ),
    Runs(
        _GROUPS,
        "barriers and pipelines of libcu++",
        "`cuda::barrier`, `latch`, `counting_semaphore`, `pipeline`, `cuda::memcpy_async`, `__mbarrier_*`, "
        "`__pipeline_*`; a copy is complete when the call returns",
        """
        __shared__ cuda::barrier<cuda::thread_scope_block> arrived;
        __shared__ int halves[32];
        if (threadIdx.x == 0) init(&arrived, blockDim.x);
        __syncthreads();
        auto token = arrived.arrive();
        arrived.wait(cuda::std::move(token));
        __pipeline_memcpy_async(&halves[threadIdx.x], &source[threadIdx.x], sizeof(int));
        __pipeline_commit();
        __pipeline_wait_prior(0);
        arrived.arrive_and_wait();
        out[threadIdx.x] = halves[31 - threadIdx.x];
        """,
        [*[0] * 30, 8, 7],
        "__device__ int source[32] = {7, 8};",
        ("cuda/barrier", "cuda_pipeline.h"),
    ),
    Runs(
        _GROUPS,
        "CUB's collectives of blocks and warps",
        "`cub::BlockReduce`, `BlockScan`, `BlockLoad`, `BlockRadixSort`, `WarpReduce`, ...: the backend's own "
        "headers, even if a program sends those of CUB; `cub::Device*` is refused",
        """
        using Sum = cub::BlockReduce<int, 64>;
        __shared__ typename Sum::TempStorage room;
        const int all = Sum(room).Sum(static_cast<int>(threadIdx.x));
        if (threadIdx.x == 0) out[0] = all;
        """,
        [2016],
        includes=("cub/block/block_reduce.cuh",),
        block=64,
    ),
    Runs(
        _GROUPS,
        "the grid",
        "`this_grid().sync()` in cooperative launches",
        """
        auto grid = cg::this_grid();
        if (threadIdx.x == 0) atomicAdd(&arrived, 1);
        grid.sync();
        out[32 * blockIdx.x + threadIdx.x] = arrived + grid.size();
        """,
        [66] * 64,
        "__device__ int arrived = 0;" + _NAMED,
        _CG,
        grid=2,
        cooperative=True,
    ),
    # ---- atomics ----
    Runs(
        _ATOMIC,
        "integers",
        "`atomicAdd`, `Sub`, `Min`, `Max`, `And`, `Or`, `Xor`, `Exch`, `CAS`, `Inc`, `Dec`, and their `_block` "
        "and `_system` forms",
        """
        __shared__ int sum, least; __shared__ unsigned turns; __shared__ unsigned long long bits;
        if (threadIdx.x == 0) { sum = 0; least = 99; turns = 0; bits = 0; } __syncthreads();
        atomicAdd(&sum, int(threadIdx.x)); atomicMin(&least, int(threadIdx.x)); atomicInc(&turns, 9);
        atomicOr(&bits, 1ull << threadIdx.x); atomicAdd_block(&sum, 1);
        __syncthreads();
        if (threadIdx.x == 0) { out[0] = sum; out[1] = least; out[2] = turns; out[3] = bits; }
        """,
        [528, 0, 2, 2**32 - 1],
    ),
    Runs(
        _ATOMIC,
        "floating point",
        "`atomicAdd` for `float`, `double`; `atomicExch` for `float`",
        """
        __shared__ float f; __shared__ double d; if (threadIdx.x == 0) { f = 0; d = 0; } __syncthreads();
        atomicAdd(&f, 0.5f); atomicAdd(&d, 0.25); __syncthreads(); out[threadIdx.x] = f + d;
        """,
        [24] * 32,
    ),
    Runs(
        _ATOMIC,
        "`cuda::atomic`, `cuda::atomic_ref`",
        "`cuda/atomic` and `cuda/std/atomic`",
        """
        __shared__ int cell; if (threadIdx.x == 0) cell = 0; __syncthreads();
        cuda::atomic_ref<int, cuda::thread_scope_block> ref(cell); ref.fetch_add(2, cuda::memory_order_relaxed);
        __syncthreads(); out[threadIdx.x] = cell;
        """,
        [64] * 32,
        includes=("cuda/atomic",),
    ),
    # ---- arithmetic ----
    Runs(
        _ARITHMETIC,
        "math functions",
        "those of the CUDA Math API for `float` and `double`, and the fast ones (`__sinf`, `__expf`, "
        "`__fdividef`, ...)",
        "if (threadIdx.x == 0) { out[0] = sinf(1.f); out[1] = erfinv(0.5); out[2] = rsqrtf(4.f); out[3] = __expf(0.f);"
        " out[4] = sinpi(0.5); out[5] = normcdf(0.0); out[6] = cyl_bessel_i0(1.0); }",
        [math.sin(1), 0.4769362762044699, 0.5, 1, 1, 0.5, 1.2660658777520084],
    ),
    Runs(
        _ARITHMETIC,
        "arithmetic with a named rounding",
        "`__fadd_rz`, `__dmul_ru`, `__fmaf_rd`, `__float2int_rn`, ...",
        "if (threadIdx.x == 0) { out[0] = __fadd_ru(1.f, 1e-10f) > 1.f; out[1] = __fadd_rd(1.f, 1e-10f) == 1.f;"
        " out[2] = __float2int_rn(2.5f); out[3] = __float2int_ru(2.1f); out[4] = __double2float_rz(0.1) < 0.1; }",
        [1, 1, 2, 3, 1],
    ),
    Runs(
        _ARITHMETIC,
        "integer intrinsics",
        "`__popc`, `__clz`, `__brev`, `__ffs`, `__byte_perm`, `__funnelshift_*`, `__mulhi`, `__umul24`, `__sad`, "
        "`__dp4a`, ...",
        "if (threadIdx.x == 0) { out[0] = __popc(255); out[1] = __clz(1); out[2] = __brev(1u); out[3] = __ffs(8);"
        " out[4] = __byte_perm(0x11223344, 0x55667788, 0x0123); out[5] = __umulhi(1u << 31, 4u);"
        " out[6] = __dp4a(0x01020304, 0x01010101, 5); out[7] = __funnelshift_l(1u << 31, 1u, 1); }",
        [8, 31, 2**31, 4, 0x44332211, 2, 15, 3],
    ),
    Runs(
        _ARITHMETIC,
        "`__dp2a_lo`, `__dp2a_hi`",
        "for `int` and `unsigned`",
        "if (threadIdx.x == 0) { out[0] = __dp2a_lo(0x00020003, 0x04050607, 1); out[1] = __dp2a_hi(0x00020003u, "
        "0x04050607u, 1u); }",
        [2 * 6 + 3 * 7 + 1, 2 * 4 + 3 * 5 + 1],
    ),
    Runs(
        _ARITHMETIC,
        "SIMD video intrinsics",
        "all of them: `__vadd4`, `__vavgs2`, `__vsadu4`, `__vabsss4`, `__vsetles2`, ...",
        "if (threadIdx.x == 0) { out[0] = __vsadu4(0x01020304, 0x04030201); out[1] = __vavgu2(0x00020004, 0x00040004);"
        " out[2] = __vabsss4(0x80ff0001); out[3] = __vsetltu2(0x00010005, 0x00020003); }",
        [8, 0x00030004, 0x7F010001, 0x00010000],
    ),
    Runs(
        _ARITHMETIC,
        "half precision and bfloat16",
        "`cuda_fp16.h`, `cuda_bf16.h`: types, operators, conversions, intrinsics on one and two values",
        "if (threadIdx.x == 0) { out[0] = __half2float(__hadd(__float2half(1.5f), __float2half(2.f)));"
        " out[1] = __bfloat162float(__float2bfloat16(1.f) + __float2bfloat16(0.5f));"
        " out[2] = __low2float(__hmul2(__floats2half2_rn(2.f, 3.f), __floats2half2_rn(4.f, 5.f))); }",
        [3.5, 1.5, 8],
        includes=("cuda_fp16.h", "cuda_bf16.h"),
    ),
    Runs(
        _ARITHMETIC,
        "FP8",
        "`cuda_fp8.h`: `__nv_fp8_e4m3`, `__nv_fp8_e5m2` and their conversions",
        "if (threadIdx.x == 0) { out[0] = float(__nv_fp8_e4m3(1.1f)); out[1] = float(__nv_fp8_e5m2(1000.f)); }",
        [1.125, 1024],
        includes=("cuda_fp8.h",),
    ),
    Runs(
        _ARITHMETIC,
        "complex numbers",
        "`cuComplex.h`",
        "if (threadIdx.x == 0) { cuFloatComplex p = cuCmulf(make_cuFloatComplex(1, 2), make_cuFloatComplex(3, 4));"
        " out[0] = cuCrealf(p); out[1] = cuCimagf(p); out[2] = cuCabs(make_cuDoubleComplex(3, 4)); }",
        [-5, 10, 5],
        includes=("cuComplex.h",),
    ),
    Runs(
        _ARITHMETIC,
        "address spaces",
        "`__isShared`, `__isGlobal`, `__isLocal`, `__isConstant`",
        "__shared__ int s; int local;"
        " if (threadIdx.x == 0) { out[0] = __isShared(&s) != 0; out[1] = __isShared(out) != 0;"
        " out[2] = __isGlobal(out) != 0; s = local = 0; }",
        [1, 0, 1],
        # without a template that uses constant memory, which a source with address spaces may not contain
        options=("-DADDRESS_SPACES",),
    ),
    # ---- headers ----
    Runs(
        _HEADERS,
        "vector types",
        "`float4`, `make_int2`, `dim3`, `uint3`, ... with CUDA's alignment",
        "float4 v = make_float4(1, 2, 3, 4); dim3 d(2, 3);"
        " if (threadIdx.x == 0) { out[0] = v.x + v.w; out[1] = d.y * d.z;"
        " out[2] = alignof(float4); out[3] = sizeof(float3); }",
        [5, 3, 16, 12],
    ),
    Runs(
        _HEADERS,
        "`cuda/std`",
        "`array`, `cmath`, `complex`, `cstdint`, `functional`, `limits`, `numeric`, `tuple`, `type_traits`, "
        "`utility`, ...",
        "cuda::std::array<int, 3> a = {1, 2, 3}; auto t = cuda::std::make_tuple(1, 2.5);"
        " if (threadIdx.x == 0) { out[0] = a[2]; out[1] = cuda::std::get<1>(t);"
        " out[2] = cuda::std::is_same_v<int, int> && cuda::std::numeric_limits<int>::max() > 0; }",
        [3, 2.5, 1],
        includes=("cuda/std/array", "cuda/std/tuple", "cuda/std/limits", "cuda/std/type_traits"),
    ),
    Runs(
        _HEADERS,
        "`cuda/std/optional`, `span`, `bit`",
        "as in C++20, regardless of `-std`",
        "cuda::std::optional<int> o = 4; int a[3] = {1, 2, 3}; cuda::std::span<int> s(a);"
        " if (threadIdx.x == 0) { out[0] = o.value(); out[1] = s.size(); out[2] = cuda::std::popcount(7u); }",
        [4, 3, 3],
        includes=("cuda/std/optional", "cuda/std/span", "cuda/std/bit"),
    ),
    Runs(
        _HEADERS,
        "types of the runtime",
        "`cudaStream_t`, `cudaError_t`, `cudaPitchedPtr`, `cudaExtent`, which structures of a program mention",
        "Plan plan = {}; if (threadIdx.x == 0) out[0] = plan.extent.width + (plan.error == cudaSuccess);",
        [1],
        "struct Plan { cudaStream_t stream; cudaError_t error; cudaExtent extent; cudaPitchedPtr memory; };",
    ),
    Runs(
        _HEADERS,
        "CUDA's own headers",
        "`cuda_runtime.h`, `cuda.h`, `device_launch_parameters.h`, `math_constants.h`, `vector_types.h`, ... may "
        "be included",
        "if (threadIdx.x == 0) out[0] = CUDART_PI_F > 3;",
        [1],
        includes=("cuda_runtime.h", "cuda.h", "device_launch_parameters.h", "math_constants.h", "vector_types.h"),
    ),
]  # fmt: skip
