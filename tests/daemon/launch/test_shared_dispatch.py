"""Dispatches whose large inputs and outputs are transferred by shared memory: exact results, and interruptions at every
stage."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hearth
from hearth import In, InOut, Out
from hearth.kernels.base_pending_dispatch import Job
from hearth.transfer import registered
from hearth.transfer.shared_memory import Shared
from hearth.transport import memory_segments
from hearth.transport.segment_pool import pool, size_class
from hearth_proto.frames import Kind
from tests.support.client.internals import connection_of
from tests.support.daemon.dispatches import KERNELS, blocks, carried_jobs
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import gated, saxpy_works
from tests.support.daemon.pinned_arrays import INLINE, noise, pinned, same, shared
from tests.support.daemon.shared_dispatches import MAKES, Make, invert, inverting, little, old, refused, ways, went

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """Returns a list that records the directions of the transfers that the daemon agrees to make from or to shared
    memory."""
    found: list[Kind] = []
    place = Shared.place

    def placing(shared: Shared, kind: Kind, *more: Any) -> bool:
        agreed = place(shared, kind, *more)
        if agreed:
            found.append(kind)
        return agreed

    monkeypatch.setattr(Shared, "place", placing)
    return found


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Returns a list that records the dispatches whose bytes a thread transfers, in order."""
    return carried_jobs(monkeypatch)


@MAKES
@pytest.mark.parametrize("size", [INLINE - 1, INLINE, INLINE + 1, 4 * INLINE + 7, 33 * INLINE + 13])
def test_arrays_of_every_size_use_the_expected_path(
    daemon: DaemonProcess, gpu: hearth.Device, size: int, make: Make
) -> None:
    kernel, x, out = invert(gpu), make(noise(size, size)), make(np.zeros(size, np.uint8))
    gpu.synchronize()
    before, large = ways(daemon), size if size > INLINE else 0
    (got,) = gpu.dispatch(kernel, *inverting(x, size), out=[out])
    assert got is out
    same(out, ~x)
    (got,) = gpu.dispatch_async(kernel, *inverting(x, size)).result()
    same(got, ~x)
    went(daemon, before, 2 * large, 2 * large, 0, 0)
    assert gpu.memory_usage().bytes_in_use == 0


def test_pinned_arrays_are_not_copied(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x, out = invert(gpu), pinned(noise(4 * INLINE)), hearth.zeros_pinned(4 * INLINE, np.uint8)
    copies: list[int] = []
    copy = registered.copy

    def counted(into: memoryview, since: memoryview) -> None:
        copies.extend([len(into)] * (memory_segments.address_of(into) != memory_segments.address_of(since)))
        copy(into, since)

    monkeypatch.setattr(registered, "copy", counted)
    gpu.dispatch(kernel, *inverting(x, x.size), out=[out])
    assert not copies
    same(out, ~x)
    pending = gpu.dispatch_async(kernel, *inverting(x, x.size), out=[out], copy=False)
    pending.result()
    assert not copies
    gpu.dispatch_async(kernel, *inverting(x, x.size), out=[out]).result()
    assert copies == [x.nbytes]  # the default is `copy=True`: the input may change


@MAKES
def test_views_ranges_and_concurrent_dispatches(gpu: hearth.Device, make: Make) -> None:
    n = 1 << 20
    axpy = gpu.RawModule(code=KERNELS).get_function("axpy")
    x = make(np.arange(3 * n, dtype=np.float32))
    y = make(np.ones((n, 2), np.float32))
    scattered, part = make(np.zeros((n, 2), np.float32)), make(np.zeros(2 * n, np.float32))
    args = [2.0, In(x[n : 2 * n]), In(y[:, 1]), Out(n, np.float32), np.int32(n)]
    gpu.dispatch(axpy, blocks(n, 256), 256, args, out=[scattered[:, 0]])
    same(scattered[:, 0], 2 * x[n : 2 * n] + 1)
    assert not scattered[:, 1].any()
    args[3] = InOut(np.zeros(n, np.float32), range=slice(5, n - 5))
    gpu.dispatch(axpy, blocks(n, 256), 256, args, out=[part[7 : n - 3]])
    same(part[7 : n - 3], (2 * x[n : 2 * n] + 1)[5 : n - 5])
    assert not part[:7].any() and not part[n - 3 :].any()


def test_inputs_may_change_after_submission(gpu: hearth.Device) -> None:
    kernel, x = invert(gpu), pinned(noise(3 * INLINE))
    kept = x.copy()
    with gated(gpu) as gate:
        gate.hold()
        pending = gpu.dispatch_async(kernel, *inverting(x, x.size), timed=True)
        x[:] = 0
        gate.open()
        same(pending.result(30)[0], ~kept)
    assert (pending.timing.upload_ns or 0) > 0 and (pending.timing.download_ns or 0) > 0


@pytest.mark.parametrize("without", [refused, old, little])
def test_fallback_without_shared_memory(
    daemon: DaemonProcess, gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch, without: Callable[..., None]
) -> None:
    without(gpu, monkeypatch)
    x = noise(3 * INLINE)
    before = ways(daemon)
    for _ in range(2):
        same(gpu.dispatch(invert(gpu), *inverting(x, x.size))[0], ~x)
    went(daemon, before, 0, 0, 2 * x.nbytes, 2 * x.nbytes)


def test_daemon_with_little_shared_memory(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(lanes={"segment_bytes": 5 * INLINE})
    with daemon.connect() as node:
        gpu = node.device(0)
        x = noise(4 * INLINE)
        for _ in range(3):  # only one of the two finds room
            same(gpu.dispatch(invert(gpu), *inverting(x, x.size))[0], ~x)
        assert daemon.gauge("segment_bytes") <= 5 * INLINE


def test_refused_dispatch_leaves_no_resources(gpu: hearth.Device) -> None:
    x, out = noise(3 * INLINE), pinned(noise(3 * INLINE, 1))
    before = out.copy()
    for _ in range(3):
        with pytest.raises(hearth.LaunchError, match="4096"):
            gpu.dispatch(invert(gpu), 1, 4096, [In(x), Out(x.size, np.uint8), x.size], out=[out])
        same(out, before)
    gpu.synchronize()
    assert gpu.memory_usage().bytes_in_use == 0
    same(gpu.dispatch(invert(gpu), *inverting(x, x.size), out=[out])[0], ~x)


def test_cancelled_dispatch_keeps_its_memory_until_the_answer(
    gpu: hearth.Device, placed: list[Kind], jobs: list[Job]
) -> None:
    kernel, x = invert(gpu), noise(5 * INLINE)
    gpu.dispatch(kernel, *inverting(x, x.size))
    placed.clear()
    with gated(gpu) as gate:
        gate.hold()
        gpu.dispatch_async(kernel, *inverting(x, x.size))
        wait_until(lambda: Kind.DOWNLOAD in placed and jobs, "its place")
        jobs[-1].cancel()
        others = [hearth.zeros_pinned(x.size, np.uint8) for _ in range(6)]
        gate.open()
    gpu.synchronize()
    assert not any(other.any() for other in others)
    same(gpu.dispatch(kernel, *inverting(x, x.size))[0], ~x)
    assert gpu.memory_usage().bytes_in_use == 0


def test_ctrl_c_during_a_dispatch(gpu: hearth.Device) -> None:
    kernel, x = invert(gpu), noise(20 * INLINE)
    gpu.dispatch(kernel, *inverting(x, x.size))
    main = threading.main_thread().ident
    assert main is not None
    with gated(gpu) as gate:
        gate.hold()
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            gpu.dispatch(kernel, *inverting(x, x.size))
        timer.join()
        gate.open()
    gpu.synchronize()
    same(gpu.dispatch(kernel, *inverting(x, x.size))[0], ~x)
    assert gpu.memory_usage().bytes_in_use == 0


def test_lost_connection_does_not_lose_placed_bytes(gpu: hearth.Device, placed: list[Kind]) -> None:
    kernel, x = invert(gpu), noise(5 * INLINE)
    gpu.dispatch(kernel, *inverting(x, x.size))
    placed.clear()
    live = shared(gpu)
    assert live is not None
    with gated(gpu) as gate:
        gate.hold()
        pending = gpu.dispatch_async(kernel, *inverting(x, x.size))
        wait_until(lambda: Kind.DOWNLOAD in placed, "its place")
        live.connection.close()
        gate.open()
        same(pending.result(30)[0], ~x)
    same(gpu.dispatch(kernel, *inverting(x, x.size))[0], ~x)
    assert shared(gpu) is not live


@pytest.mark.parametrize("kind", [5, 6], ids=["upload", "download"])
def test_connection_lost_before_the_place_is_acknowledged(
    gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """The client does not know whether the daemon has received the place of the bytes, so it sends them by another
    path."""
    kernel, x = invert(gpu), noise(5 * INLINE)
    gpu.dispatch(kernel, *inverting(x, x.size))
    live = shared(gpu)
    assert live is not None
    connection, asked = live.connection, list[int]()
    place, process_answers = connection.place, connection.process_answers

    def placing(what: Kind, *more: Any) -> bool:
        asked[:] = [what]
        return place(what, *more)

    def cut(deadline: float) -> None:
        if asked == [kind]:  # the message has been sent, and its answer not received
            connection.close()
        process_answers(deadline)

    monkeypatch.setattr(connection, "place", placing)
    monkeypatch.setattr(connection, "process_answers", cut)
    with gated(gpu) as gate:
        gate.hold()
        pending = gpu.dispatch_async(kernel, *inverting(x, x.size))
        wait_until(lambda: not live.alive, "the cut")
        gate.open()
        same(pending.result(30)[0], ~x)
    same(gpu.dispatch(kernel, *inverting(x, x.size))[0], ~x)


@MAKES
def test_device_lost_during_a_dispatch(lossy: DaemonProcess, placed: list[Kind], make: Make) -> None:
    first = lossy.generation()
    with lossy.connect() as node:
        gpu = node.device(0)
        x, out = make(noise(20 * INLINE)), make(np.zeros(20 * INLINE, np.uint8))
        gpu.dispatch(invert(gpu), *inverting(x, x.size), out=[out])
        placed.clear()
        with gated(gpu) as gate:
            gate.hold()
            pending = gpu.dispatch_async(invert(gpu), *inverting(x, x.size), out=[out])
            wait_until(lambda: Kind.DOWNLOAD in placed, "its place")
            os.kill(lossy.device_pid(), signal.SIGKILL)
            with pytest.raises(hearth.DeviceLostError):
                pending.result(60)
        with contextlib.suppress(hearth.DeviceLostError):
            gpu.synchronize()
        same(gpu.dispatch(invert(gpu), *inverting(x, x.size), out=[out])[0], ~x)
        assert shared(gpu) is not None and connection_of(gpu).generation == first + 1


def test_a_forked_child_is_refused_and_its_parent_unharmed(gpu: hearth.Device) -> None:
    kernel, x = invert(gpu), noise(3 * INLINE)
    gpu.dispatch(kernel, *inverting(x, x.size))
    with gated(gpu) as gate:
        gate.hold()
        pending = gpu.dispatch_async(kernel, *inverting(x, x.size))
        pid = os.fork()
        if not pid:
            code = 1
            with contextlib.suppress(BaseException):
                try:
                    gpu.dispatch(kernel, *inverting(x, x.size))
                except hearth.ClosedError:
                    code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        gate.open()
        same(pending.result(30)[0], ~x)
    same(gpu.dispatch(kernel, *inverting(x, x.size))[0], ~x)


@pytest.mark.parametrize("way", ["up", "down", "both"])
def test_closed_sessions_leave_no_shared_memory(daemon: DaemonProcess, way: str) -> None:
    """Memory is reused, and is released with the node, without waiting for the garbage collector."""
    with daemon.connect() as node:
        gpu, x = node.device(0), noise(5 * INLINE)
        kernel = invert(gpu)
        given = In(x if way != "down" else x[:1])
        out = Out(x.size, np.uint8, range=slice(0, 1) if way == "up" else None)
        pool.trim()
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                gpu.dispatch(kernel, 1, 1, [given, out, 1])
            held = daemon.gauge("segment_bytes")
            for _ in range(10):
                gpu.dispatch(kernel, 1, 1, [given, out, 1])
                gpu.dispatch_async(kernel, 1, 1, [given, out, 1]).result()
            # 20 dispatches: on a busy machine some begin before the memory of those before them is free again
            assert x.nbytes <= held <= daemon.gauge("segment_bytes") <= held + 8 * size_class(x.nbytes)
        finally:
            gc.enable()
        pool.trim()
        wait_until(lambda: daemon.gauge("segment_bytes") == 0, "a release")
        gpu.dispatch(kernel, *inverting(x, x.size))
        saxpy_works(gpu)
    wait_until(lambda: daemon.gauge("segment_bytes") == 0, "the end of shared memory")
