"""Copy communicators with a fake driver: resources after a failed initialisation."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hearth_proto.reasons import Refusal
from hearthd.device.cuda.sharing.copy_segment import PROOF_BYTES
from tests.support.device.fake_cuda import FakeCuda, fake_cuda

OWN, PEER, SEGMENT = 1 << 40, 2 << 40, 3 << 40
"""Addresses of the windows and the segment, which are not memory of this process."""
PROOF = b"p" * PROOF_BYTES


class CudaError(RuntimeError):
    status = 2
    """cudaErrorMemoryAllocation."""


class FakeNode:
    """Runtime, driver, virtual memory and segment in one object. Records held resources; the call `failing` fails."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.held: list[Any] = []
        self.address = SEGMENT

    def __getattr__(self, name: str) -> Any:
        """Returns constants and calls that have no effect here."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **keywords: self.step(name)

    def step(self, name: str) -> None:
        if name == self.failing:
            raise CudaError(f"{name} failed")

    # ---- runtime and driver ----

    def hostRegister(self, address: int, size: int, flags: int) -> None:
        self.step("hostRegister")
        self.held.append(address)

    def hostUnregister(self, address: int) -> None:
        self.held.remove(address)

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> tuple[int, int]:
        self.step("cuMemHostGetDevicePointer")
        return 0, address

    def cuDeviceGet(self, index: int) -> tuple[int, int]:
        return 0, index

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[int, int]:
        return 0, 1

    def memcpyAsync(self, destination: int, source: int, size: int, kind: int, stream: int) -> None:
        if source == PEER:
            ctypes.memmove(destination, PROOF, size)

    # ---- virtual memory ----

    def missing_attribute(self, index: int) -> str:
        return ""

    def create(self, size: int, properties: Any) -> str:
        self.held.append("handle")
        return "handle"

    def map_new(self, handle: str, size: int, index: int) -> int:
        self.held.append(OWN)
        return OWN

    def map_file(self, file: int, size: int) -> int:
        self.held.append(PEER)
        return PEER

    def unmap(self, address: int, size: int) -> None:
        self.held.remove(address)

    def release(self, handle: str | int) -> None:
        if handle == "handle":  # otherwise it is the rank for which waits are released
            self.held.remove(handle)

    # ---- segment ----

    def open(self, nonce: bytes) -> FakeNode:
        self.held.append("segment")
        return self

    def close(self) -> None:
        self.held.remove("segment")

    def fetch(self, nonce: bytes) -> int:
        return os.open(os.devnull, os.O_RDONLY)

    def proof(self, rank: int) -> bytes:
        return PROOF

    def exchange(self, word: int, rank: int, yes: bool) -> bool:
        return yes


@contextmanager
def communicators(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Context with the factory of a module that is imported over the fake."""
    runtime: Any = ModuleType("cupy_backends.cuda.api.runtime")
    runtime.CUDARuntimeError = CudaError
    for name in ("eventQuery", "eventRecord", "streamWaitEvent"):
        setattr(runtime, name, getattr(fake, name))
    attributes = SimpleNamespace(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS=122)
    fakes = FakeCuda(
        runtime,
        cupy_driver=SimpleNamespace(CUDADriverError=CudaError),
        driver=SimpleNamespace(CUdevice_attribute=attributes),
    )
    with fake_cuda(monkeypatch, fakes):
        virtual_memory: Any = ModuleType("hearthd.device.cuda.sharing.virtual_memory")
        monkeypatch.setitem(sys.modules, virtual_memory.__name__, virtual_memory)
        sharing = importlib.import_module("hearthd.device.cuda.sharing")
        monkeypatch.setattr(sharing, "virtual_memory", virtual_memory, raising=False)
        tested = importlib.import_module("hearthd.device.cuda.sharing.copy_communicators")
        for name in ("runtime", "driver", "virtual_memory"):
            monkeypatch.setattr(tested, name, fake)
        monkeypatch.setattr(tested, "CopySegments", lambda: fake)
        yield tested.CopyCommunicators(0)


@pytest.mark.parametrize("failing", ["hostRegister", "cuMemHostGetDevicePointer", "eventCreateWithFlags"])
@pytest.mark.parametrize("rank", [0, 1])
def test_communicator_that_fails_to_initialise_holds_nothing(
    rank: int, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNode(failing)
    with communicators(fake, monkeypatch) as factory, pytest.raises(Refusal, match="Joining a copy"):
        factory.join(b"id", rank, 2)
    assert fake.held == []


def test_communicator_that_is_initialised_holds_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNode("")
    with communicators(fake, monkeypatch) as factory:
        joined = factory.join(b"id", 0, 2)
        assert set(fake.held) == {SEGMENT, "segment", "handle", OWN, PEER}
        joined.abort()
    assert fake.held == []
