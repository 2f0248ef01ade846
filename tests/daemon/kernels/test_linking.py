"""Modules of several inputs: linked on GPUs, refused by name on the CPU backend."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import time

import numpy as np
import pytest

import hearth
import hearth.aio
from tests.support.daemon.harness import DaemonProcess

KERNEL = """
#include "shared.h"
__device__ int offset = 5;
extern "C" __global__ void f(int* x, short n) { x[threadIdx.x] = twice(x[threadIdx.x]) + n; }
template <class T> __global__ void g(T* x) { *x = T(2.5); }
"""
LIBRARY = """
#include "shared.h"
extern __device__ int offset;
__constant__ int factor = 2;
__device__ int twice(int n) { return factor * n + offset; }
"""
HEADERS = {"shared.h": "__device__ int twice(int);"}


_numbers = itertools.count()


def fresh(code: str) -> str:
    """Returns the code with a comment that no other test has, so that no cache has it."""
    return f"{code}\n// {os.getpid()}.{next(_numbers)}.{time.time_ns()}\n"


def linked(gpu: hearth.Device, *codes: str | bytes, **more: object) -> hearth.RawModule:
    """Returns the module; skips the test where modules are not linked."""
    if gpu.properties.backend == "cpu":
        pytest.skip("the CPU backend links no modules")
    return gpu.RawModule(code=list(codes), headers=HEADERS, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [(), ("-dlto",)])
def test_kernels_use_functions_and_variables_of_other_sources(gpu: hearth.Device, options: tuple[str, ...]) -> None:
    module = linked(gpu, fresh(KERNEL), LIBRARY, options=options, name_expressions=["g<double>"])
    x, y = gpu.asarray(np.arange(8, dtype=np.int32)), gpu.zeros(1, np.float64)
    module.get_function("f")(1, 8, (x, 1))
    module.get_function("g<double>")(1, 1, (y,))
    assert x.get().tolist() == [2 * n + 5 + 1 for n in range(8)] and y.get().tolist() == [2.5]
    if not options:  # link-time optimization may remove a variable
        module.get_global("factor", np.int32)[:] = 10
        module.get_function("f")(1, 8, (x, 0))
        assert x.get()[:2].tolist() == [65, 85]


def test_the_cache_distinguishes_the_inputs(gpu: hearth.Device) -> None:
    kernel = fresh(KERNEL)
    other = LIBRARY.replace("factor * n", "factor * n * n")
    results = []
    for library in (LIBRARY, other, LIBRARY):
        x = gpu.full(1, 3, np.int32)
        linked(gpu, kernel, library).get_function("f")(1, 1, (x, 0))
        results.append(x.get().item())
    assert results == [11, 23, 11]


def test_link_errors(gpu: hearth.Device) -> None:
    log = io.StringIO()
    with pytest.raises(hearth.CompileError, match="twice") as caught:
        linked(gpu, fresh(KERNEL), fresh("__device__ int unused;")).compile(log_stream=log)
    assert caught.value.reason == "COMPILE_FAILED" and "twice" in log.getvalue()
    with pytest.raises(hearth.CompileError, match=r"input 1: kernel\.cu"):
        linked(gpu, fresh(KERNEL), "__device__ int a = b;").compile()


def test_a_source_that_is_linked_alone(gpu: hearth.Device) -> None:
    """Options for linking of a single source, as programs for nvcc have them, on every backend."""
    for option in ("-rdc=true", "-dc", "-dlto"):
        x = gpu.zeros(1, np.int32)
        code = fresh('__device__ int two() { return 2; } extern "C" __global__ void f(int* x) { *x += two(); }')
        gpu.RawModule(code=code, options=(option,)).get_function("f")(1, 1, (x,))
        assert x.get().item() == 2
    x = gpu.zeros(1, np.int32)
    gpu.RawModule(code=[code]).get_function("f")(1, 1, (x,))
    assert x.get().item() == 2


def test_the_cpu_backend_refuses_several_inputs_by_name(gpu: hearth.Device) -> None:
    if gpu.properties.backend != "cpu":
        pytest.skip("the device links modules")
    for codes in ([KERNEL, LIBRARY], [KERNEL, b"\xed\x43\x4e\x7f..."]):
        with pytest.raises(hearth.UnsupportedError) as caught:
            gpu.RawModule(code=codes, headers=HEADERS).compile()
        assert caught.value.details["feature"] == "linking" and "headers=" in caught.value.fix
    x = gpu.full(1, 3, np.int32)
    one = gpu.RawModule(code=KERNEL + '#include "library.cu"\n', headers={**HEADERS, "library.cu": LIBRARY})
    one.get_function("f")(1, 1, (x, 0))
    assert x.get().item() == 11


def test_code_that_is_linked_alone_by_its_options(gpu: hearth.Device) -> None:
    if gpu.properties.backend != "cpu":
        pytest.skip("tested with the linker")
    with pytest.raises(hearth.UnsupportedError, match="PTX for sm_80"):
        gpu.RawModule(code=b".version 8.0\n.target sm_80\n", options=("-rdc=true",)).compile()


def test_in_asyncio(daemon: DaemonProcess) -> None:
    async def run() -> None:
        async with hearth.aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            module = gpu.RawModule(code=[fresh(KERNEL), LIBRARY], headers=HEADERS)
            if gpu.properties.backend == "cpu":
                with pytest.raises(hearth.UnsupportedError, match="links no modules"):
                    await module.compile()
                return
            x = gpu.full(1, 3, np.int32)
            module.get_function("f")(1, 1, (x, 0))
            assert (await x.get()).item() == 11

    asyncio.run(run())


def test_wrong_inputs(gpu: hearth.Device) -> None:
    with pytest.raises(hearth.ArgumentError, match="empty list"):
        gpu.RawModule(code=[])
    with pytest.raises(hearth.DtypeError, match=r"code\[1\] is a int"):
        gpu.RawModule(code=["", 5])  # type: ignore[list-item]


@pytest.mark.parametrize("option", ["-rdc=true", "-dc", "-dlto"])
def test_accesses_of_linked_code_cannot_be_checked(gpu: hearth.Device, option: str) -> None:
    code = fresh('extern "C" __global__ void f(int* x) { *x = 1; }')
    with pytest.raises(hearth.CompileError, match="-fsanitize=address cannot be combined with code that is linked"):
        gpu.RawModule(code=code, options=("-fsanitize=address", option)).compile()
