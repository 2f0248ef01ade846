"""Warnings about arrays whose dtype differs from the type that the kernel's source declares."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.kernels.pointer_types import declared

SAXPY = """
/* float* in a comment; "__global__ void saxpy(double*)" too */
extern "C" __global__ void __launch_bounds__(256, 2)
saxpy(const float *__restrict__ x, float* y, float a /* double* */, unsigned long long n) { y[0] = a * x[0]; }
"""


@pytest.mark.parametrize(
    ("source", "types"),
    [
        (SAXPY, ("float32", "float32", None, None)),
        ("__global__ void saxpy(const std::uint32_t x[], double y[4], half*h)", ("int32", "float64", "float16")),
        ("__global__ void saxpy(unsigned  long long int const * const x)", ("int64",)),
        ("template <int N> __global__ void saxpy(Pair<float, N>* p, bool* b)", (None, "bool")),
        ("__global__ void saxpy(float** rows, char* bytes, void* any, float4* v, T* t)", (None,) * 5),
        ("__global__ void saxpy(int (*callback)(float*, int), float x = f(1, 2))", (None, None)),
        ("__global__ void saxpy()", (None,)),
        ("__global__ void other(float* x)", ()),
        ("#define MAKE(T) __global__ void k_##T(T* x)", ()),
        ("__global__ void saxpy(float* x); __global__ void saxpy(float* x) {}", ("float32",)),
        ("__global__ void saxpy(float* x) {} __global__ void saxpy(double* x) {}", ()),
        ("__global__ void first(float* saxpy) {} void saxpy(double* x) {}", ()),
        ("__global__ void saxpy(float* x", ("float32",) * 0),
    ],
)
def test_declared_element_types(source: str, types: tuple[str | None, ...]) -> None:
    assert declared(source, "saxpy") == types


@pytest.mark.parametrize("launched", ["call", "index", "recorded"])
def test_a_float64_array_for_a_float_pointer_warns_once(gpu: hearth.Device, launched: str) -> None:
    saxpy = gpu.RawModule(code=SAXPY).get_function("saxpy")
    x, y = gpu.zeros(8, np.float64), gpu.zeros(8, np.float32)
    args = (x, y, np.float32(2), np.uint64(8))
    with pytest.warns(RuntimeWarning, match=re.escape("argument 0 is an array of float64")) as caught:
        for _ in range(3):
            if launched == "call":
                saxpy(1, 8, args)
            elif launched == "index":
                saxpy[1, 8](*args)
            else:
                with gpu.graph():
                    saxpy(1, 8, args)
    warned = [each for each in caught if each.category is RuntimeWarning]
    assert {each.filename for each in warned} == {__file__} and len(warned) == 1
    assert "a pointer to float. Fix: pass an array of float32" in str(warned[0].message)


def test_equal_reinterpreted_and_unknown_types_do_not_warn(gpu: hearth.Device) -> None:
    saxpy = gpu.RawModule(code=SAXPY).get_function("saxpy")
    counts = gpu.RawModule(code="__global__ void saxpy(int* n, char* b, T* t)").get_function("saxpy")
    x = gpu.zeros(8, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saxpy(1, 8, (x, gpu.zeros(8, np.float64).view(np.float32), np.float32(2), np.uint64(8)))
        saxpy(1, 8, (gpu.zeros(32, np.uint8), gpu.zeros(4, np.complex64), np.float32(2), np.uint64(8)))
        counts(1, 8, (gpu.zeros(8, np.uint32), x, x))


@pytest.mark.parametrize("mark", ["read_only", "pointer", "both"])
def test_marked_arrays_are_compared(gpu: hearth.Device, mark: str) -> None:
    saxpy = gpu.RawModule(code=SAXPY).get_function("saxpy")
    x, y = gpu.zeros(8, np.float64), gpu.zeros(8, np.float32)
    marked = {"read_only": hearth.read_only(x), "pointer": hearth.pointer(x, 8),
              "both": hearth.pointer(hearth.read_only(x))}[mark]  # fmt: skip
    with pytest.warns(RuntimeWarning, match=re.escape("argument 0 is an array of float64")) as caught:
        saxpy(1, 8, (marked, hearth.pointer(y), np.float32(2), np.uint64(8)))
    assert [each.filename for each in caught] == [__file__]


@pytest.mark.parametrize("kind", ["In", "InOut", "Out", "array", "ins"])
def test_arrays_of_a_dispatch_are_compared(gpu: hearth.Device, kind: str) -> None:
    saxpy = gpu.RawModule(code=SAXPY).get_function("saxpy")
    host, y = np.zeros(8), np.zeros(8, np.float32)
    scalars = [np.float32(2), np.uint64(8)]
    first = {"In": hearth.In(host), "InOut": hearth.InOut(host), "Out": hearth.Out(8, np.float64), "array": host}
    words: dict[str, Any] = {"ins": [host], "outs": [hearth.InOut(y)], "scalars": scalars}
    if kind != "ins":
        words = {"args": [first[kind], hearth.InOut(y), *scalars]}
    with pytest.warns(RuntimeWarning, match=re.escape("argument 0 is an array of float64")) as caught:
        for _ in range(2):
            gpu.dispatch_async(saxpy, 1, 8, **words)
    assert [each.filename for each in caught] == [__file__]


def test_numbers_and_matching_arrays_of_a_dispatch_do_not_warn(gpu: hearth.Device) -> None:
    saxpy = gpu.RawModule(code=SAXPY).get_function("saxpy")
    y = hearth.InOut(np.zeros(8, np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for first in (np.uint64(0), np.float64(1), hearth.In(np.zeros(8, np.float32)), hearth.Out(32, np.uint8)):
            gpu.dispatch_async(saxpy, 1, 8, args=[first, y, np.float32(2), np.uint64(8)])
