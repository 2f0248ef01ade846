"""Copies of shared memory whose client, connection, device or daemon ends in between: remaining data is correct, or an
error is raised; nothing hangs."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hearth
from hearth.arrays import host_copy
from hearth.transfer import router
from hearth.transfer.grpc_stream import cancel_transfer
from hearth.transfer.shared_memory import Shared
from hearth.transport import memory_segments
from hearth.transport.segment_pool import pool
from tests.support.client.internals import connection_of
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, wait_until
from tests.support.daemon.kernels import gated, saxpy_works
from tests.support.daemon.lane_cuts import cut
from tests.support.daemon.pinned_arrays import (
    INLINE,
    noise,
    pinned,
    raise_failures,
    same,
    shared,
    wait_request_pending,
    wait_ring_idle,
)

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")


@pytest.mark.parametrize("make", [pinned, np.copy], ids=["pinned", "ordinary"])
def test_timeout_leaves_arrays_and_session_usable(gpu: hearth.Device, make: Callable[..., np.ndarray]) -> None:
    values = noise(20 * INLINE)
    x, order = gpu.asarray(values), gpu.zeros(1, np.int32)
    gpu.synchronize()
    out = make(np.zeros_like(values))
    address = out.ctypes.data
    with gated(gpu) as gate:
        gate.hold(order)
        with pytest.raises(hearth.TimeoutError):
            x.get(out=out, timeout=0.2)
        del out
        gc.collect()
        fresh = hearth.zeros_pinned(values.shape, np.uint8)
        assert fresh.ctypes.data != address  # the device may still write to the old memory
        gate.open()
        gpu.synchronize()
    assert not fresh.any()
    same(x.get(), values)
    x.get(out=fresh)
    same(fresh, values)


@pytest.mark.parametrize("make", [pinned, np.copy], ids=["pinned", "ordinary"])
@pytest.mark.parametrize("way", ["up", "down"])
def test_ctrl_c_during_a_copy(gpu: hearth.Device, way: str, make: Callable[..., np.ndarray]) -> None:
    values = noise(80 * INLINE)
    x, order = gpu.asarray(values), gpu.zeros(1, np.int32)
    gpu.synchronize()
    host = make(values)
    main = threading.main_thread().ident
    assert main is not None
    with gated(gpu) as gate:
        gate.hold(order)
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            if way == "up":
                x.set(host, blocking=True)
                x.get()  # after an upload that was accepted completely
            else:
                x.get(out=host)
        timer.join()
        gate.open()
        gpu.synchronize()
    same(x.get(), values)
    x.set(values[::-1])
    same(x.get(), values[::-1])
    wait_ring_idle(gpu)


def test_lost_connection_is_reopened_and_memory_is_shared_again(gpu: hearth.Device) -> None:
    host, values = pinned(noise(5 * INLINE)), noise(50 * INLINE, 1)
    for _ in range(5):
        x, y = gpu.asarray(host), gpu.asarray(values)
        same(x.get(), host)
        gpu.synchronize()
        live = shared(gpu)
        assert live is not None and live.alive
        live.connection.close()
        x.set(host[::-1].copy())
        same(x.get(), host[::-1])
        same(y.get(), values)
        assert shared(gpu) is not live


@pytest.mark.parametrize("make", [pinned, np.copy], ids=["pinned", "ordinary"])
def test_connection_lost_during_a_copy(gpu: hearth.Device, make: Callable[..., np.ndarray]) -> None:
    """A read returns all data, if necessary by another path, and raises no error. An accepted write may be lost, which
    is reported once. Nothing hangs, and no data is mixed up."""
    values = noise(40 * INLINE)
    x, order = gpu.asarray(values), gpu.zeros(1, np.int32)
    gpu.synchronize()
    host = make(values[::-1])
    for way in ("down", "up"):
        live = shared(gpu)
        assert live is not None
        errors: list[hearth.HearthError] = []
        with gated(gpu) as gate, ThreadPoolExecutor(1) as threads:
            gate.hold(order)
            moving = threads.submit(x.get, make(values)) if way == "down" else threads.submit(x.set, host)
            wait_request_pending(gpu, moving)
            live.connection.close()
            for step in (gate.open, lambda moving=moving: moving.result(60), gpu.synchronize, gpu.synchronize):
                try:
                    step()
                except hearth.HearthError as error:
                    errors.append(error)
        if way == "down":
            assert not errors
            same(moving.result(), values)
            x.set(values)  # the memory is shared again
            gpu.synchronize()
        else:
            assert [error.reason for error in errors] in ([], ["TRANSFER_ABORTED"])
    x.set(host)
    same(x.get(), host)


def make_slots(gpu: hearth.Device, x: hearth.DeviceArray, values: np.ndarray) -> None:
    """Grows the ring to the number of slots that the array uses together, independent of how early each slot is
    returned."""
    order = gpu.zeros(1, np.int32)
    with gated(gpu) as gate:
        gate.hold(order)
        x.set(values)
        gate.open()
    wait_ring_idle(gpu)


@pytest.mark.parametrize("size", [1000, 5 * INLINE], ids=["inline", "shared"])
def test_read_after_a_lost_copy(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The read must not return the old bytes as if the copy had succeeded: the copy fails while the read waits."""
    values = noise(5 * INLINE)
    x, y = gpu.asarray(values), gpu.asarray(values)
    make_slots(gpu, x, values)
    live, connection, attachment = shared(gpu), connection_of(gpu), connection_of(gpu).attachment()
    assert live is not None
    with ThreadPoolExecutor(1) as threads:
        number = connection.mint()
        reply = router.begin_upload(attachment, host_copy.region_of(y, attachment, None), number, y.nbytes)
        live.connection.close()
        gpu.stream().synchronize()  # the daemon has noticed before the client
        with monkeypatch.context() as patched:
            patched.setattr(Shared, "alive", True)
            x.set(values[::-1])  # queued after the upload whose bytes never arrive
        before = attachment.session.outstanding
        moving = threads.submit(x[:size].get)
        wait_until(lambda: attachment.session.outstanding > before, "the read")
        cancel_transfer(connection, number)
        with pytest.raises(hearth.TransferError):
            moving.result(60)
    reply.abandon()
    gpu.synchronize()
    same(x.get(), values)


@pytest.mark.parametrize("own_stream", [True, False], ids=["its stream", "its thread"])
def test_lost_copy_is_reported_where_it_was_requested(
    gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch, own_stream: bool
) -> None:
    """Two threads have separate streams: the thread that requested the copy gets the error, whichever thread waits
    first."""
    values = noise(5 * INLINE)
    x, y, z = (gpu.asarray(values) for _ in range(3))
    mine, theirs = gpu.stream(), gpu.stream()
    make_slots(gpu, x, values)
    live, connection, attachment = shared(gpu), connection_of(gpu), connection_of(gpu).attachment()
    assert live is not None
    with ThreadPoolExecutor(1) as threads:
        number = connection.mint()
        reply = router.begin_upload(attachment, host_copy.region_of(z, attachment, mine), number, z.nbytes)
        live.connection.close()
        gpu.stream().synchronize()  # the daemon has noticed
        with monkeypatch.context() as patched:
            patched.setattr(Shared, "alive", True)
            threads.submit(x.set, values[::-1], mine).result(60)  # after the upload whose bytes never arrive
        cancel_transfer(connection, number)
        reply.abandon()
        wait_until(lambda: connection.late_errors, "the loss")
        same(y.get(stream=theirs), values)
        theirs.synchronize()
        gpu.flush(theirs)
        with pytest.raises(hearth.TransferError, match="was lost with the connection"):
            threads.submit(mine.synchronize if own_stream else x.get).result(60)
    gpu.synchronize()  # no further error is reported
    same(x.get(), values)


def test_lane_breaks_during_a_copy(gpu: hearth.Device) -> None:
    values, host = noise(80 * INLINE), pinned(noise(10 * INLINE, 1))
    x, y = gpu.asarray(values), gpu.asarray(host)
    with ThreadPoolExecutor(2) as threads:
        for _ in range(3):
            back, forth = threads.submit(x.get), threads.submit(y.set, host)
            cut(gpu)
            same(back.result(60), values)
            forth.result(60)
            gpu.synchronize()
            same(y.get(), host)


@pytest.mark.parametrize("make", [pinned, np.copy], ids=["pinned", "ordinary"])
@pytest.mark.parametrize("way", ["up", "down"])
def test_device_lost_during_a_copy(lossy: DaemonProcess, way: str, make: Callable[..., np.ndarray]) -> None:
    values = noise(40 * INLINE)
    host, out, first = make(values), make(np.zeros_like(values)), lossy.generation()
    with lossy.connect() as node:
        gpu = node.device(0)
        x, order = gpu.asarray(host), gpu.zeros(1, np.int32)
        x.get(out=out)
        with ThreadPoolExecutor(1) as threads, gated(gpu) as gate:
            gate.hold(order)
            moving = threads.submit(x.set, host) if way == "up" else threads.submit(x.get, out)
            wait_request_pending(gpu, moving)
            os.kill(lossy.device_pid(), signal.SIGKILL)
            with pytest.raises(hearth.HearthError) as raised:
                moving.result(60)
                gpu.synchronize()
            assert raised.value.reason in ("DEVICE_LOST", "BUFFER_LOST", "TRANSFER_ABORTED")
        with contextlib.suppress(hearth.DeviceLostError):
            gpu.synchronize()
        x = gpu.asarray(host)  # shared again with the new process
        x.get(out=out)
        same(out, values)
        assert shared(gpu) is not None and connection_of(gpu).generation == first + 1
        raise_failures(gpu)  # no further error


@pytest.mark.parametrize("make", [pinned, np.copy], ids=["pinned", "ordinary"])
def test_daemon_killed_during_a_copy(start_daemon: StartDaemon, make: Callable[..., np.ndarray]) -> None:
    daemon = start_daemon()
    values = noise(40 * INLINE)
    node = daemon.connect(timeout=2.0)
    gpu = node.device(0)
    x, order = gpu.asarray(values), gpu.zeros(1, np.int32)
    gpu.synchronize()
    with contextlib.suppress(hearth.HearthError), gated(gpu) as gate, ThreadPoolExecutor(2) as threads:
        gate.hold(order)
        down, up = threads.submit(x.get, make(values)), threads.submit(x.set, make(values), blocking=True)
        wait_request_pending(gpu, down)
        daemon.process.kill()
        daemon.process.wait()
        for moving in (down, up):
            with pytest.raises(hearth.HearthError):
                moving.result(60)
                x.get()
    with contextlib.suppress(hearth.HearthError):
        node.close()


def test_killed_client_leaves_no_shared_memory(brief: DaemonProcess) -> None:
    program = (
        "import sys, time, numpy as np, hearth\n"
        "gpu = hearth.connect(sys.argv[1]).device(0)\n"
        "host = hearth.empty_pinned(20 << 20, np.uint8)\n"
        "x, y = gpu.asarray(host), gpu.asarray(np.zeros(20 << 20, np.uint8))\n"
        "gpu.synchronize()\n"
        "print('ready', flush=True)\n"
        "while True: x.get(out=host); y.get()\n"
    )
    command = [sys.executable, "-c", program, brief.unix]
    env = environment(PYTHONPATH=os.pathsep.join(sys.path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as client:
        assert client.stdout is not None and client.stdout.readline() == "ready\n"
        wait_until(lambda: brief.gauge("segment_bytes") > 20 << 20, "shared memory")
        client.kill()
    wait_until(lambda: brief.gauge("segment_bytes") == 0, "the end of shared memory")
    with brief.connect() as node:
        saxpy_works(node.device(0))


def test_memory_that_no_array_has_is_released(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    host = hearth.empty_pinned(100 * INLINE, np.uint8)
    gpu.asarray(host)
    gpu.synchronize()
    assert daemon.gauge("segment_bytes") >= 100 * INLINE
    del host
    pool.trim()
    wait_until(lambda: daemon.gauge("segment_bytes") < 100 * INLINE, "a release")


def test_pinned_arrays_stay_valid_after_close(daemon: DaemonProcess) -> None:
    values = noise(3 * INLINE)
    host = pinned(values)
    with daemon.connect() as node:
        x = node.device(0).asarray(host)
    with pytest.raises(hearth.ClosedError):
        x.set(host)
    same(host, values)
    with daemon.connect() as node:
        same(node.device(0).asarray(host).get(), values)
    wait_until(lambda: daemon.gauge("segment_bytes") == 0, "the end of shared memory")


def test_a_forked_child_is_refused_and_its_parent_unharmed(gpu: hearth.Device) -> None:
    host, values = pinned(noise(3 * INLINE)), noise(20 * INLINE)
    x, y = gpu.asarray(host), gpu.asarray(values)
    gpu.synchronize()
    pid = os.fork()
    if not pid:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                x.set(host)
            except hearth.ClosedError:
                host[0] ^= 255  # visible to the parent process
                code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    same(y.get(), values)
    expected = noise(3 * INLINE).copy()
    expected[0] ^= 255
    x.set(host)
    same(x.get(), expected)
    wait_ring_idle(gpu)
