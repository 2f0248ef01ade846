"""The compiler's log as shown to the user: the user's own lines, quoted, without internal names; and warnings."""

from __future__ import annotations

import re

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.toolchain import find_toolchain
from hearthd.device.cpu.translation.messages import MAX_WARNINGS, Messages, limited_warnings
from tests.support.cpu.kernels import compile_image

K = 'extern "C" __global__ void k(int* p) {\n'
INTERNAL = re.compile(r"hearth|<kernels>|always_inline|/tmp|/usr|thread_local|\./")

# Name: source, the line that the message names, and a part of the message.
MISTAKES = {
    "missing brace": (K + "    if (p[0]) {\n        p[1] = 2;\n}\n", 1, "this '{' is never closed"),
    "brace of a function": (K + "p[0] = 1;\n\n__device__ int g() { return 1; }\n", 1, "'{' is never closed"),
    "extra brace": (K + "}\n}\n", 3, "'}'"),
    "missing parenthesis": (K + "    for (int i = 0; i < 9; i++ {\n        p[i] = 1;\n    }\n}\n", 2, "')'"),
    "missing semicolon": (K + "    int a = 3\n    p[0] = a;\n}\n", 2, "';'"),
    "class without semicolon": ("struct S { int a; }\n" + K + "}\n", 1, "';' is missing after this '}'"),
    "unknown type": (K + "    flaot x = 1;\n}\n", 2, "'flaot'"),
    "argument count": ("__device__ int f(int a) { return a; }\n" + K + "    p[0] = f();\n}\n", 3, "f"),
    "misspelt builtin": (K + "    p[theadIdx.x] = 1;\n}\n", 2, "'theadIdx'"),
    "builtin as a number": (K + "    p[blockIdx * blockDim + threadIdx] = 1;\n}\n", 2, "uint3"),
    "builtin in a function": ("__device__ int f() {\n    return blockIdx * 2;\n}\n" + K + "}\n", 2, "uint3"),
    "wrong arguments of a shuffle": (K + "    p[0] = __shfl_down_sync(p[0], 1);\n}\n", 2, "__shfl_down_sync"),
    "template": ("template <class T> __device__ T f(T v) {\n    return v.a;\n}\n" + K + "    f(3);\n}\n", 2, "int"),
    "library": ("#include <algorithm>\n" + K + "    struct Q {} q[3];\n    std::sort(q, q + 3);\n}\n", 4, "Q"),
    "second definition": (K + "}\n" + K + "}\n", 3, "redefinition"),
    "second kernel of a C name": (K + "}\n" + K.replace("int*", "float*") + "}\n", 3, "'k' with C linkage"),
    "kernel that returns": (K.replace("void", "int") + "    return 1;\n}\n", 1, "must return void"),
    "kernel with a reference": (K.replace("*", "&") + "    p = 1;\n}\n", 1, "takes a reference"),
    "member": ("struct S {\n    static __global__ void f(int* p) {}\n};\n" + K + "}\n", 2, "'f' is a member of 'S'"),
    "called kernel": ("__global__ void f(int* p) {}\n" + K + "    f(p);\n}\n", 3, "'f' is called as a function"),
    "launch bounds": (K.replace("void", "void __launch_bounds__(N)") + "}\n", 1, "'N'"),
    "missing include": ("\n" + '#include "mine/ops.h"\n' + K + "}\n", 2, "mine/ops.h"),
    "CUDA's header": (K + "    __half h = 1;\n}\n", 2, "__half"),
}  # fmt: skip


def log_of(source: str, names: tuple[str, ...] = (), **headers: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        compile_image(find_toolchain(), source, (), names, headers)
    assert caught.value.reason is Reason.COMPILE_FAILED
    assert not INTERNAL.search(caught.value.message + caught.value.details["log"]), caught.value.details["log"]
    return caught.value


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_named_with_its_line(name: str) -> None:
    source, line, part = MISTAKES[name]
    error = log_of(source)
    assert f"kernel.cu({line}): " in error.message and part in error.message
    assert source.split("\n")[line - 1].rstrip() in error.details["log"]
    assert ("include <cuda_fp16.h>" in error.details["log"]) == (name == "CUDA's header")


def test_mistake_in_a_header_is_named_there() -> None:
    error = log_of('#include "mine.h"\n' + K + "}\n", **{"mine.h": "\n__device__ int g() { return 1;\n"})
    assert "mine.h(2): error: this '{' is never closed" in error.message
    assert "    __device__ int g() { return 1;" in error.details["log"]


@pytest.mark.parametrize("name", ["g<int>", "f", "f<nosuch>", "f<int", "h<int>"])
def test_name_expression_that_names_nothing(name: str) -> None:
    error = log_of("template <class T> __global__ void f(T* p) {}\n__global__ void h(int* p) {}\n", (name,))
    assert error.details["log"].startswith(f"error: the name expression '{name}' names no kernel or variable: ")
    assert "\n" not in error.details["log"]


def test_kernels_may_share_names_with_local_declarations() -> None:
    source = """
    __global__ void f(int* p) {}
    __global__ void g(int* p) {}
    __device__ int g(int a) { return a; }
    extern "C" __global__ void k(int* p) { auto f = [](int* p) { p[0] = 1; }; f(p); g(2); }
    """
    assert compile_image(find_toolchain(), source).code


WARNED = r"""
#include "mine.h"
#define TWICE(x) \
    (2 * (x))
__device__ int nothing(int a) {
    if (a) return 1;
}
extern "C" __global__ void __launch_bounds__(64)
k(int* p, unsigned n) {
    __shared__ int s[4];
    int unused = TWICE(3);
    extern __shared__ float dynamic[];
    float never;
    p[0] = never + nothing(p[1]) + mine(1);
    printf("%s\n", p[0]);
    if (n >= 0) p[1] = 1 << 40;
    s[0] = 1; dynamic[0] = 2 / 0;
    if (p[2] = 3) p[3] = s[0];
}
template <class T> __global__ void typed(T* p) { T unused_too = p[threadIdx.x] / 0; }
"""


def test_warnings_name_the_users_lines() -> None:
    headers = {"mine.h": "\n__device__ int mine(int a) { int idle = a; return a; }\n"}
    options = ["-maxrregcount=32", "-DTWICE=1"]
    image = compile_image(find_toolchain(), WARNED, options, ("typed<int>",), headers)
    log = image.log.split("\n")
    assert log[0] == "warning: the option '-maxrregcount=32' has no effect on the CPU backend"
    for place, part in (
        ("kernel.cu(3)", "TWICE"), ("kernel.cu(7)", "return"), ("kernel.cu(11)", "unused"), ("kernel.cu(14)", "never"),
        ("kernel.cu(15)", "format"), ("kernel.cu(16)", ">= 0"), ("kernel.cu(16)", "shift"),
        ("kernel.cu(17)", "zero"), ("kernel.cu(18)", "parenthes"), ("kernel.cu(20)", "unused_too"),
        ("mine.h(2)", "idle"),
    ):  # fmt: skip
        assert any(line.startswith(f"{place}: warning: ") and part in line for line in log), (place, part, image.log)
    assert "    int unused = TWICE(3);" in image.log
    assert not INTERNAL.search(image.log) and "threadIdx'" not in image.log
    assert all(
        line.startswith(("kernel.cu", "mine.h", "<options>", "    ", "warning", "for the name")) for line in log
    ), image.log
    assert compile_image(find_toolchain(), WARNED, [*options, "-w"], ("typed<int>",), headers).log == ""


def test_warnings_are_bounded_and_each_shown_once() -> None:
    lines = [f"kernel.cu:{n}:1: warning: unused variable 'x{n}' [-Wunused-variable]" for n in range(1, 200)]
    shown = limited_warnings(Messages("\n".join([*lines[:3], *lines]), {"kernel.cu": ["x"] * 300}, "/room"))
    assert len(shown) == MAX_WARNINGS + 1 and "left out" in shown[-1]
    assert shown[0] == "kernel.cu(1): warning: unused variable 'x1' [-Wunused-variable]\n    x"
    long = [line.replace("x", "x" * 2000) for line in lines]
    assert sum(map(len, limited_warnings(Messages("\n".join(long), {"kernel.cu": []}, "/room")))) < 20_000


CLANG = """\
In file included from kernel.cu:1:
/usr/include/c++/algo.h:9:3: error: invalid operands to binary expression ('const Q' and 'const Q')
kernel.cu:3:5: note: in instantiation of function template specialization 'std::sort<Q *>' requested here
/work/include/hearth/warp.h:7:1: note: candidate function not viable
kernel.cu:2:7: error: cannot assign to variable 'threadIdx' with const-qualified type 'const ::uint3'
./mine.h:1:1: warning: unused variable 'a' [-Wunused-variable]
kernel.cu:2:7: warning: attribute 'hearth_x' is ignored [-Wignored-attributes]
/usr/include/c++/algo.h:9:3: warning: unused variable 'b' [-Wunused-variable]
<kernels>:4:1: error: expected '}'
2 errors generated.
"""


def test_log_of_clang() -> None:
    texts = {"kernel.cu": ["#include <algorithm>", "threadIdx = 1;", "std::sort(q, q + 3);"], "mine.h": ["int a;"]}
    messages = Messages(CLANG, texts, "/room")
    shown = ["\n".join(messages.show(error)) for error in messages.errors()]
    assert shown == [
        "kernel.cu(3): error: invalid operands to binary expression ('const Q' and 'const Q')\n"
        "    std::sort(q, q + 3);",
        "kernel.cu(2): error: cannot assign to variable 'threadIdx' with const-qualified type 'const uint3'\n"
        "    threadIdx = 1;",
    ]
    assert limited_warnings(messages) == ["mine.h(1): warning: unused variable 'a' [-Wunused-variable]\n    int a;"]


def test_a_mistake_ahead_of_a_function_without_sync_is_named_first() -> None:
    source = 'extern "C" __global__ void k(int* p) {\n    int i = threadIdx.x%s\n    p[i] = __shfl_down(i, 1);\n}\n'
    with pytest.raises(Refusal) as mistake:
        compile_image(find_toolchain(), source % "")
    assert mistake.value.reason is Reason.COMPILE_FAILED and "kernel.cu(2)" in mistake.value.message
    with pytest.raises(Refusal) as refused:
        compile_image(find_toolchain(), source % ";")
    assert refused.value.reason is Reason.UNSUPPORTED and "__shfl_down_sync" in refused.value.fix
