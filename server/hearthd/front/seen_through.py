"""Work that is done to its end once it has begun, also when its caller goes: memory and files are left to nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class SeenThrough:
    """Of one service."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Awaitable[T]) -> T:
        """What `work` returns; who is cancelled here leaves it running."""

        async def run() -> T:
            return await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: the caller may have gone
