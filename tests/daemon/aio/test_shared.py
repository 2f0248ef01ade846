"""Large arrays of the asyncio client on the daemon's host: transferred by shared memory, in order, without a blocked
thread."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hearth
from hearth import aio
from hearth.transfer import registered
from hearth.transport import memory_segments
from hearth.transport.segment_pool import pool
from tests.support.client.internals import connection_of
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.loops import LOOPS, Gate, run
from tests.support.daemon.pinned_arrays import INLINE, noise, pinned, same
from tests.support.daemon.shared_dispatches import MAKES, Make, invert, inverting, little, old, refused, ways, went

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")


@MAKES
@pytest.mark.parametrize("size", [INLINE - 1, INLINE, INLINE + 1, 4 * INLINE + 7, 33 * INLINE + 13])
def test_copies_of_every_size_use_the_expected_path(daemon: DaemonProcess, size: int, make: Make) -> None:
    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            before, large = ways(daemon), size if size > INLINE else 0
            host, out = make(noise(size, size)), make(np.zeros(size, np.uint8))
            x = gpu.asarray(host)
            assert await x.get(out) is out
            same(out, host)
            x[1:-1].set(host[:-2])
            same(await x.get(), np.concatenate([host[:1], host[:-2], host[-1:]]))
            parts = size - 2 if size - 2 > INLINE else 0
            went(daemon, before, large + parts, 2 * large, 0, 0)

    run(main)


@MAKES
def test_repeated_reads_use_the_expected_path(daemon: DaemonProcess, make: Make) -> None:
    async def main(target: str, size: int, shared: bool) -> None:
        async with aio.connect(target) as node:
            gpu = node.device(0)
            x, out, before = gpu.asarray(noise(size, size)), make(np.zeros(size, np.uint8)), ways(daemon)
            for count in range(10):
                out[:] = count
                assert await x.get(out) is out
                same(out, noise(size, size))
                same(await x.get(), out)
            if shared:
                wait_until(lambda: ways(daemon)[1] > before[1], "the bytes to be counted")
            assert ways(daemon)[3] == before[3] and (shared or ways(daemon)[1] == before[1])
            with pytest.raises(hearth.ArgumentError):
                await x.get(out[1:])
            same(await x.get(), noise(size, size))

    run(lambda: main(daemon.unix, 512 << 10, True))
    run(lambda: main(daemon.unix, INLINE, True))
    run(lambda: main(daemon.unix, (512 << 10) - 1, False))
    run(lambda: main(daemon.grpc, INLINE, False))


@MAKES
@pytest.mark.parametrize("loop", LOOPS)
def test_views_rows_and_dispatches(daemon: DaemonProcess, make: Make, loop: str) -> None:
    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            host = make(noise(3000 * 1001).reshape(3000, 1001))
            x = gpu.empty_pitched(host.shape, np.uint8)
            x.set(host)
            same(await x.get(), host)
            y = gpu.asarray(host[::-1])
            out = make(np.zeros((3000, 2002), np.uint8))
            await y[:, 100:601].get(out=out[:, 7:508])
            same(out[:, 7:508], host[::-1, 100:601])
            assert not out[:, :7].any() and not out[:, 508:].any()
            kernel = invert(gpu)
            flat, given = host.reshape(-1), make(np.zeros(host.size, np.uint8))
            same((await gpu.dispatch(kernel, *inverting(flat, flat.size), out=[given]))[0], ~flat)
            pending = gpu.dispatch_async(kernel, *inverting(flat, flat.size))
            first, second = await asyncio.gather(pending.result(), pending.result(timeout=30))
            assert first[0] is second[0]
            same(first[0], ~flat)
            assert pending.state == "done" and given.base is not first[0]

    run(main, loop)


def test_waiting_operations_block_no_thread(daemon: DaemonProcess) -> None:
    """More operations of each kind than there are threads wait for a kernel; the same number completes on another
    stream."""
    size = 2 * INLINE

    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            gate, kernel = await Gate(gpu).made(), invert(gpu)
            values = noise(size)
            other = gpu.stream()
            held, free = [gpu.asarray(values) for _ in range(8)], gpu.asarray(values, stream=other)
            await gpu.synchronize()
            gate.hold()
            gets = [asyncio.ensure_future(x.get()) for x in held]
            await asyncio.sleep(0)  # lets each operation be queued
            for x in held:
                x.set(values[::-1])
            dispatches = [asyncio.ensure_future(gpu.dispatch(kernel, *inverting(values, size))) for _ in range(8)]
            pending = [gpu.dispatch_async(kernel, *inverting(values, size)) for _ in range(8)]
            await asyncio.sleep(0)
            with other:
                for turn in range(3):
                    free.set(noise(size, turn))
                    same(await free.get(), noise(size, turn))
                    same((await gpu.dispatch(kernel, *inverting(values, size)))[0], ~values)
            assert not any(task.done() for task in gets + dispatches)  # type: ignore[operator]
            await gate.open()
            for got in await asyncio.gather(*gets):
                same(got, values)
            for each in [*await asyncio.gather(*dispatches), *[await each.result() for each in pending]]:
                same(each[0], ~values)
            for x in held:
                same(await x.get(), values[::-1])

    run(main)


def test_order_of_a_read_is_set_by_its_first_await(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            n = 500_000
            x = gpu.zeros(n, np.int32)
            add_one = gpu.RawModule(code=COMMON).get_function("add_one")
            gets = []
            for _ in range(10):
                gets.append(asyncio.ensure_future(x.get()))
                await asyncio.sleep(0)
                add_one((n // 256 + 1,), (256,), (x, np.int32(n)))
            for turn, got in enumerate(await asyncio.gather(*gets)):
                assert (got == turn).all()

    run(main)


@MAKES
@pytest.mark.parametrize("after", [0.0, 0.02])
def test_a_cancelled_get_leaves_its_out_alone(daemon: DaemonProcess, make: Make, after: float) -> None:
    size = 5 * INLINE

    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            gate = await Gate(gpu).made()
            values, out = noise(size), make(np.full(size, 7, np.uint8))
            x = gpu.asarray(values)
            await gpu.synchronize()
            gate.hold()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(after):
                    await x.get(out)
            with pytest.raises(hearth.TimeoutError):
                await x.get(out, timeout=after)
            others = [hearth.zeros_pinned(size, np.uint8) for _ in range(4)]
            await gate.open()
            await gpu.synchronize()
            assert (out == 7).all() and not any(other.any() for other in others)
            same(await x.get(out), values)

    run(main)


def test_cancellation_waits_for_a_running_copy(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu, loop = node.device(0), asyncio.get_running_loop()
            values, out = noise(5 * INLINE), np.zeros(5 * INLINE, np.uint8)
            x, began = gpu.asarray(values), asyncio.Event()
            await gpu.synchronize()
            copy = registered.copy

            def slow(into: memoryview, since: memoryview) -> None:
                loop.call_soon_threadsafe(began.set)
                time.sleep(0.1)
                copy(into, since)

            monkeypatch.setattr(registered, "copy", slow)
            getting = asyncio.ensure_future(x.get(out))
            await began.wait()
            for _ in range(3):
                getting.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await getting
            same(out, values)  # the array is complete, and no caller waits

    run(main)


@MAKES
def test_dispatch_copies_its_inputs_outside_the_event_loop(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    """After a cancelled await has ended, the dispatch no longer uses the caller's memory."""
    size = 3 * INLINE

    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu, loop = node.device(0), asyncio.get_running_loop()
            kernel, host, kept = invert(gpu), make(noise(size)), noise(size)
            began, go, taken = asyncio.Event(), threading.Event(), registered.copy_of_bytes

            def slow(*given: Any) -> memoryview:
                loop.call_soon_threadsafe(began.set)
                assert go.wait(30)
                return taken(*given)

            same((await gpu.dispatch(kernel, *inverting(host, size)))[0], ~kept)
            monkeypatch.setattr(registered, "copy_of_bytes", slow)
            for cancels in (False, True):
                began.clear()
                go.clear()
                task = asyncio.ensure_future(gpu.dispatch(kernel, *inverting(host, size)))
                await began.wait()
                if cancels:
                    task.cancel()
                    await asyncio.sleep(0.01)
                    assert not task.done()
                go.set()
                if not cancels:
                    same((await task)[0], ~kept)
                else:
                    with pytest.raises(asyncio.CancelledError):
                        await task
            host[:] = 0
            await gpu.synchronize()

    run(main)


def test_pinned_source_is_not_copied_and_stays_alive_until_read(daemon: DaemonProcess) -> None:
    size = 3 * INLINE

    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            gate = await Gate(gpu).made()
            x, values = gpu.zeros(size, np.uint8), noise(size)
            await gpu.synchronize()
            gate.hold()
            host = pinned(values[::-1])
            address = host.ctypes.data
            x.set(host)
            host[:] = values  # the old contents were not copied
            del host
            gc.collect()
            others = [hearth.zeros_pinned(size, np.uint8) for _ in range(3)]
            assert address not in [other.ctypes.data for other in others]
            await gate.open()
            same(await x.get(), values)
            out = hearth.zeros_pinned(size, np.uint8)
            gate.gate.set(np.zeros(1, np.int32), stream=gate.side)
            await gate.side.synchronize()
            gate.hold()
            assert await x.get(out, blocking=False) is out and not out.any()
            await gate.open()
            await gpu.synchronize()
            same(out, values)

    run(main)


@pytest.mark.parametrize("without", [refused, old, little])
def test_fallback_without_shared_memory(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, without: Callable[..., None]
) -> None:
    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            without(gpu, monkeypatch)
            before, x = ways(daemon), noise(3 * INLINE)
            y = gpu.asarray(x)
            same(await y.get(), x)
            same((await gpu.dispatch(invert(gpu), *inverting(x, x.size)))[0], ~x)
            await gpu.synchronize()
            went(daemon, before, 0, 0, 2 * x.nbytes, 2 * x.nbytes)
            host, out = pinned(x), hearth.zeros_pinned(x.size, np.uint8)
            y.set(host)
            await y.get(out, blocking=False)
            await gpu.synchronize()
            same(out, x)

    run(main)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("whole", [False, True], ids=["device", "daemon"])
def test_connection_lost_during_copy(lossy: DaemonProcess, start_daemon: StartDaemon, whole: bool, loop: str) -> None:
    daemon = start_daemon() if whole else lossy
    first = daemon.generation()

    async def main() -> None:
        node = await aio.connect(daemon.unix, timeout=20)
        gpu = node.device(0)
        gate, kernel = await Gate(gpu).made(), invert(gpu)
        values = noise(5 * INLINE)
        x = gpu.asarray(values)
        same(await x.get(), values)
        gate.hold()
        out, outs = np.full(values.size, 7, np.uint8), hearth.empty_pinned(values.size, np.uint8)
        for host in (values, pinned(values)):
            x.set(host)
        waits: list[Any] = [
            x.get(out),
            x.get(outs),
            gpu.dispatch(kernel, *inverting(values, values.size)),
            gpu.synchronize(),
        ]
        tasks = [asyncio.ensure_future(each) for each in waits]
        await asyncio.sleep(0.05)
        os.kill(daemon.process.pid if whole else daemon.device_pid(), signal.SIGKILL)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes[:3]:
            assert isinstance(outcome, hearth.HearthError), outcome
        assert (out == 7).all()
        if not whole:
            y = gpu.asarray(values)
            with contextlib.suppress(hearth.DeviceLostError):
                await gpu.synchronize()
            same(await y.get(), values)
            same((await gpu.dispatch(invert(gpu), *inverting(values, values.size)))[0], ~values)
            assert await gpu.generation() == first + 1
        with contextlib.suppress(hearth.HearthError):
            await node.close()

    run(main, loop)


def test_closed_sessions_leave_no_shared_memory(daemon: DaemonProcess) -> None:
    """Memory is reused, and is released with the node; memory in use by transfers is counted."""

    async def main() -> None:
        async with aio.connect(daemon.unix) as node:
            gpu, values = node.device(0), noise(5 * INLINE)
            x = gpu.asarray(values)
            for _ in range(20):
                x.set(values)
                same(await x.get(), values)
                await gpu.dispatch(invert(gpu), *inverting(values, values.size))
            await asyncio.sleep(0)
            assert connection_of(gpu).uploading == 0
            assert daemon.gauge("segment_bytes") <= 6 * pool_bytes(values.size)
            gc.collect()  # objects of an earlier test in reference cycles have segments as well
            pool.trim()
            wait_until(lambda: daemon.gauge("segment_bytes") == 0, "a release")
            same(await x.get(), values)

    pool.trim()
    run(main)
    wait_until(lambda: daemon.gauge("segment_bytes") == 0, "the end of shared memory")


def pool_bytes(size: int) -> int:
    return -(-size // (1 << 19)) * (1 << 19)
