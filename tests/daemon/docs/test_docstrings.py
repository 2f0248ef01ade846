"""The examples in docstrings of the public client run."""

from __future__ import annotations

import asyncio
import doctest
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hearth
import hearth.aio
from tests.support.daemon.harness import DaemonProcess

TWICE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'


def documented() -> Iterator[tuple[str, object]]:
    """Yields the packages, and their public objects and methods, each with its name."""
    for package in (hearth, hearth.aio):
        yield package.__name__, package
        for name in package.__all__:
            value = getattr(package, name)
            yield f"{package.__name__}.{name}", value
            if inspect.isclass(value):
                for member, of_class in inspect.getmembers(value):
                    if not member.startswith("_") and (inspect.isfunction(of_class) or isinstance(of_class, property)):
                        yield f"{package.__name__}.{name}.{member}", of_class


def source(value: object) -> str:
    """Returns the statements of the examples of a docstring."""
    text = inspect.getdoc(value) if getattr(value, "__doc__", None) else ""
    return "".join(example.source for example in doctest.DocTestParser().get_examples(text or ""))


def of_package(names: dict[str, Any]) -> None:
    """Checks nothing more: the example prints the result."""


def of_aio(names: dict[str, Any]) -> None:
    """Runs the example's coroutine. Its kernel, which the example leaves out, is that of `hearth`'s example."""
    names["double"] = lambda grid, block, args: args[0].device.RawKernel(TWICE, "twice")(grid, block, args)
    asyncio.run(names["main"]())


def of_retrying(names: dict[str, Any]) -> None:
    assert names["train"](None) is None


CASES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "hearth": (of_package, "[0. 2. 4. 6.]\n"),
    "hearth.aio": (of_aio, "[0. 2. 4. 6.]\n"),
    "hearth.retrying": (of_retrying, ""),
}
"""For each docstring with an example: a function that completes it, and the output."""


def test_each_example_of_the_public_client_is_run() -> None:
    assert {name for name, value in documented() if source(value)} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_an_example(
    name: str, daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEARTH_TARGET", daemon.unix)
    complete, output = CASES[name]
    names: dict[str, Any] = {"np": np, "hearth": hearth}
    exec(source(dict(documented())[name]), names)
    complete(names)
    assert capsys.readouterr().out == output
