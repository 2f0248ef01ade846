"""Downloads over gRPC alone: chunks that the device process passes to the front in shared memory, and that memory after
either side has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

import hearth
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.raw import Raw

MIB = 1 << 20
SLOTS = 16


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(seed).bytes(size), np.uint8)


@pytest.fixture
def alone(daemon: DaemonProcess) -> Iterator[hearth.Device]:
    """A device used over gRPC only, whose process has memory for chunks."""
    with daemon.connect(lanes=False) as node:
        yield in_use(daemon, node.device(0))


def in_use(daemon: DaemonProcess, gpu: hearth.Device) -> hearth.Device:
    """Downloads once, which allocates the memory, and waits for it."""
    gpu.ones(2 * MIB, np.uint8).get()
    wait_until(lambda: daemon.gauge("chunk_slots") == SLOTS, "memory for chunks")
    return gpu


def all_free(daemon: DaemonProcess) -> None:
    wait_until(lambda: daemon.gauge("chunk_slots_in_use") == 0, "slots that are free again")


def kept(pid: int) -> int:
    """Returns the number of mappings of memory for chunks in a process, plus the number of its open files."""
    found = Path(f"/proc/{pid}/maps").read_text().count("hearth-chunk-slots")
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += "hearth-chunk-slots" in str(entry.readlink())
    return found


def test_long_chunks_use_the_chunk_memory(daemon: DaemonProcess, alone: hearth.Device) -> None:
    for size, chunks in ((5 * MIB, 5), (3 * MIB + 5, 3), (2 * MIB + (64 << 10), 3), (MIB + 1, 1)):
        host = noise(size, size)
        x = alone.asarray(host)
        before = daemon.counter("chunks_in_slots", 0)
        np.testing.assert_array_equal(x.get(), host)
        assert daemon.counter("chunks_in_slots", 0) - before == chunks
    all_free(daemon)
    page = daemon.get("/metrics").body
    assert "hearth_chunks_in_slots_total{" in page and "hearth_chunk_slots_in_use{" in page
    assert "chunk_slots" not in daemon.log(), "it could not be handed over, mapped or page-locked"


def test_rows_and_parts(alone: hearth.Device) -> None:
    host = noise(4 * MIB, 1).reshape(2048, 2048)
    x = alone.asarray(host)
    np.testing.assert_array_equal(x[:, :1001].get(), host[:, :1001])
    np.testing.assert_array_equal(x[3:1999].get(), host[3:1999])


def test_single_calls_use_the_chunk_memory(daemon: DaemonProcess, alone: hearth.Device, raw: Raw) -> None:
    host = noise(MIB, 2).tobytes()
    buffer = raw.mint()
    raw.call("Allocate", c.Allocate(buffer=buffer, size=4 * MIB))
    for part in range(4):
        raw.call("Write", c.Write(buffer=buffer, offset=part * MIB, data=host[part:] + host[:part]))
    before = daemon.counter("chunks_in_slots", 0)
    data = raw.read(buffer, 4 * MIB)
    assert data == b"".join(host[part:] + host[:part] for part in range(4))
    assert daemon.counter("chunks_in_slots", 0) - before == 4


def test_more_clients_than_slots(daemon: DaemonProcess, alone: hearth.Device) -> None:
    """More chunks are in flight than there are slots; each client gets its own, in order."""
    clients = 2 * SLOTS
    together = threading.Barrier(clients)

    def client(seed: int) -> bool:
        with daemon.connect(lanes=False) as node:
            host = noise(3 * MIB + 7 * seed, seed)
            x = node.device(0).asarray(host)
            together.wait(60)
            return all(bool((x.get() == host).all()) for _ in range(3))

    before = daemon.counter("chunks_in_slots", 0)
    with ThreadPoolExecutor(clients) as pool:
        assert all(pool.map(client, range(clients)))
    assert daemon.counter("chunks_in_slots", 0) > before
    all_free(daemon)


def test_clients_that_do_not_read_delay_no_other(daemon: DaemonProcess, alone: hearth.Device) -> None:
    """Clients that do not read keep no slot either: their chunks wait in the front."""
    size = 16 * MIB
    with contextlib.ExitStack() as stack:
        calls = []
        for _ in range(3):
            raw = stack.enter_context(Raw(daemon.unix))
            buffer = raw.mint()
            raw.call("Allocate", c.Allocate(buffer=buffer, size=size))
            request = device_pb2.ReadRequest(target=raw.target(), command=c.Read(buffer=buffer, size=size))
            before = daemon.counter("device_to_host_bytes", 0)
            calls.append(raw.device.Read(request))
            wait_until(lambda start=before: daemon.counter("device_to_host_bytes", 0) >= start + 8 * MIB, "chunks")
        all_free(daemon)
        host = noise(8 * MIB, 3)
        x = alone.asarray(host)
        before = daemon.counter("chunks_in_slots", 0)
        np.testing.assert_array_equal(x.get(), host)
        assert daemon.counter("chunks_in_slots", 0) - before == 8
        calls[0].cancel()
        assert sum(len(chunk.data) for chunk in calls[1]) == size
    all_free(daemon)


def test_downloads_that_are_cancelled_leave_their_slots(daemon: DaemonProcess, alone: hearth.Device, raw: Raw) -> None:
    size, buffer = 64 * MIB, raw.mint()
    raw.call("Allocate", c.Allocate(buffer=buffer, size=size))
    for taken in (0, 1, 5, 20):
        request = device_pb2.ReadRequest(target=raw.target(), command=c.Read(buffer=buffer, size=size))
        call = raw.device.Read(request)
        for _ in range(taken):
            next(call)
        call.cancel()
        with pytest.raises(grpc.RpcError):
            list(call)
    with daemon.connect(lanes=False) as node:  # a session that ends during a download
        x = node.device(0).zeros(size, np.uint8)
        with pytest.raises(hearth.TimeoutError):
            x.get(timeout=0.001)
    all_free(daemon)
    host = noise(5 * MIB, 4)
    np.testing.assert_array_equal(alone.asarray(host).get(), host)


def test_chunk_memory_is_freed_when_a_process_is_killed(lossy: DaemonProcess) -> None:
    front, devices = lossy.process.pid, len(lossy.status()["devices"])
    host = noise(32 * MIB, 5)
    with lossy.connect(lanes=False) as node:
        gpu = in_use(lossy, node.device(0))
        before = kept(front)
        for _ in range(3):
            x, generation = gpu.asarray(host), lossy.generation()
            started = threading.Event()

            def download(x: hearth.DeviceArray = x, started: threading.Event = started) -> int:
                """Returns the number of downloads before the device was lost."""
                for count in range(10_000):
                    try:
                        assert (x.get(progress=lambda done, total: started.set()) == host).all()
                    except (hearth.BufferLostError, hearth.DeviceLostError):
                        return count
                raise AssertionError("the device was not lost")

            with ThreadPoolExecutor(1) as pool:
                counted = pool.submit(download)
                assert started.wait(60)
                os.kill(lossy.device_pid(), signal.SIGKILL)
                counted.result(120)
            wait_until(lambda last=generation: lossy.generation() > last, "another process")
            x = in_use(lossy, gpu).asarray(host)  # uses new memory, with the new process
            np.testing.assert_array_equal(x.get(), host)
            all_free(lossy)
            assert kept(front) == before <= 2 * devices
