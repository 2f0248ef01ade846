"""Compilation: options, headers, errors on the user's own lines, and refusals by name."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu import toolchain as toolchain_module
from hearthd.device.cpu.cache import UNUSED_S, build_once, private_dir
from hearthd.device.cpu.toolchain import find_toolchain
from tests.support.cpu.kernels import Kernels, compile_source


def refusal(source: str, *options: str, names: tuple[str, ...] = (), **headers: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        compile_source(find_toolchain(), source, options, names, headers)
    return caught.value


def test_errors_name_the_users_line() -> None:
    source = """#include <cuda_runtime.h>
#define BODY(x) \\
    out[0] = x;
/* a comment
   of two lines */
extern "C" __global__ void __launch_bounds__(128)
k(int* out,
  int n) {
    extern __shared__ float s[];
    __shared__ int t[4];
    BODY(1)
    out[0] = undefined_name;
}
"""
    error = refusal(source)
    assert error.reason is Reason.COMPILE_FAILED
    assert "kernel.cu(12): error:" in error.details["log"] and "'undefined_name'" in error.details["log"]
    assert "out[0] = undefined_name;" in error.details["log"]
    assert "kernel.cu(12)" in error.message and error.message.endswith(", in `out[0] = undefined_name;`")
    assert error.fix == "correct the source; error.log has all messages of the compiler."
    assert "hearth_here" not in error.details["log"] and "/tmp" not in error.details["log"]


def test_preprocessor_errors_name_the_users_line() -> None:
    assert "kernel.cu(3): fatal error:" in refusal('\n\n#include "nowhere.h"\n').details["log"]
    assert "kernel.cu(2): error:" in refusal("\n#error too old\n").details["log"]


def test_errors_in_headers_name_the_header() -> None:
    error = refusal('#include "mine/ops.h"\n', **{"mine/ops.h": "\n\nint f() { return oops; }\n"})
    assert "mine/ops.h(3): error:" in error.details["log"]


def test_an_unknown_name_expression_fails() -> None:
    error = refusal("template <class T> __global__ void f(T* p) {}", names=("g<int>",))
    assert error.reason is Reason.COMPILE_FAILED and "g<int>" in error.details["log"]


@pytest.mark.parametrize(
    "line, name",
    [
        ('asm volatile("mov.u32 %0, %laneid;" : "=r"(x));', "PTX"),
        ('__asm__("nop");', "PTX"),
        ("child<<<1, 32>>>(out);", "dynamic parallelism"),
        ("x = tex2D<float>(t, 0, 0);", "textures"),
        ("cudaTextureObject_t t;", "textures"),
        ("nvcuda::wmma::fill_fragment(c, 0.0f);", "tensor cores"),
        ("CUtensorMap *map;", "TMA"),
        ("auto c = cg::this_cluster();", "cluster"),
    ],
)
def test_unsupported_features_are_refused_by_name_and_line(line: str, name: str) -> None:
    error = refusal(
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n__global__ void child(int* p) {}\n"
        f'extern "C" __global__ void k(int* out) {{\n    int x;\n    {line}\n}}\n'
    )
    assert error.reason is Reason.UNSUPPORTED
    assert name in error.message and "kernel.cu(6)" in error.message
    assert error.details["line"] == "6" and error.fix


@pytest.mark.parametrize("header", ["mma.h", "cuda/ptx"])
def test_headers_of_unsupported_features_are_refused(header: str) -> None:
    error = refusal(f"\n\n#include <{header}>\n")
    assert error.reason is Reason.UNSUPPORTED and "kernel.cu(3)" in error.message


def test_code_that_only_looks_unsupported_compiles() -> None:
    Kernels("""
    // asm("nop"); f<<<1, 1>>>();
    struct Wave { int texture; float barrier; };
    template <int N> struct Shift { static const int value = 1 << N; };
    extern "C" __global__ void k(int* out) {
        const char* text = "asm <<< tex2D"; Wave texture_wave = {1, 2};
        out[0] = texture_wave.texture + (Shift<(2 >> 1)>::value << 2) + (text[0] == 'a');
    #if 0
        asm("nop");
    #endif
    }
    """)


def test_macros_headers_and_standards() -> None:
    source = """
    #include "config.h"
    #include <inner.h>
    #ifdef GONE
    #error -U was not followed
    #endif
    extern "C" __global__ void k(int* out) {
        out[0] = N; out[1] = TWICE(4); out[2] = FROM_HEADER; out[3] = INNER; out[4] = __CUDA_ARCH__; out[5] = FLAG;
        out[6] = __cplusplus >= 202002L;
    }
    """
    kernels = Kernels(
        source,
        ["-DN=7", "-D", "TWICE(x)=(2*(x))", "-DGONE", "-UGONE", "--define-macro=FLAG", "-std=c++20",
         "--use_fast_math", "-lineinfo", "-G", "--maxrregcount=32", "--restrict", "-default-device"],
        **{"config.h": "#define FROM_HEADER 11\n", "inner.h": "#pragma once\n#define INNER 13\n"},
    )  # fmt: skip
    out = np.zeros(7, np.int32)
    kernels("k", 1, 1, out)
    assert out.tolist() == [7, 8, 11, 13, 700, 1, 1]


def test_shared_memory_and_kernels_in_headers() -> None:
    header = """
    #pragma once
    template <class T> __device__ T block_sum(T v) {
        __shared__ T cells[64];
        cells[threadIdx.x] = v;
        __syncthreads();
        T sum = 0;
        for (int i = 0; i < blockDim.x; ++i) sum += cells[i];
        return sum;
    }
    """
    source = (
        '#include "sum.cuh"\nextern "C" __global__ void k(int* out) { out[threadIdx.x] = block_sum(out[threadIdx.x]); }'
    )
    kernels = Kernels(source, **{"sum.cuh": header})
    out = np.arange(64, dtype=np.int32)
    kernels("k", 1, 64, out)
    assert (out == 2016).all()


def test_options_that_no_backend_takes_are_named() -> None:
    error = refusal("", "--maxrregcount-limit")
    assert error.reason is Reason.COMPILE_FAILED and "'--maxrregcount-limit' is not allowed" in error.message


def test_multiply_and_add_are_fused_unless_the_options_say_otherwise() -> None:
    source = 'extern "C" __global__ void k(float* x) { x[3] = x[0] * x[1] + x[2]; }'
    x = np.array([1 + 2**-12, 1 + 2**-12, -1 - 2**-11, 0], np.float32)
    exact = float(x[0]) * float(x[1]) + float(x[2])
    for options, expected in (((), exact), (("-fmad=false",), 0.0)):
        out = x.copy()
        Kernels(source, options)("k", 1, 1, out)
        assert out[3] == np.float32(expected), options


def test_headers_stay_in_their_directory() -> None:
    error = refusal("", **{"../../escape.h": "int x;"})
    assert error.reason is Reason.COMPILE_FAILED and "escape.h" in error.message


def test_user_code_written_for_other_compilers_too() -> None:
    kernels = Kernels(
        """
    #ifndef __device__
    #define __device__
    #endif
    #ifndef __CUDACC__
    #error no CUDA
    #endif
    #include <cstdint>
    #include <algorithm>
    #include <type_traits>
    #include <cuda.h>
    typedef unsigned int uint;
    typedef unsigned char uchar;
    template <typename T> struct Max {
        __host__ __device__ __forceinline__ T operator()(T a, T b) const { return a > b ? a : b; }
    };
    template <typename T, template <class> class Op>
    __global__ void __launch_bounds__(256) fold(const T* __restrict__ in, T* out, int n) {
        Op<T> op; T best = in[0];
        #pragma unroll 4
        for (int i = 1; i < n; ++i) best = op(best, in[i]);
        *out = best;
    }
    __device__ __noinline__ uint mix(uint v) { return v * 2654435761u; }
    static __device__ __constant__ const float pi = 3.14f;
    enum class Mode : int { add, mul };
    template <Mode M> __device__ int apply(int a, int b) {
        if constexpr (M == Mode::add) return a + b; else return a * b;
    }
    union Bits { float f; unsigned u; };
    extern "C" __global__ void k(uint64_t* out) {
        Bits b; b.f = 1.0f; out[0] = b.u; out[1] = mix(1); out[2] = apply<Mode::mul>(6, 7);
        int arr[3] = {3, 1, 2}; std::sort(arr, arr + 3); out[3] = arr[0] * 100 + arr[2] + int(pi);
        switch (int(out[2])) { case 42: out[4] = 1; break; default: out[4] = 0; }
    }
    """,
        names=["fold<float, Max>"],
    )
    out = np.zeros(5, np.uint64)
    kernels("k", 1, 1, out)
    assert out.tolist() == [0x3F800000, 2654435761, 42, 106, 1]
    x, best = np.random.default_rng(0).random(100, dtype=np.float32), np.zeros(1, np.float32)
    kernels("fold<float, Max>", 1, 1, x, best, np.int32(100))
    assert best[0] == x.max()


def test_no_compiler_is_refused_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Refusal) as caught:
        find_toolchain()
    assert caught.value.reason is Reason.NO_COMPILER and "ziglang" in caught.value.fix


def test_identity_is_stable_and_includes_the_compiler() -> None:
    toolchain = find_toolchain()
    assert toolchain.identity() == find_toolchain().identity() and len(toolchain.identity()) == 32
    other = toolchain_module.Toolchain(toolchain.command, "other 1.0", toolchain.is_clang, toolchain.cache_dir)
    assert other.identity() != toolchain.identity()


def test_images_are_the_same_each_time() -> None:
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2; }'
    assert compile_source(find_toolchain(), source) == compile_source(find_toolchain(), source)


def test_cache_directories_are_private(tmp_path: Path) -> None:
    place = private_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE(place.stat().st_mode) & 0o077 == 0
    place.chmod(0o777)
    with pytest.raises(PermissionError):
        private_dir(place)


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(scratch: Path) -> None:
        (scratch / "half").write_text("done")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        build_once(tmp_path, "thing", fail)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
    assert (build_once(tmp_path, "thing", lambda scratch: None)).is_dir()


def test_builds_unused_for_a_month_are_removed(tmp_path: Path) -> None:
    def build(scratch: Path) -> None:
        (scratch / "file").write_text("built")

    old, used = build_once(tmp_path, "old", build), build_once(tmp_path, "used", build)
    long_ago = time.time() - UNUSED_S - 60
    for path in (old, used):
        os.utime(path, (long_ago, long_ago))
    assert build_once(tmp_path, "used", build) == used
    build_once(tmp_path, "new", build)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "used"]
