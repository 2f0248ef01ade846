"""Repeated copies of the same arrays: changes since the previous copy are detected each time."""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import hearth
from hearth import telemetry
from hearth.arrays import host_copy
from hearth.transfer import shared as shared_copies
from hearth.transport import memory_segments
from tests.support.client.internals import connection_of, memory_of
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import gated
from tests.support.daemon.pinned_arrays import INLINE, KIB64, noise, pinned, raise_failures, same, shared

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")
Found = Callable[[], int]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[Found]:
    """Yields a function that returns the number of copies that were prepared without the cache since its last call."""
    calls: list[object] = []
    whole = shared_copies.move
    counted = lambda *args, **keywords: (calls.append(0), whole(*args, **keywords))[1]  # noqa: E731
    monkeypatch.setattr(shared_copies, "move", counted)
    monkeypatch.setattr(telemetry, "is_enabled", lambda: False)  # spans, which other tests enable

    def asked() -> int:
        count = len(calls)
        calls.clear()
        return count

    yield asked


@pytest.mark.parametrize("size", [KIB64, 3 * INLINE])
def test_copy_is_prepared_only_once(gpu: hearth.Device, found: Found, size: int) -> None:
    hosts = [pinned(noise(size, seed)) for seed in range(3)]
    x, out = gpu.empty(size, np.uint8), hearth.zeros_pinned(size, np.uint8)
    for turn in range(4):
        for host in hosts:
            host[turn] ^= 255
            x.set(host)
            x.get(out=out)
            same(out, host)
            x.set(host[::-1].copy())
            x.set(host, blocking=True)
            out.fill(0)
            assert x.get(out=out, blocking=False) is out
            gpu.synchronize()
            same(out, host)
    turns = 4 * 3 if size > INLINE else 0  # uploads of ordinary arrays, each of a new array
    assert found() == 3 + 1 + turns + (4 * 3 if not turns else 0)
    assert not connection_of(gpu).late_errors


def test_array_with_changed_shape(gpu: hearth.Device, found: Found) -> None:
    values = noise(2 * INLINE)
    host, x = pinned(values), gpu.empty(2 * INLINE, np.uint8)
    for _ in range(2):
        x.set(host)
        x.get(out=host)
    assert found() == 2
    host.shape = (2, INLINE)
    for copy in (x.set, lambda a: x.get(out=a)):
        with pytest.raises(hearth.ArgumentError):
            copy(host)
    host.shape = (2 * INLINE,)
    host.dtype = np.int8  # type: ignore[misc]
    for copy in (x.set, lambda a: x.get(out=a)):
        with pytest.raises((hearth.ArgumentError, hearth.DtypeError)):
            copy(host)
    host.dtype = np.uint8  # type: ignore[misc]
    host.flags.writeable = False
    x.set(host)
    with pytest.raises(hearth.ArgumentError, match="read-only"):
        x.get(out=host)
    host.flags.writeable = True
    same(x.get(out=host), values)


def test_another_array_with_the_same_id(gpu: hearth.Device) -> None:
    """Python reuses the id of an object that has been deleted."""
    x, out = gpu.empty(INLINE, np.uint8), hearth.zeros_pinned(INLINE, np.uint8)
    kept = [pinned(noise(INLINE, 99))]
    for seed in range(40):
        host = pinned(noise(INLINE, seed))
        x.set(host)
        x.get(out=out)
        same(out, host)
        kept.append(host) if seed % 3 == 0 else None
        del host
        gc.collect()


def test_a_part_and_a_view_and_another_order(gpu: hearth.Device) -> None:
    whole = pinned(noise(4 * INLINE).reshape(2048, 2048))
    x, y = gpu.empty((2048, 2048), np.uint8), gpu.empty((1024, 2048), np.uint8)
    for _ in range(3):
        x.set(whole)
        y.set(whole[1024:])
        same(y.get(), whole[1024:])
        x.set(whole.T)
        same(x.get(), whole.T)
        x[1024:].set(whole[:1024])
        same(x.get()[1024:], whole[:1024])


def test_repeated_copies_keep_the_order_of_the_stream(gpu: hearth.Device) -> None:
    values = noise(INLINE)
    host, x, order = pinned(values), gpu.zeros(INLINE, np.uint8), gpu.zeros(1, np.int32)
    out = hearth.zeros_pinned(INLINE, np.uint8)
    x.set(host)
    x.get(out=out)
    stream = gpu.stream()
    for given in (None, stream):
        with gated(gpu) as gate:
            with stream:
                gate.hold(order)
                x.set(host, stream=given)
            gpu.default_stream.synchronize()
            host[...] = values[::-1]  # which a program should not do
            gate.open()
            stream.synchronize()
        same(x.get(out=out), values[::-1])
        host[...] = values
    del stream
    with gated(gpu) as gate:
        for index in range(6):
            stream = gpu.stream()  # replaces the previous stream, perhaps at the same address
            if index % 2:
                gate.hold(order, stream=stream)
            x.set(host, stream=stream)
            assert x.get(out=out, stream=stream, blocking=False) is out
            stream = None
        gate.open()
        gpu.synchronize()
    same(out, values)
    with gpu.graph() as graph:  # a graph records the copy, although the same one was repeated outside
        x.set(host)
    host[:] = 7
    graph.launch()
    gpu.synchronize()
    assert (x.get() == 7).all()
    with pytest.raises(hearth.LaunchError), gpu.graph():
        x.get(out=out)  # blocks
    raise_failures(gpu)


def test_an_array_that_was_freed(gpu: hearth.Device) -> None:
    host, x = pinned(noise(INLINE)), gpu.empty(INLINE, np.uint8)
    x.set(host)
    x.get(out=host)
    x.free()
    for copy in (lambda: x.set(host), lambda: x.get(out=host)):
        with pytest.raises(hearth.InvalidHandleError):
            copy()
    gpu.synchronize()


def test_memory_that_is_shared_again(gpu: hearth.Device, found: Found) -> None:
    """A loss is detected before the next copy, in either direction."""
    host, x = pinned(noise(3 * INLINE)), gpu.empty(3 * INLINE, np.uint8)
    for turn in range(4):
        x.set(host)
        x.get(out=host)
        gpu.synchronize()
        live = shared(gpu)
        assert live is not None
        live.connection.close()
        if turn % 2:
            x.get(out=host)
        else:
            x.set(host)
        assert found() == (3 if turn == 0 else 2)
        same(x.get(), host)
        assert shared(gpu) is not live
        found()


@pytest.mark.parametrize("lasts", [0.0, float("inf")], ids=["looks", "has looked"])
def test_connection_that_ended_unnoticed(gpu: hearth.Device, daemon: DaemonProcess, lasts: float) -> None:
    """An awaited copy arrives by another path; an unawaited one is executed, or reported as lost, exactly once."""
    host, x, out = pinned(noise(3 * INLINE)), gpu.empty(3 * INLINE, np.uint8), hearth.zeros_pinned(3 * INLINE, np.uint8)
    ways = {
        "set": lambda: x.set(host),
        "set and wait": lambda: x.set(host, blocking=True),
        "get": lambda: x.get(out=out),
    }
    for turn, (name, copy) in enumerate(ways.items()):
        x.set(host)
        x.get(out=out)
        gpu.synchronize()
        live, before = shared(gpu), daemon.gauge("segments")
        assert live is not None
        live.connection.poll_valid_s = lasts
        with socket.socket(fileno=os.dup(live.connection.fileno())) as beside:
            beside.shutdown(socket.SHUT_RDWR)  # without the client's knowledge
        wait_until(lambda before=before: daemon.gauge("segments") < before, "the release of shared memory")
        if name != "get":
            host[turn] ^= 255
        out.fill(0)
        copy()
        if lasts and name == "set":
            with pytest.raises(hearth.TransferError, match="was lost with the connection"):
                raise_failures(gpu)
            x.set(host)
        raise_failures(gpu)
        if name == "get":
            same(out, host)
        same(x.get(), host)
        assert shared(gpu) is not live


def test_earlier_failure_is_raised(gpu: hearth.Device) -> None:
    host, x, y = pinned(noise(INLINE)), gpu.empty(INLINE, np.uint8), gpu.empty(INLINE, np.uint8)
    x.set(host)
    x.get(out=host)
    memory_of(y).handle, real = 1 << 40, memory_of(y).handle  # a handle that does not exist
    y.set(host)
    with pytest.raises(hearth.InvalidHandleError):
        for _ in range(3):
            x.get(out=host)
    raise_failures(gpu)
    same(x.get(), host)
    memory_of(y).handle = real


def test_a_device_that_was_lost(lossy: DaemonProcess) -> None:
    host, values = pinned(noise(3 * INLINE)), noise(3 * INLINE, 1)
    with lossy.connect() as node:
        gpu = node.device(0)
        x, kept = gpu.empty(3 * INLINE, np.uint8), gpu.durable(gpu.asarray(host))
        for array in (x, kept):
            array.set(host)
            array.get(out=host)
        kept.set(pinned(values))
        kept.checkpoint()
        gpu.synchronize()
        os.kill(lossy.device_pid(), signal.SIGKILL)
        with pytest.raises(hearth.DeviceLostError):
            gpu.synchronize()
        for copy in (lambda: x.set(host), lambda: x.get(out=host)):
            with pytest.raises(hearth.BufferLostError):
                copy()
        kept.get(out=host)
        same(host, values)
        host[...] = 3
        kept.set(host)
        assert (kept.get() == 3).all()
    for copy in (lambda: kept.set(host), lambda: kept.get(out=host)):
        with pytest.raises(hearth.ClosedError):
            copy()


def test_spans_of_copies_that_are_made_again(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each upload has its own span, if spans are enabled."""
    host, x = pinned(noise(3 * INLINE)), gpu.empty(3 * INLINE, np.uint8)
    written: list[object] = []
    whole = host_copy.write
    monkeypatch.setattr(host_copy, "write", lambda *args: (written.append(0), whole(*args))[1])
    for made, count in ((False, 1), (True, 4), (False, 4)):
        monkeypatch.setattr(telemetry, "is_enabled", lambda made=made: made)
        for _ in range(3):
            x.set(host)
        assert len(written) == count
    gpu.synchronize()
