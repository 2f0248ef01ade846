"""Event loops for tests of `hearth.aio`, with checks that no tasks or threads remain."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import numpy as np

import hearth
from hearth import aio
from hearth.aio import thread_pool
from tests.support.daemon.harness import wait_until
from tests.support.daemon.kernels import GATE

T = TypeVar("T")

thread_pool.IDLE_S = 0.1  # shortened because tests wait until all threads have ended

LOOPS = ("asyncio", "uvloop")


def run(work: Callable[[], Coroutine[Any, Any, T]], loop: str = "asyncio", seconds: float = 60.0) -> T:
    """Returns the result of `work()` in a separate loop. Checks at the end that every remaining task ends uncancelled,
    that the loop's exception handler was not called, and that the client's threads end."""
    threads_before = threads()
    complaints: list[str] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(str(context)))
        result = await asyncio.wait_for(work(), seconds)
        gc.collect()  # reports of exceptions that were "never retrieved" appear now
        await asyncio.sleep(0)
        remaining_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if remaining_tasks:  # a cancelled dispatch continues: its task ends when a thread has finished the dispatch
            _, remaining_tasks = await asyncio.wait(remaining_tasks, timeout=10)
        assert not remaining_tasks, remaining_tasks
        return result

    if loop == "uvloop":
        import uvloop

        result: T = uvloop.run(watched())
    else:
        result = asyncio.run(watched())
    gc.collect()
    assert not complaints, complaints
    wait_until(
        lambda: not (threads() - threads_before), f"the end of {sorted(t.name for t in threads() - threads_before)}"
    )
    return result


def threads() -> set[threading.Thread]:
    """Returns the client's threads, except those that exist until the process ends."""
    client_threads = {thread for thread in threading.enumerate() if thread.name.startswith("hearth")}
    return {thread for thread in client_threads if not thread.name.startswith("hearth-copy")}


class Gate:
    """`kernels.Gate` for asyncio."""

    def __init__(self, gpu: aio.Device) -> None:
        self.side = gpu.stream()
        self._module = gpu.RawModule(code=GATE)
        self._kernel = self._module.get_function("hold")

    async def made(self) -> Gate:
        """Creates, before a kernel runs, all resources that the first use creates."""
        self.gate = await self._module.get_global("gate", np.int32)
        self.gate.set(np.zeros(1, np.int32), stream=self.side)
        await self.side.synchronize()
        return self

    def hold(self, after: hearth.DeviceArray | None = None, stream: hearth.Stream | None = None) -> None:
        """Launches the kernel, which adds one to `after` when it ends."""
        self._kernel((1,), (1,), (np.uint64(0) if after is None else after,), stream=stream, timeout=60)

    async def open(self) -> None:
        self.gate.set(np.ones(1, np.int32), stream=self.side)
        await self.side.synchronize()
