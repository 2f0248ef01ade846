"""The asyncio client after the loss of a device, of the daemon or of the connection, and after Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import hearth
from hearth import aio
from hearth.transfer import registered, router
from hearth.transfer.grpc_stream import cancel_transfer
from tests.support.client.internals import connection_of
from tests.support.daemon.aio_ways import LARGE
from tests.support.daemon.cutter import Cutter
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, wait_until
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.loops import Gate, run
from tests.support.folders import ROOT
from tests.support.timing import LATE


def test_a_device_that_is_lost(lossy: DaemonProcess) -> None:
    first = lossy.generation()

    async def main() -> None:
        async with aio.connect(lossy.unix) as node:
            gpu = node.device(0)
            gate = await Gate(gpu).made()
            module = gpu.RawModule(code=COMMON)
            add_one = module.get_function("add_one")
            x, y = gpu.zeros(4, np.int32), gpu.zeros(LARGE)
            await gpu.synchronize()
            gate.hold()
            pending = gpu.dispatch_async(add_one, 1, 4, args=[hearth.InOut(np.zeros(4, np.int32)), np.int32(4)])
            waits = [
                asyncio.ensure_future(wait) for wait in (x.get(), gpu.synchronize(), gpu.flush(), pending.result())
            ]
            await asyncio.sleep(0.02)
            os.kill(lossy.device_pid(), signal.SIGKILL)
            began = time.monotonic()
            for outcome in await asyncio.gather(*waits, return_exceptions=True):
                assert outcome is None or isinstance(outcome, hearth.DeviceLostError)
            x = gpu.ones(4, np.int32)  # succeeds immediately: the client attaches again first
            add_one((1,), (4,), (x, np.int32(4)))
            assert time.monotonic() - began < LATE
            assert (await x.get() == 2).all()
            with pytest.raises(hearth.BufferLostError):
                await y.get()
            assert await gpu.generation() == first + 1

    run(main)


def test_a_read_after_an_upload_that_fails(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read must not return the old bytes as if the upload had succeeded: the error of the upload arrives while the
    read waits."""
    begin, begun, over = router.begin_upload, list[int](), threading.Event()

    def begin_upload(attachment: Any, region: Any, number: int, size: int) -> Any:
        begun.append(number)
        return begin(attachment, region, number, size)

    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            x = gpu.zeros(LARGE)
            await gpu.synchronize()
            monkeypatch.setattr(router, "begin_upload", begin_upload)
            monkeypatch.setattr(registered, "upload", lambda *_: None)  # the bytes are not sent, by either route
            monkeypatch.setattr(router, "carry_upload", lambda *_: over.wait(60))
            x.set(np.ones(LARGE))
            reading = asyncio.ensure_future(x[:10].get())
            session = connection_of(gpu).attachment().session
            while session.outstanding < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            cancel_transfer(connection_of(gpu), begun[0])
            with pytest.raises(hearth.TransferError):
                await reading
            over.set()
            assert (await x.get() == 0).all()

    run(main)


def test_durable_arrays_are_restored_after_a_loss(lossy: DaemonProcess) -> None:
    async def main() -> None:
        async with aio.connect(lossy.unix) as node:
            gpu = node.device(0)
            add_one, x = await lose_durable(lossy, gpu)
            with pytest.raises(hearth.UnavailableError, match="ready") as raised:
                add_one((1,), (4,), (x, np.int32(4)))
            assert raised.value.retryable
            await gpu.ready()
            add_one((1,), (4,), (x, np.int32(4)))
            with pytest.raises(hearth.DeviceLostError):
                await gpu.synchronize()
            assert (await x.get() == 8).all() and x.durable

    run(main)


def test_calls_without_durable_arrays_are_queued_while_durable_arrays_are_restored(lossy: DaemonProcess) -> None:
    async def main() -> None:
        async with aio.connect(lossy.unix) as node:
            gpu = node.device(0)
            add_one, x = await lose_durable(lossy, gpu)
            y = gpu.durable(gpu.zeros(4, np.int32))
            add_one((1,), (4,), (y, np.int32(4)))
            await asyncio.to_thread(add_one, (1,), (4,), (x, np.int32(4)))  # a thread waits for the restored array
            with pytest.raises(hearth.DeviceLostError):
                await gpu.synchronize()
            assert (await y.get() == 1).all() and (await x.get() == 8).all()
            assert x.durable and y.durable
            await lose(lossy, gpu)
            with pytest.raises(hearth.DeviceLostError):
                await gpu.synchronize()
            waits = await asyncio.gather(x.get(), y.get(), gpu.zeros(4, np.int32).get())  # awaited calls wait
            assert [wait.tolist() for wait in waits] == [[7] * 4, [0] * 4, [0] * 4]

    run(main)


CRASH = 'extern "C" __global__ void crash(long long address) { *(int*)address = 1; }'


def test_names_are_listed_and_ended_after_a_loss_that_was_raised(lossy: DaemonProcess) -> None:
    async def main() -> None:
        async with aio.connect(lossy.unix) as node:
            gpu = node.device(0)
            crash = gpu.RawModule(code=CRASH).get_function("crash")
            for name in ("", "weights"):
                crash((1,), (1,), (np.int64(8),))
                with pytest.raises(hearth.DeviceLostError):
                    await gpu.synchronize()
                if not name:
                    assert await gpu.published() == []
                    continue
                with pytest.raises(hearth.InvalidHandleError):
                    await gpu.unpublish(name)

    run(main)


async def lose(daemon: DaemonProcess, gpu: aio.Device) -> None:
    """Ends the device's process, and returns when the client knows."""
    os.kill(daemon.device_pid(), signal.SIGKILL)
    while connection_of(gpu).attached:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def lose_durable(daemon: DaemonProcess, gpu: aio.Device) -> tuple[aio.Function, aio.DeviceArray]:
    """Loses the device after a durable array of four sevens was made; returns the kernel `add_one` and the array."""
    add_one = gpu.RawModule(code=COMMON).get_function("add_one")
    x = gpu.durable(gpu.full(4, 7, np.int32))
    await gpu.synchronize()
    await lose(daemon, gpu)
    return add_one, x


def test_a_daemon_that_is_killed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    async def main() -> None:
        node = await aio.connect(daemon.unix, timeout=3)
        gpu = node.device(0)
        gate = await Gate(gpu).made()
        x, y = gpu.zeros(4, np.int32), gpu.zeros(LARGE)
        await gpu.synchronize()
        gate.hold()
        waits = [asyncio.ensure_future(wait) for wait in (x.get(), y.get(), gpu.synchronize(), node.synchronize())]
        await asyncio.sleep(0.02)
        daemon.process.kill()
        for outcome in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(outcome, hearth.HearthError), outcome
        with pytest.raises(hearth.HearthError):
            await node.describe()
        with pytest.raises(hearth.HearthError):
            await gpu.ready()
        x.free()
        await node.close()
        with pytest.raises(hearth.ClosedError):
            await gpu.synchronize()
        with pytest.raises(hearth.ClosedError):
            gpu.zeros(4)

    run(main)


def test_a_device_that_cannot_be_attached_to(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()

    async def main() -> None:
        node = await aio.connect(daemon.unix, timeout=2)
        gpu = node.device(0)
        daemon.process.kill()
        await asyncio.to_thread(daemon.process.wait)
        for _ in range(20):
            # raised by the upload or by the read
            with pytest.raises((hearth.UnavailableError, hearth.BufferLostError)):
                await gpu.asarray(np.zeros(4)).get()
            with pytest.raises((hearth.UnavailableError, hearth.BufferLostError)):
                await gpu.asarray(np.zeros(LARGE)).get()
        with pytest.raises(hearth.UnavailableError):
            await gpu.ready()
        await node.close()

    run(main)


def test_a_child_of_a_fork_is_refused(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            x = gpu.ones(4, np.int32)
            await gpu.synchronize()
            pid = os.fork()
            if not pid:
                try:
                    gpu.zeros(3)
                except hearth.ClosedError:
                    os._exit(17)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17  # noqa: ASYNC222
            assert (await x.get() == 1).all()

    run(main)


def test_absent_daemon(tmp_path: object) -> None:
    async def main() -> None:
        with pytest.raises(hearth.ConnectError):
            await aio.connect(f"unix:{tmp_path}/absent.sock", timeout=1)
        with pytest.raises(hearth.ArgumentError):
            await aio.connect(timeout=-1)

    run(main)


@pytest.mark.parametrize("reset", [False, True])
def test_repeatedly_cut_connections(daemon: DaemonProcess, reset: bool) -> None:
    async def main() -> None:
        with Cutter(daemon.unix) as cutter:
            async with aio.connect(cutter.address) as node:
                gpu = node.device(0)
                add_one = gpu.RawModule(code=COMMON).get_function("add_one")
                x = gpu.zeros(8, np.int32)
                for step in range(1, 31):
                    add_one((1,), (8,), (x, np.int32(8)))
                    waits = [asyncio.ensure_future(x.get()) for _ in range(5)]
                    if step % 5 == 0:
                        await asyncio.to_thread(cutter.cut, reset)
                    for got in await asyncio.gather(*waits):
                        assert (got == step).all()

    run(main)


INTERRUPTED = """
import asyncio, sys, numpy as np, hearth
sys.path.insert(0, sys.argv[2])
from tests.support.daemon.loops import Gate

async def main():
    node = await hearth.aio.connect(sys.argv[1])
    gpu = node.device(0)
    gate = await Gate(gpu).made()
    gate.hold()
    y = gpu.zeros(400_000)
    print(node.session_id, flush=True)
    await asyncio.gather(gpu.synchronize(), y.get(), *(gpu.zeros(4).get() for _ in range(20)))

asyncio.run(main())
"""


def test_ctrl_c(lossy: DaemonProcess) -> None:
    root = str(ROOT)
    client = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, lossy.unix, root],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert client.stdout is not None
    session = client.stdout.readline().strip()
    assert session, client.communicate()[1]
    time.sleep(0.05)
    client.send_signal(signal.SIGINT)
    _, complaint = client.communicate(timeout=20)
    assert complaint.strip().endswith("KeyboardInterrupt") and "never retrieved" not in complaint, complaint
    wait_until(lambda: session not in [each["id"] for each in lossy.status()["sessions"]], "the session's end")
