"""A program's names together with those of the prelude and of headers; exactly CUDA's atomic overloads exist."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.toolchain import INCLUDE, find_toolchain
from hearthd.device.cpu.translation.collisions import CUDA_LIBRARY_FUNCTIONS
from tests.support.cpu.differential import nvrtc
from tests.support.cpu.kernels import Kernels, compile_source

with_nvrtc = pytest.mark.skipif(nvrtc.library() is None, reason="nvidia-cuda-nvrtc is not installed")


def run(source: str, *options: str, count: int = 8, block: int = 1, **headers: str) -> list[int]:
    out = np.full(count, -77, np.int32)
    Kernels(source, options, **headers)("k", 1, block, out)
    return out.tolist()


def test_globals_and_name_expressions_keep_their_names() -> None:
    names = ["app::fill<int, 4>", "::app::fill<char, 2>", "&index", "pi<float>", "read", "app::time"]
    kernels = Kernels(
        """
        __device__ int time = 5; __constant__ int index[3] = {1, 2, 3};
        template <class T> __constant__ T pi = T(3.5);
        namespace app {
        __device__ int time = 6;
        template <class T, int N> __global__ void fill(T* p) { *p = N + ::time + time; }
        }
        __global__ void read(int* p) { *p = index[1]; }
        """,
        names=names,
    )
    for name, value in (("time", 5), ("app::time", 6), ("index", 1), ("&index", 1)):
        address, size = kernels.module.global_(name)
        assert ctypes.c_int.from_address(address).value == value and size == (12 if "index" in name else 4)
    assert ctypes.c_float.from_address(kernels.module.global_("pi<float>")[0]).value == 3.5
    out = np.zeros(1, np.int32)
    results = []
    for name in ("app::fill<int, 4>", "::app::fill<char, 2>", "read"):
        kernels(name, 1, 1, out)
        results.append(int(out[0]))
    assert results == [15, 13, 2]


def test_name_expressions_select_overloads() -> None:
    names = ["(void(*)(int*))k", "static_cast<void (*)(int*, int)>(&app::k)", "(void(*)(int*, Thing))app::k<float>"]
    kernels = Kernels(
        """
        struct Thing { int value; };
        __global__ void k(int* p) { *p = 1; }
        __global__ void __launch_bounds__(64) k(int* p, int n) { *p = n; }
        namespace app {
        __global__ void k(int* p, int n) { *p = 10 * n; }
        template <class T> __global__ void k(int* p, Thing t) { *p = 100 * t.value + sizeof(T); }
        }
        """,
        names=names,
    )
    out = np.zeros(1, np.int32)
    results = []
    for name, arguments in zip(names, [(), (np.int32(2),), (np.int32(3),)], strict=True):
        kernels(name, 1, 1, out, *arguments)
        results.append(int(out[0]))
    assert results == [1, 20, 304]
    assert kernels.module.function(names[0]).attributes.max_threads_per_block == 1024


def test_headers_of_the_library_and_of_the_program_between_declarations() -> None:
    source = """
    struct Mine {}; struct Other {};
    __device__ int time = 3;
    __device__ int __hadd(Mine, int v) { return v; }
    __device__ int mean(int a, int b) { return __hadd(a, b); }
    #include <cuda_fp16.h>
    #include "ops.cuh"
    #include <cfloat>
    #include <limits>
    #if FLT_RADIX != 2 || !defined(DBL_MAX)
    #error a header's macros are gone
    #endif
    __device__ __half __hadd(__half a, __half b, __half c) { return __hadd(a, __hadd(b, c)); }
    namespace std { template <> struct numeric_limits<Mine> { static constexpr int v = 7; }; }
    template <> struct std::numeric_limits<Other> { static constexpr int v = 8; };
    extern "C" __global__ void k(int* out) {
        out[0] = __hadd(Mine(), 1) + mean(2, 4) + __hadd(1, 3) - 5;
        out[1] = __half2float(__hadd(__half(1.0f), __half(1.0f), __half(2.0f)));
        out[2] = std::numeric_limits<Mine>::v; out[3] = ::std::numeric_limits<Other>::v;
        out[4] = ::time; out[5] = select(9);
        out[6] = FLT_MAX > 1e38f; out[7] = std::numeric_limits<int>::max() == 2147483647;
    }
    """
    ops = "#pragma once\n#include <cuda_runtime.h>\n__device__ inline int select(int v) { return v + time; }\n"
    assert run(source, **{"ops.cuh": ops}) == [1, 4, 7, 8, 3, 12, 1, 1]


def test_own_std_ahead_of_the_backends_headers() -> None:
    source = """
    #ifdef __CUDACC_RTC__
    namespace std {
    template <class T> struct remove_const { typedef T type; };
    template <bool B> struct conditional { enum { v = B }; };
    }
    #else
    #include <type_traits>
    #endif
    #include <cuda_fp16.h>
    #include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(int* out) {
        std::remove_const<int>::type v = std::conditional<true>::v; float std = 2;
        out[0] = v + (int)__half2float(__float2half(std)); out[1] = cg::this_thread_block().size();
    }
    """
    assert run(source)[:2] == [3, 1]


def test_numbers_of_the_c_library_stay_without_their_headers() -> None:
    source = """
    #ifndef M_PI
    #define M_PI 4
    #endif
    extern "C" __global__ void k(int* out) {
        out[0] = INT_MAX == 2147483647 && INT_MIN == -INT_MAX - 1; out[1] = FLT_MAX > 3e38f; out[2] = isinf(INFINITY);
        out[3] = M_PI; out[4] = isnan(NAN); out[5] = UINT64_MAX == ~0ull;
    }
    """
    assert run(source)[:6] == [1, 1, 1, 4, 1, 1]


def test_errors_do_not_name_the_programs_namespace() -> None:
    source = "namespace std { struct thing {}; }\nstruct time {};\n__device__ void f(std::thing t) { time x; x = t; }\n"
    with pytest.raises(Refusal) as caught:
        compile_source(find_toolchain(), source)
    log = caught.value.details["log"]
    assert caught.value.reason is Reason.COMPILE_FAILED and "kernel.cu(3)" in log and "std::thing" in log
    assert "hearth_program" not in log and "hearth_program" not in caught.value.message


@pytest.mark.parametrize(
    "statement",
    [
        'asm volatile("" : "+r"(x))',
        'asm("" : : "r"(x) : "memory")',
        'asm("nop")',
        'asm volatile("" ::: "memory", "r0")',
    ],
)
def test_asm_with_operands_or_instructions_stays_refused(statement: str) -> None:
    with pytest.raises(Refusal) as caught:
        compile_source(find_toolchain(), f"__device__ void f(int x) {{ {statement}; }}")
    assert caught.value.reason is Reason.UNSUPPORTED and "PTX" in caught.value.message


TYPES = ("int", "unsigned", "long", "unsigned long", "long long", "unsigned long long", "float", "double", "short",
         "unsigned short", "char", "bool", "float2", "float4", "double2", "wide")  # fmt: skip
FUNCTIONS = ("Add", "Sub", "Exch", "Min", "Max", "Inc", "Dec", "And", "Or", "Xor", "CAS")
INT, WIDE = {"int", "unsigned"}, {"long long", "unsigned long long"}
OVERLOADS = {
    "Add": INT | {"unsigned long long", "float", "double"}, "Sub": INT, "Exch": INT | {"unsigned long long", "float"},
    "Min": INT | WIDE, "Max": INT | WIDE, "Inc": {"unsigned"}, "Dec": {"unsigned"}, "And": INT | WIDE, "Or": INT | WIDE,
    "Xor": INT | WIDE, "CAS": INT | {"unsigned long long", "unsigned short"},
}  # fmt: skip


def overload_probe() -> str:
    """Returns a kernel that stores, for every function, scope and type, whether such an overload exists."""
    lines = ["template <class...> using void_t = void; struct alignas(16) wide { long long a, b; };"]
    stores = []
    for scope in ("", "_block", "_system"):
        for function in FUNCTIONS:
            name, values = f"atomic{function}{scope}", "T(), T()" if function == "CAS" else "T()"
            lines.append(f"template <class T, class = void> struct has_{name} {{ enum {{ v = 0 }}; }};")
            call = f"{name}((T*)0, {values})"
            lines.append(f"template <class T> struct has_{name}<T, void_t<decltype({call})>> {{ enum {{ v = 1 }}; }};")
            stores += [f"out[{len(stores) + i}] = has_{name}<{kind}>::v;" for i, kind in enumerate(TYPES)]
    return "\n".join(lines) + 'extern "C" __global__ void k(int* out) {\n' + "\n".join(stores) + "\n}"


def test_atomic_overloads_are_cudas_and_no_others() -> None:
    source = overload_probe()
    combinations = [(s, f, t) for s in ("", "_block", "_system") for f in FUNCTIONS for t in TYPES]
    expected = [
        kind in OVERLOADS[function] and (function, kind, scope != "") != ("CAS", "unsigned short", True)
        for scope, function, kind in combinations
    ]
    out = run(source, count=len(combinations))
    found = {combination for combination, have in zip(combinations, out, strict=True) if have}
    assert found == {combination for combination, want in zip(combinations, expected, strict=True) if want}
    if nvrtc.library() is not None:
        stores = [line for line in source.split("\n") if line.startswith("out[")]
        pairs = zip(stores, expected, strict=True)
        checks = [f'static_assert({store[store.index("=") + 1 : -1]} == {int(want)}, "");' for store, want in pairs]
        complaint = nvrtc.compile_source("\n".join([source, *checks]), ["-arch=sm_80", "-std=c++17"])
        assert not complaint


def test_a_program_may_add_vectors_atomically() -> None:
    own = """
    __device__ float2 atomicAdd(float2* p, float2 v) { atomicAdd(&p->x, v.x); atomicAdd(&p->y, 2 * v.y); return *p; }
    extern "C" __global__ void k(int* out) { float2 f = make_float2(1, 1); atomicAdd(&f, f); out[0] = f.x;
        out[1] = f.y; }
    """
    assert run(own)[:2] == [2, 3]


POLLS = ["atomicAdd(&flag, 0)", "atomicSub(&flag, 0)", "atomicOr(&flag, 0)", "atomicXor(&flag, 0)",
         "atomicAnd(&flag, ~0)", "atomicCAS(&flag, 5, 5)", "atomicMax(&flag, (int)0x80000000)",
         "atomicMin(&flag, 0x7fffffff)", "atomicCAS(&flag, 1, 1)", "(int)atomicAdd(&real, 0.0f)"]  # fmt: skip


def test_polling_by_atomic_lets_other_threads_run() -> None:
    """Checks that two threads can pass control to each other; each polls with an operation that changes nothing."""
    kernels = "\n".join(
        f"""
        __device__ bool reached{number}(int& flag, float& real) {{
            for (int tries = 0; tries < 2000; ++tries) if ({poll} == 1) return true;
            return false;
        }}
        extern "C" __global__ void poll{number}(int* out) {{
            __shared__ int ping, pong; __shared__ float real_ping, real_pong;
            ping = pong = 0; real_ping = real_pong = 0;
            __syncthreads();
            if (threadIdx.x == 0) {{ real_ping = 1; ping = 1; out[0] = reached{number}(pong, real_pong); }}
            if (threadIdx.x == 32) {{ out[1] = reached{number}(ping, real_ping); real_pong = 1; pong = 1; }}
            __syncthreads();
        }}"""
        for number, poll in enumerate(POLLS)
    )
    compiled = Kernels(kernels)
    found = {}
    for number, poll in enumerate(POLLS):
        out = np.zeros(2, np.int32)
        compiled(f"poll{number}", 1, 33, out)
        found[poll] = out.tolist()
    assert found == {poll: [1, 1] for poll in POLLS}


def test_names_of_built_in_variables_are_scoped_as_other_names() -> None:
    source = """
    __device__ int id(uint3 threadIdx, dim3 blockDim) { return threadIdx.x + blockDim.x; }
    struct S {
        uint3 threadIdx, blockIdx; dim3 blockDim, gridDim;
        __device__ S(uint3 t) : threadIdx(t), blockIdx{7, 8, 9} {}
        __device__ int sum() const { return threadIdx.x + blockIdx.y; }
    };
    template <class T> __device__ T twice(T v) { return v + v; }
    namespace own {
    __device__ int f() {
        uint3 a = threadIdx, threadIdx = {40, 41, 42}; uint3* p = &threadIdx; p->y += 1; threadIdx.z = 1;
        return threadIdx.y + a.x;
    }
    }
    extern "C" __global__ void k(int* o) {
        int* mine = o + 8 * ::threadIdx.x;
        mine[0] = id(threadIdx, blockDim); mine[1] = S(threadIdx).sum(); mine[2] = own::f();
        auto t = threadIdx; t.x += 100; mine[3] = t.x; dim3 d = threadIdx; mine[4] = d.x + twice(threadIdx.x);
        mine[5] = [](uint3 blockIdx) { return blockIdx.x + threadIdx.x; }(blockIdx);
        auto l = [=] { return gridDim.x + threadIdx.x; }; mine[6] = l();
        mine[7] = sizeof(threadIdx) + (threadIdx.x + +1 == 1) + (threadIdx.x - -1 == 0);
    }"""
    assert run(source, count=16, block=2) == [2, 8, 42, 100, 0, 0, 1, 13, 3, 9, 43, 101, 3, 1, 2, 12]


@pytest.mark.parametrize("statement", ["threadIdx.x = 1;", "blockDim.y += 2;", "gridDim.z <<= 1;", "blockIdx.x++;"])
def test_assignments_to_built_in_variables_are_refused(statement: str) -> None:
    with pytest.raises(Refusal, match="a built-in variable cannot be changed") as caught:
        run(f'extern "C" __global__ void k(int* o) {{\n o[0] = threadIdx.x == 1;\n {statement}\n}}')
    assert caught.value.reason is Reason.COMPILE_FAILED and caught.value.details["line"] == "3"


_HEADERS = sorted(
    str(path.relative_to(INCLUDE))
    for path in INCLUDE.rglob("*")
    if path.is_file() and "details" not in path.parts and path.relative_to(INCLUDE).parts[0] != "hearth"
)
_NO_CODE = frozenset({"assert.h", "cuda.h", "cuda/version", "math_constants.h"})
_SHORT = 3
"""Lines of a header that only includes another one, or that refuses a feature."""


@pytest.mark.parametrize("options", [(), ("-Dmin(a,b)=((a)<(b)?(a):(b))", "-Dmax(a,b)=((a)>(b)?(a):(b))", "-Dbits=8")])
def test_macros_of_the_program_do_not_reach_the_headers(options: tuple[str, ...]) -> None:
    headers = ["cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuComplex.h", "cooperative_groups.h", "cuda/std/algorithm"]
    headers += ["cooperative_groups/reduce.h", "cuda/barrier", "cub/cub.cuh"]
    defined = """
    #define min(a, b) ((a) < (b) ? (a) : (b))
    #define max(a, b) ((a) > (b) ? (a) : (b))
    #define bits 8"""
    source = "\n".join(
        [
            "" if options else defined,
            "#define lane (threadIdx.x & 31)",
            *(f"#include <{name}>" for name in headers),
            'extern "C" __global__ void k(int* o) {',
            "    if (lane != 1) return;",
            "    o[0] = min(3, 4) * 10 + max(1, 2); o[1] = bits; o[2] = __half2float(__float2half(2.0f));",
            "}",
        ]
    )
    assert run(source, *options, count=3, block=2) == [32, 8, 2]


def test_headers_with_code_hide_macros_of_the_program() -> None:
    texts = {name: (INCLUDE / name).read_text().splitlines() for name in _HEADERS if name not in _NO_CODE}
    code = {name: lines for name, lines in texts.items() if len(lines) >= _SHORT}
    assert len(code) > len(_HEADERS) / 2
    for name, lines in code.items():
        begin = next(line for line in lines if line.startswith("#include"))
        assert begin.endswith('hearth/macros_begin.h"') and lines[-1].endswith('hearth/macros_end.h"'), name


_NO_FUNCTIONS = frozenset(
    """alignas alignof asm bool catch char char16_t char32_t const const_cast constexpr decltype declval defined delete
    dim3 double enum
    explicit float for if int long new noexcept operator ptrdiff_t return short signed size_t sizeof static_assert
    static_cast switch template throw typeid typename uint3 unsigned using void wchar_t while""".split()  # noqa: SIM905
)


@with_nvrtc
def test_list_of_library_functions_is_nvrtcs() -> None:
    """Checks that a function of the C library that the prelude declares is on the list exactly if NVRTC knows it."""
    toolchain = find_toolchain()
    toolchain.prelude("gnu++17")
    names = toolchain.prelude_names("gnu++17")
    assert names.functions >= {"atomicAdd", "rsqrtf", "__shfl_sync", "make_float4"} and "INT_MAX" in names.macros
    shim = str(INCLUDE / "hearth" / "shim.h")
    expanded = toolchain.run([*toolchain.compile_options("gnu++17"), "-E", shim], INCLUDE).output.decode()
    declared = set(re.findall(r"\b([a-z]\w*) *\(", expanded)) - names.functions | CUDA_LIBRARY_FUNCTIONS
    candidates = sorted(declared - {"clock", "min", "max"})
    known = set()
    for start in range(0, len(candidates), 90):  # NVRTC stops after 100 errors
        group = candidates[start : start + 90]
        log = nvrtc.compile_source(
            "".join(f"__device__ auto f{i} = +{x};\n" for i, x in enumerate(group)), ["-arch=sm_90"]
        )
        known |= {name for name in group if f'identifier "{name}" is undefined' not in log}
    assert known - _NO_FUNCTIONS == CUDA_LIBRARY_FUNCTIONS
