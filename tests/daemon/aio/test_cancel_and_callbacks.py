"""Cancelling of commands, and callbacks, of asynchronous clients; see `tests/daemon/launch/test_cancel.py`."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import hearth
from hearth import aio
from hearth.failure import Failure
from tests.support.daemon.aio_ways import WAYS, connect
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.loops import Gate, run

BEHIND = 2000


async def add_of(gpu: aio.Device) -> aio.Function:
    add = gpu.RawModule(code=COMMON).get_function("add_one")
    add((1,), (1,), (gpu.zeros(1, np.int32), np.int32(1)))
    await gpu.synchronize()
    return add


@pytest.mark.parametrize("way", WAYS)
def test_launches_and_copies_that_have_not_begun_are_dropped(daemon: DaemonProcess, way: str) -> None:
    async def scenario() -> None:
        async with connect(daemon, way) as node:
            gpu = node.device(0)
            add, x, y = await add_of(gpu), gpu.zeros(1, np.int32), gpu.zeros(1 << 20, np.int32)
            gate = await Gate(gpu).made()
            gate.hold(x)
            for _ in range(BEHIND):
                add((1,), (1,), (x, np.int32(1)))
            for value in (1, 2):
                y.set(np.full(1 << 20, value, np.int32))  # sent by a thread of the client
            pending = gpu.dispatch_async(add, (1,), (1,), (hearth.InOut(np.zeros(1, np.int32)), np.int32(1)))
            waiting = asyncio.ensure_future(gpu.synchronize())
            assert await pending.cancel()
            with pytest.raises(hearth.CancelledError):
                await pending.result()
            assert not await pending.cancel()
            one = await gpu.default_stream.cancel()
            dropped = one + await gpu.cancel()
            assert dropped
            failures = list[Failure]()
            for step in (gate.open(), waiting):  # the first await that reports errors reports those of copies
                try:
                    await step
                except hearth.CancelledError as error:
                    failures += error.failures
            assert dropped == len(failures) + sum(failure.merged for failure in failures)
            assert [failure.command for failure in failures].count("write") == 2
            assert not (await y.get()).any()
            assert (await x.get())[0] == 1 + BEHIND + 2 - dropped

    run(scenario)


def test_cancelling_without_work_has_no_effect(daemon: DaemonProcess) -> None:
    async def scenario() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            assert await gpu.cancel() == await gpu.stream().cancel() == 0
            gpu.zeros(1, np.int32)
            assert await gpu.cancel() in (0, 1)  # the fill of `x`, unless it has begun

    run(scenario)


@pytest.mark.parametrize("way", WAYS)
def test_callbacks_are_called_by_the_event_loop(daemon: DaemonProcess, way: str) -> None:
    async def scenario() -> None:
        async with connect(daemon, way) as node:
            gpu = node.device(0)
            called: asyncio.Queue[tuple[object, object]] = asyncio.Queue()

            def call(value: object) -> None:
                called.put_nowait((value, asyncio.get_running_loop()))

            gate, loop = await Gate(gpu).made(), asyncio.get_running_loop()
            gate.hold()
            never_recorded = gpu.event()  # done
            never_recorded.add_done_callback(call)
            assert await called.get() == (never_recorded, loop)
            event = gpu.default_stream.record()
            event.add_done_callback(call)
            gpu.default_stream.launch_host_func(call, "function")
            gpu.stream().launch_host_func(call, "another stream")
            assert await called.get() == ("another stream", loop)
            await gate.open()
            assert [await called.get(), await called.get()] == [(event, loop), ("function", loop)]

    run(scenario)
