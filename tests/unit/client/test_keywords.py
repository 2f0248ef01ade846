"""Misspelt keywords and arguments in the wrong order: the error names the call and suggests the likely keyword."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import hearth
import hearth.aio
from hearth import keywords


@pytest.fixture
def f(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawModule(code="source").get_function("saxpy")


def test_misspelt_keyword_of_a_launch_names_the_kernel_and_the_keyword(f: Any) -> None:
    with pytest.raises(hearth.LaunchError, match=r"launch of saxpy: .* timeuot; did you mean timeout\?") as caught:
        f(1, 1, (), timeuot=1)
    assert isinstance(caught.value, TypeError) and caught.value.reason == "LAUNCH_INVALID"
    assert "args, shared_mem, stream, timeout, mode, cooperative, cluster, iterations" in caught.value.fix


def test_keyword_unlike_any_other_has_no_suggestion(f: Any) -> None:
    with pytest.raises(hearth.LaunchError, match=r"there is no keyword xyz\. Fix: use these keywords"):
        f(1, 1, (), xyz=1)


def test_keyword_in_numbas_form_says_which_form_takes_it(f: Any) -> None:
    with pytest.raises(
        hearth.LaunchError, match=r"saxpy\[grid, block\]\(...\) takes no keywords, such as timeout"
    ) as got:
        f[1, 1](timeout=1)
    assert "saxpy(grid, block, (arguments...), timeout=...)" in got.value.fix


@pytest.mark.parametrize("call", ["dispatch", "dispatch_async"])
def test_misspelt_keyword_of_a_dispatch(gpu: hearth.Device, f: hearth.Function, call: str) -> None:
    with pytest.raises(TypeError, match=rf"gpu\.{call}: .*iteration; did you mean iterations\?"):
        getattr(gpu, call)(f, 1, 1, iteration=2)


def test_misspelt_keyword_of_connect() -> None:
    misspelt: dict[str, Any] = {"launch_timout": 1}
    with pytest.raises(TypeError, match=r"hearth\.connect: .*did you mean launch_timeout\?") as caught:
        hearth.connect("unix:/nowhere", **misspelt)
    assert isinstance(caught.value, hearth.HearthError) and caught.value.reason == "INVALID_ARGUMENT"
    with pytest.raises(TypeError, match=r"hearth\.aio\.connect: .*did you mean launch_timeout\?"):
        hearth.aio.connect("unix:/nowhere", **misspelt)


def test_misspelt_keyword_of_a_module(gpu: hearth.Device) -> None:
    for load in (lambda: gpu.RawModule("source", optoins=()), lambda: gpu.RawKernel("source", "f", optoins=())):
        with pytest.raises(TypeError, match=r"no keyword optoins; did you mean options\?") as caught:
            load()
        assert isinstance(caught.value, hearth.UnsupportedError)
    with pytest.raises(hearth.UnsupportedError, match="backend='hiprtc' is not supported"):
        gpu.RawModule("source", backend="hiprtc")


def test_swapped_arguments_of_a_kernel_are_named(gpu: hearth.Device) -> None:
    source = 'extern "C" __global__ void saxpy() { }'
    with pytest.raises(hearth.ArgumentError, match="in the wrong order") as caught:
        gpu.RawKernel("saxpy", source)
    assert caught.value.fix == "pass the source first: gpu.RawKernel(source, 'saxpy')."
    gpu.RawKernel(source, "saxpy")


def test_the_asyncio_device_has_the_same_checks() -> None:
    device = object.__new__(hearth.aio.Device)
    with pytest.raises(hearth.ArgumentError, match="in the wrong order"):
        device.RawKernel("saxpy", "void saxpy() { }")
    misspelt: dict[str, Any] = {"timeuot": 1}
    with pytest.raises(TypeError, match="did you mean timeout"):
        device.dispatch_async(None, 1, 1, **misspelt)
    with pytest.raises(TypeError, match="did you mean timeout"):
        asyncio.run(device.dispatch(None, 1, 1, **misspelt))  # type: ignore[arg-type]


def test_a_function_without_keywords() -> None:
    error = keywords.unknown_keyword("f", ["x"], lambda a: None)
    assert str(error) == "f: there is no keyword x. Fix: call it without keywords."
