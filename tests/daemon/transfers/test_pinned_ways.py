"""Paths of copies of shared memory, the time of their completion, and the calls that report failures."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hearth
from hearth.transfer import ring_buffer
from hearth.transport import memory_segments
from hearth.transport.memory_segments import known_segments
from hearth.transport.segment_pool import pool
from hearth_proto.v1 import device_pb2
from tests.support.client.internals import connection_of, memory_of
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import gated
from tests.support.daemon.pinned_arrays import (
    INLINE,
    KIB64,
    moved,
    noise,
    pinned,
    raise_failures,
    ring_of,
    same,
    shared,
    wait_request_pending,
    wait_ring_idle,
)

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")


def test_pinned_memory_is_one_command_and_needs_no_ring(gpu: hearth.Device) -> None:
    host = pinned(noise(20 * INLINE))
    x = gpu.asarray(host[:KIB64])
    y = gpu.empty(20 * INLINE, np.uint8)
    live = shared(gpu)
    assert live is not None
    with moved(gpu, "write") as written:
        x.set(host[100 : 100 + KIB64])
        y.set(host)
    assert written == [KIB64, 20 * INLINE]
    with moved(gpu, "read") as read:
        y.get(out=host)
        y.get(out=host, blocking=False)
        gpu.synchronize()
    assert read == [20 * INLINE] * 2
    assert live.ring.slot_count == 0


def test_ordinary_memory_uses_few_slots(gpu: hearth.Device) -> None:
    host = noise(70 * INLINE + 1)
    with moved(gpu, "write") as written:
        x = gpu.asarray(host)
    assert sum(written) == host.nbytes and max(written) <= ring_buffer.SLOT_BYTES
    same(x.get(), host)
    assert 0 < ring_of(gpu).slot_count <= ring_buffer.SLOTS
    wait_ring_idle(gpu)


def test_small_arrays_and_remote_clients_share_nothing(daemon: DaemonProcess) -> None:
    host = pinned(noise(3 * INLINE))
    for target, options in ((daemon.unix, {"lanes": False}), (daemon.grpc, {})):
        with hearth.connect(target, **options) as node:
            gpu = node.device(0)
            x = gpu.asarray(host)
            out = hearth.zeros_pinned(host.shape, np.uint8)
            same(x.get(out=out, blocking=False), host)  # waits, although `blocking` is False
            host[...] = 0  # the contents have been copied
            same(x.get(), out)
            assert shared(gpu) is None
            host[...] = out
    with daemon.connect() as node:
        gpu = node.device(0)
        gpu.asarray(host[: KIB64 - 1]).get()
        assert not connection_of(gpu).parts
        gpu.asarray(noise(INLINE)).get()  # ordinary arrays up to the inline limit
        assert shared(gpu) is None


def test_daemon_without_shared_memory_is_queried_once(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, asked = connection_of(gpu).transport, []

    def refused(request: object) -> None:
        asked.append(request)
        raise hearth.UnsupportedError("no", reason="UNSUPPORTED")

    monkeypatch.setattr(transport, "open_bulk", refused)
    host = pinned(noise(3 * INLINE))
    for _ in range(5):
        same(gpu.asarray(host).get(), host)
    assert len(asked) == 1 and shared(gpu) is None


def test_failing_connections_are_not_retried_for_ever(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, asked = connection_of(gpu).transport, []

    def nowhere(request: object) -> device_pb2.OpenBulkResponse:
        asked.append(request)
        return device_pb2.OpenBulkResponse(tickets=[b"no"], path="/nowhere", max_segment_bytes=1 << 30)

    monkeypatch.setattr(transport, "open_bulk", nowhere)
    host = noise(3 * INLINE)
    for _ in range(6):
        same(gpu.asarray(host).get(), host)
    assert len(asked) == 3 and shared(gpu) is None


def test_copy_of_ordinary_memory_during_a_capture_is_refused_immediately(gpu: hearth.Device) -> None:
    host = pinned(noise(2 * INLINE))
    x = gpu.asarray(host)
    for copy in (lambda: x.set(host.copy()), lambda: x.get(out=host), lambda: x.set(host, blocking=True)):
        with pytest.raises(hearth.LaunchError), gpu.graph():
            copy()
        raise_failures(gpu)
    same(x.get(), host)


@pytest.mark.parametrize("most", [1 << 20, 20 << 20])
def test_copies_succeed_with_a_small_segment_limit(start_daemon: StartDaemon, most: int) -> None:
    daemon = start_daemon(lanes={"segment_bytes": most})
    with daemon.connect() as node:
        gpu = node.device(0)
        for host in (pinned(noise(30 * INLINE)), noise(30 * INLINE, 1)):
            x = gpu.asarray(host)
            same(x.get(), host)
        small = pinned(noise(INLINE))  # uses a slab of 4 MiB
        same(gpu.asarray(small).get(), small)
        assert daemon.gauge("segment_bytes") <= most


def test_progress(gpu: hearth.Device) -> None:
    for host in (noise(50 * INLINE + 1), pinned(noise(5 * INLINE))):
        reports: list[tuple[int, int]] = []
        report = lambda done, total, to=reports: to.append((done, total))  # noqa: E731
        x = gpu.asarray(host, progress=report)
        assert reports[-1] == (host.nbytes, host.nbytes) and reports == sorted(reports)
        reports.clear()
        x.get(progress=report)
        assert reports[-1] == (host.nbytes, host.nbytes) and reports == sorted(reports)


# ---- order within the stream ----


def test_an_upload_of_pinned_memory_does_not_wait_and_keeps_the_memory(gpu: hearth.Device) -> None:
    values = noise(2 * INLINE)
    x, order = gpu.zeros(2 * INLINE, np.uint8), gpu.zeros(1, np.int32)
    with gated(gpu) as gate:
        gate.hold(order)
        host = pinned(values)
        address = host.ctypes.data
        x.set(host)  # returns although the device is busy
        del host
        gc.collect()
        others = [pinned(np.zeros(2 * INLINE, np.uint8)) for _ in range(3)]
        assert address not in [other.ctypes.data for other in others]
        gate.open()
        same(x.get(), values)
    gpu.synchronize()
    again = hearth.empty_pinned(2 * INLINE, np.uint8)
    wait_until(lambda: known_segments.find(address, 1) is None or pool.cached or again.ctypes.data == address)


def test_an_upload_that_blocks_waits_until_the_memory_was_read(gpu: hearth.Device) -> None:
    host = pinned(noise(2 * INLINE))
    x, order = gpu.zeros(2 * INLINE, np.uint8), gpu.zeros(1, np.int32)
    gpu.asarray(host)  # opens the connection and the ring
    gpu.synchronize()
    with gated(gpu) as gate, ThreadPoolExecutor(1) as threads:
        gate.hold(order)
        setting = threads.submit(x.set, host, blocking=True)
        wait_request_pending(gpu, setting)
        assert not setting.done()
        gate.open()
        setting.result(20)
        host.fill(0)
        assert x.get().any()


def test_an_ordinary_array_is_copied_when_the_upload_returns(gpu: hearth.Device) -> None:
    for size in (
        3 * INLINE,
        2 * ring_buffer.SLOTS * ring_buffer.SLOT_BYTES,
    ):  # the second size exceeds the ring
        host = noise(size).copy()
        x, order = gpu.zeros(size, np.uint8), gpu.zeros(1, np.int32)
        with gated(gpu) as gate:
            gate.hold(order)
            x.set(host)
            host.fill(0)
            gate.open()
            same(x.get(), noise(size))
    wait_ring_idle(gpu)


def test_a_download_that_does_not_block_is_complete_after_a_synchronize(gpu: hearth.Device) -> None:
    values = noise(2 * INLINE)
    x, order = gpu.asarray(values), gpu.zeros(1, np.int32)
    out = hearth.zeros_pinned(values.shape, np.uint8)
    with gated(gpu) as gate:
        gate.hold(order)
        assert x.get(out=out, blocking=False) is out
        assert not out.any()
        gate.open()
        gpu.synchronize()
        same(out, values)


def test_failed_copy_is_raised_at_the_next_synchronize(gpu: hearth.Device) -> None:
    host = pinned(noise(2 * INLINE))
    x = gpu.asarray(host)
    other = gpu.asarray(host)
    gpu.synchronize()
    memory_of(x).handle, real = 1 << 40, memory_of(x).handle  # a handle that does not exist
    x.set(host)
    with pytest.raises(hearth.InvalidHandleError):
        raise_failures(gpu)
    gpu.synchronize()
    x.get(out=host, blocking=False)
    with pytest.raises(hearth.InvalidHandleError):
        raise_failures(gpu)
    with pytest.raises(hearth.InvalidHandleError):
        x.set(host, blocking=True)
    with pytest.raises(hearth.InvalidHandleError):
        x.get(out=host)
    with pytest.raises(hearth.InvalidHandleError):
        x.get()
    with pytest.raises(hearth.InvalidHandleError):
        x.set(np.zeros(60 * INLINE, np.uint8)[: x.nbytes])
        raise_failures(gpu)
    memory_of(x).handle = real
    gpu.synchronize()
    same(other.get(), host)
    wait_ring_idle(gpu)


def test_earlier_failure_is_raised_by_a_read(gpu: hearth.Device) -> None:
    host = pinned(noise(2 * INLINE))
    x = gpu.asarray(host)
    for get in (lambda: x.get(out=host), x.get):
        gpu.empty(1 << 50, np.uint8)  # more than any device has
        with pytest.raises(hearth.OutOfMemoryError):
            get()
        same(get(), host)


def test_upload_of_more_than_the_address_space_raises_memory_error(gpu: hearth.Device) -> None:
    # more than the address space, so that no host can overcommit it
    host = np.broadcast_to(np.zeros(1, np.uint8), (1 << 62,))
    with pytest.raises(MemoryError):
        gpu.asarray(host)
    gpu.synchronize()
