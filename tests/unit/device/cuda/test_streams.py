"""CUDA streams with a fake driver: the arguments of the calls that create them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.device.fake_cuda import FakeCuda, fake_cuda

NON_BLOCKING = 1
"""cudaStreamNonBlocking."""


class FakeRuntime(ModuleType):
    """The part of `cupy_backends.cuda.api.runtime` that streams need; records each created stream."""

    CUDARuntimeError = RuntimeError
    streamNonBlocking = NON_BLOCKING
    eventDisableTiming = 2
    eventDefault = 0

    def __init__(self) -> None:
        super().__init__("cupy_backends.cuda.api.runtime")
        self.created: list[tuple[int, int]] = []
        """Flags and priority of each stream."""
        self.destroyed: list[int] = []

    def streamCreateWithPriority(self, flags: int, priority: int) -> int:
        self.created.append((flags, priority))
        return len(self.created)

    def streamCreateWithFlags(self, flags: int) -> int:
        return self.streamCreateWithPriority(flags, 0)

    def streamDestroy(self, pointer: int) -> None:
        self.destroyed.append(pointer)

    def eventCreateWithFlags(self, flags: int) -> int:
        return 100 + flags

    def eventRecord(self, event: int, stream: int) -> None: ...

    def eventQuery(self, event: int) -> int:
        return 600

    def streamWaitEvent(self, stream: int, event: int) -> None: ...


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def cuda(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules `streams` and `kernel_output`, imported over the fake."""
    attributes = SimpleNamespace(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS=122)
    fakes = FakeCuda(
        runtime,
        cupy_driver=SimpleNamespace(CUDADriverError=RuntimeError),
        driver=SimpleNamespace(CUdevice_attribute=attributes),
    )
    with fake_cuda(monkeypatch, fakes):
        names = ("streams", "kernel_output")
        yield SimpleNamespace(**{name: importlib.import_module(f"hearthd.device.cuda.{name}") for name in names})


@pytest.fixture
def streams(cuda: SimpleNamespace) -> Any:
    return cuda.streams.CudaStreams()


@pytest.mark.parametrize("priority", [0, -1, -5])
def test_streams_are_non_blocking_and_have_their_priority(streams: Any, runtime: FakeRuntime, priority: int) -> None:
    stream = streams.create(priority)
    assert runtime.created == [(NON_BLOCKING, priority)] and stream.pointer == 1


def test_the_stream_that_collects_output_is_non_blocking(cuda: SimpleNamespace, runtime: FakeRuntime) -> None:
    cuda.kernel_output.KernelOutput().flush()
    assert runtime.created == [(NON_BLOCKING, 0)]


def test_a_stream_is_destroyed_once(streams: Any, runtime: FakeRuntime) -> None:
    stream = streams.create()
    for _ in range(2):
        streams.destroy(stream)
    assert runtime.destroyed == [1] and not hasattr(stream, "pointer")
