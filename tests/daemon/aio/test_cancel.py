"""Awaits that are cancelled at any point: the session continues, and no other caller receives their results."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

import numpy as np
import pytest

import hearth
from hearth import aio
from tests.support.client.internals import connection_of
from tests.support.daemon.aio_ways import LARGE, WAYS, connect
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.loops import Gate, run

ELEMENTS = 256
BIG = 300_000
"""Number of elements of four bytes: more than fit into a batch."""
SENTINEL = 0xDEADBEEF


class Worker:
    """A task with its own arrays and their expected values, whose awaits are cancelled at random. It compares every
    answer."""

    def __init__(self, gpu: aio.Device, mix: aio.Function, seed: int) -> None:
        self._gpu, self._mix = gpu, mix
        self._chosen = random.Random(seed)
        self._stream = gpu.stream()
        self._noise = np.random.default_rng(seed).integers(0, 2**32, BIG, np.uint32)
        self._small, self._large = (self._noise[:size].copy() for size in (ELEMENTS, BIG))
        with self._stream:
            self._x = gpu.asarray(self._noise)
            self._y = {ELEMENTS: gpu.asarray(self._small), BIG: gpu.asarray(self._large)}
        self._known = {ELEMENTS: self._small, BIG: self._large}
        self._left: list[np.ndarray] = []
        self.cancelled = self.answered = 0

    async def work(self, steps: int) -> None:
        with self._stream:
            for _ in range(steps):
                await self._step()
            for size in self._known:
                assert (await self._y[size].get() == self._known[size]).all()
        for out in self._left:
            assert (out == SENTINEL).all()

    async def _step(self) -> None:
        gpu, chosen = self._gpu, self._chosen
        size = BIG if chosen.random() < 0.25 else ELEMENTS
        y, known = self._y[size], self._known[size]
        for _ in range(chosen.randrange(4)):
            self._mix((size // 256 + 1,), (256,), (self._x, y, np.int32(size)))
            known[:] = 3 * known + self._noise[:size]
        kind = chosen.randrange(6)
        if kind == 0:
            await self._perhaps(gpu.synchronize())
        elif kind == 1:
            await self._perhaps(self._stream.synchronize())
        elif kind == 2:
            got = await self._perhaps(y.get())
            assert got is None or (got == known).all()
        elif kind == 3:
            out = np.zeros(size, np.uint32)
            if await self._perhaps(y.get(out)) is None:
                out[:] = SENTINEL  # the array belongs to the test again
                self._left.append(out)
            else:
                assert (out == known).all()
        elif kind == 4:
            host = known.copy()
            args = [self._noise[:size], hearth.InOut(host), np.int32(size)]
            results = await self._perhaps(gpu.dispatch(self._mix, size // 256 + 1, 256, args=args))
            assert results is None or (results[0] == 3 * known + self._noise[:size]).all()
        else:
            await self._perhaps(gpu.flush())

    async def _perhaps(self, wait: Awaitable[object]) -> object:
        """Returns the answer; None if the wait was cancelled first."""
        task = asyncio.ensure_future(wait)
        pause = self._chosen.choice([None, None, 0, 0, 1e-4, 1e-3, 1e-2])
        if pause is not None:
            await asyncio.sleep(pause)
            task.cancel()
        try:
            result = await task
        except asyncio.CancelledError:
            self.cancelled += 1
            return None
        self.answered += 1
        return result if result is not None else True


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_cancelled_anywhere(daemon: DaemonProcess, way: str, loop: str) -> None:
    async def main() -> None:
        async with connect(daemon, way) as node:
            gpu = node.device(0)
            mix = gpu.RawModule(code=COMMON).get_function("mix")
            workers = [Worker(gpu, mix, seed) for seed in range(6)]
            await asyncio.gather(*(worker.work(40) for worker in workers))
            assert sum(worker.cancelled for worker in workers) > 20
            assert sum(worker.answered for worker in workers) > 20
            assert not connection_of(node.device(0)).late_errors

    run(main, loop)


def test_failure_before_a_cancelled_wait_is_raised_by_the_next(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            await gpu.synchronize()
            for _ in range(20):
                gpu.RawModule(code=COMMON).get_function("missing")((1,), (1,), ())
                waiting = asyncio.ensure_future(gpu.synchronize())
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                with pytest.raises(hearth.HearthError, match="missing"):
                    await gpu.synchronize()
                await gpu.synchronize()

    run(main)


def test_cancellation_at_the_moment_of_the_answer(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            x = gpu.full(10, 3, np.int32)
            for _ in range(50):
                wait = asyncio.ensure_future(x.get())
                await asyncio.sleep(0)
                await gpu.synchronize()  # the answer of `wait` has arrived by now, but has not been taken
                wait.cancel()
                await asyncio.wait([wait])
                assert wait.cancelled() or (wait.result() == 3).all()

    run(main)


def test_a_cancelled_connect_leaves_no_session(daemon: DaemonProcess) -> None:
    before = {each["id"] for each in daemon.status()["sessions"]}

    async def main() -> None:
        for way in WAYS:
            for tenths in range(0, 40, 4):
                connecting = asyncio.ensure_future(_connected(connect(daemon, way)))
                await asyncio.sleep(tenths * 1e-4)
                connecting.cancel()
                try:
                    node = await connecting
                except asyncio.CancelledError:
                    continue
                await node.close()

    run(main)
    wait_until(lambda: {each["id"] for each in daemon.status()["sessions"]} <= before, "the sessions' end")


async def _connected(connecting: Awaitable[aio.Node]) -> aio.Node:
    return await connecting


def test_cancelled_async_with_blocks(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            gate = await Gate(gpu).made()
            add_one = gpu.RawModule(code=COMMON).get_function("add_one")
            x = gpu.zeros(1, np.int32)
            args = (x, np.int32(1))
            await gpu.synchronize()
            gate.hold()
            launched = 2  # the last two launches
            for block in (gpu.profile, gpu.trace):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02), block():  # the start of a trace may wait as well
                        add_one((1,), (1,), args)
                        launched += 1
                        await gpu.synchronize()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02), gpu.profile():
                    add_one((1,), (1,), args)  # the profile is cancelled at its end
            await gate.open()
            await gpu.synchronize()
            async with gpu.trace() as t, gpu.profile() as p:
                add_one((1,), (1,), args)
            assert len([each for each in t.events if each.name == "launch"]) == 1 and p.wall_ns > 0
            assert await x.item() == launched

    run(main)


def test_cancelled_close_continues(daemon: DaemonProcess) -> None:
    async def main() -> str:
        node = await connect(daemon)
        x = node.device(0).asarray(np.zeros(LARGE))
        await x.get()
        closing = asyncio.ensure_future(node.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        return node.session_id

    session = run(main)
    wait_until(lambda: session not in [each["id"] for each in daemon.status()["sessions"]], "the session's end")
