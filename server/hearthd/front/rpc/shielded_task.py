"""Work that is completed once it has begun, also when its caller goes: memory and files always have an owner.

A caller that lost its connection before it was answered asks again, and waits for the work that it began before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class ShieldedTask:
    """The shielded work of one service."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def run(self, work: Callable[[], Awaitable[T]], same: Hashable = None) -> T:
        """Returns what `work` returns; a cancelled caller leaves it running. `same`: a request equal to that of work
        under way waits for that work; None: it equals no other."""

        async def run() -> T:
            return await work()

        key = object() if same is None else same
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(run())
            task.add_done_callback(lambda task: self._done(key, task))
        return await asyncio.shield(task)

    def _done(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # looked at: the caller may have gone
