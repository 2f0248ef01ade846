"""Arrays in this process's GPU memory, passed to `hearth.aio`: a thread reads them, and the event loop never blocks.

The GPU is a fake whose memory is host memory.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import hearth
from hearth import aio
from hearth.interop import ipc, ipc_memory
from hearth.interop.cuda_driver import CudaDevice
from tests.support.daemon.harness import DaemonProcess, on_cpu
from tests.support.daemon.loops import run
from tests.support.daemon.pinned_arrays import INLINE, noise

pytestmark = on_cpu

SIZES = [5, INLINE + 1, 4 * INLINE + 7]


class GpuArray:
    """An array of another library, with the CUDA array interface."""

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.host = host
        self.__cuda_array_interface__ = {
            "shape": host.shape,
            "typestr": host.dtype.str,
            "data": (host.ctypes.data, False),
            "version": 3,
            "stream": 1,
        }


class FakeGpu(CudaDevice):
    """A fake GPU that copies host memory, after `may` has been set."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.threads: list[str] = []
        self.error: Exception | None = None

    def copy(self, to: int, since: int, size: int, streams: Sequence[int] | None) -> None:
        self.threads.append(threading.current_thread().name)
        assert streams is not None and list(streams) == [1] and self.may.wait(20)
        if self.error is not None:
            raise self.error
        ctypes.memmove(to, since, size)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    fake = FakeGpu()
    monkeypatch.setattr(ipc_memory, "device_of", lambda properties: fake)
    yield fake
    fake.may.set()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("target", ["unix", "grpc"])
def test_array_of_gpu_memory_is_read_by_a_thread(daemon: DaemonProcess, fake: FakeGpu, size: int, target: str) -> None:
    async def main() -> None:
        async with aio.connect(getattr(daemon, target)) as node:
            gpu = node.device(0)
            await gpu.synchronize()
            host = noise(size, size)
            given = GpuArray(host)
            kept = weakref.ref(given)
            x = gpu.asarray(given)
            del given
            gc.collect()
            y = x.copy()  # ordered after the upload
            turns = 0
            for _ in range(20):
                await asyncio.sleep(0.001)
                turns += 1
            assert turns == 20 and not fake.may.is_set(), "the loop was blocked"
            assert kept() is not None, "the array was freed before it was read"
            fake.may.set()
            np.testing.assert_array_equal(await y.get(), host)
            np.testing.assert_array_equal(await x.get(), host)
            await gpu.synchronize()
            assert len(fake.threads) == 1 and fake.threads[0].startswith("hearth-aio-upload")
            gc.collect()
            assert kept() is None

    run(main)


def test_dtype_is_converted_after_the_read(daemon: DaemonProcess, fake: FakeGpu) -> None:
    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            x = node.device(0).asarray(GpuArray(np.arange(6, dtype=np.int32)), np.float64)
            empty = node.device(0).asarray(GpuArray(np.zeros((0, 3), np.int16)))
            fake.may.set()
            assert x.dtype == np.float64 and (await x.tolist()) == [0, 1, 2, 3, 4, 5]
            assert empty.shape == (0, 3) and len(fake.threads) == 1

    run(main)


@pytest.mark.parametrize("error", [MemoryError("none left"), hearth.TransferError("no copy.", reason="UNSUPPORTED")])
def test_failed_read_is_reported_and_delays_nothing(daemon: DaemonProcess, fake: FakeGpu, error: Exception) -> None:
    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            fake.error = error
            fake.may.set()
            x, other = gpu.asarray(GpuArray(noise(INLINE + 1))), gpu.full(3, 7)
            with pytest.raises(hearth.HearthError, match=r"none left|no copy"):
                while True:
                    await gpu.synchronize()
                    await asyncio.sleep(0.01)
            assert (await x.get()).shape == (INLINE + 1,), "the daemon still waits for the bytes"
            assert (await other.tolist()) == [7, 7, 7]
            await gpu.synchronize()

    run(main)


def test_gpu_that_this_process_does_not_have_is_refused_immediately(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            with pytest.raises(hearth.UnsupportedError, match="is in GPU memory of this process"):
                node.device(0).asarray(GpuArray(np.arange(3)))

    run(main)


def test_another_thread_exports_and_waits(
    daemon: DaemonProcess, fake: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread copies into the exported memory, as in `hearth.Device.asarray`."""
    monkeypatch.setattr(ipc, "device_of", lambda properties: ipc_memory.HostDevice())
    fake.may.set()

    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            await gpu.synchronize()
            x = await asyncio.to_thread(gpu.asarray, GpuArray(np.arange(5)))
            assert (await x.tolist()) == [0, 1, 2, 3, 4]
            assert not fake.threads[0].startswith("hearth")

    run(main)
