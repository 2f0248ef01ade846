"""Fakes of CuPy and cuda-bindings, so that modules of `hearthd.device.cuda` can be imported without them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest


class FakeError(RuntimeError):
    """The exception of a failed call."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


class FakeCuda(NamedTuple):
    """CuPy's bindings of runtime and driver, and NVIDIA's of the driver."""

    runtime: Any
    cupy_driver: Any
    driver: Any


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch, fakes: FakeCuda | None = None) -> Iterator[FakeCuda]:
    """Replaces the packages by `fakes`, or by mocks.

    Modules of `hearthd.device.cuda` are imported anew, with or without CuPy installed, and again by other tests.
    """
    fakes = fakes or FakeCuda(
        MagicMock(CUDARuntimeError=FakeError), MagicMock(CUDADriverError=FakeError), MagicMock(name="driver")
    )
    api, bindings = ModuleType("cupy_backends.cuda.api"), ModuleType("cuda.bindings")
    api.runtime, api.driver, bindings.driver = fakes  # type: ignore[attr-defined]
    modules: dict[str, Any] = {
        "cuda": ModuleType("cuda"),
        "cuda.bindings": bindings,
        "cupy_backends": ModuleType("cupy_backends"),
        "cupy_backends.cuda": ModuleType("cupy_backends.cuda"),
        "cupy_backends.cuda.api": api,
        "cupy_backends.cuda.api.runtime": fakes.runtime,
        "cupy_backends.cuda.api.driver": fakes.cupy_driver,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in [each for each in sys.modules if each.startswith("hearthd.device.cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    package = importlib.import_module("hearthd.device.cuda")
    attributes = dict(vars(package))
    yield fakes
    for name in [each for each in sys.modules if each.startswith("hearthd.device.cuda.")]:
        del sys.modules[name]
    vars(package).clear()
    vars(package).update(attributes)
