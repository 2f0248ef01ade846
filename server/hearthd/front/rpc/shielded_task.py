"""Shielded task: work that is completed once begun, even if its caller disconnects.

Memory and files thus always have an owner.

A caller that lost its connection before the answer arrived sends its request again, and then waits for the work that
the first request began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class ShieldedTask:
    """The shielded tasks of one service."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]], request_key: Hashable = None) -> T:
        """Runs `work` in a task and returns its result.

        If the caller is cancelled, the task continues. `request_key` identifies equal requests: a request equal to one
        under way waits for that one. None: it equals no other request.
        """
        key = object() if request_key is None else request_key
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(work())
            task.add_done_callback(lambda task: self._done(key, task))
        return await asyncio.shield(task)

    def _done(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, because the caller may have disconnected
