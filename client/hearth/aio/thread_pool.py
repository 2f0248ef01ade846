"""A small pool of threads for blocking work; threads are started on demand and end after being idle for a while.

The pool has separate daemon threads instead of asyncio's executor, because that executor is shared with the
application, and is joined at the end of the loop or the interpreter even if one of its threads is blocked.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, TypeVar

from hearth.errors import HearthError

T = TypeVar("T")

IDLE_S = 2.0
"""Seconds that an idle thread waits for a task before it ends."""


class Work(Future[T]):
    """A task of the pool; also a `hearth.kernels.base_pending_dispatch.Carrier`."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        context = copy_context()
        self._work: Callable[[], T] | None = lambda: context.run(work)

    def do(self) -> None:
        """Runs the task; called by a thread of the pool."""
        work, self._work = self._work, None
        if work is None or not self.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)

    def is_alive(self) -> bool:
        """Returns True until the task has ended."""
        return not self.done()

    def join(self, timeout: float | None = None) -> None:
        """Blocks until the task has ended.

        Args:
            timeout: Seconds to wait at most; None: no limit.
        """
        ended = threading.Event()
        self.add_done_callback(lambda _: ended.set())
        ended.wait(timeout)


class Threads:
    """A pool of up to `limit` threads, which run tasks in the order of their submission. Safe from any thread."""

    def __init__(self, name: str, limit: int, idle: float | None = None) -> None:
        """`idle`: seconds without work after which a thread ends; None: `IDLE_S`."""
        self._idle_s = IDLE_S if idle is None else idle
        self._name = name
        self._limit = limit
        # Not a `SimpleQueue`: if several threads wait for it with a timeout, some may wait forever (CPython 3.11).
        self._condition = threading.Condition()
        self._queue: deque[Work[Any]] = deque()
        self._threads = 0
        self._idle = 0

    def run(self, work: Callable[[], T]) -> Work[T]:
        """Queues a task and starts a thread if necessary. Does not block.

        Args:
            work: The function to call, in a copy of the caller's context.

        Returns:
            The task. Its error is a `HearthError` if no thread could be started.
        """
        task = Work(work)
        with self._condition:
            self._queue.append(task)
            self._condition.notify()
            if len(self._queue) <= self._idle or self._threads >= self._limit:
                return task
            self._threads += 1
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError as error:  # the system allows no more threads, or the interpreter shuts down
            with self._condition:
                self._threads -= 1
                if self._threads:
                    return task
                self._queue.remove(task)
            task.set_exception(
                HearthError(
                    f"no thread could be started: {error}.",
                    fix="raise the limit on threads (ulimit -u); no thread can be started while Python shuts down.",
                )
            )
        return task

    def _run(self) -> None:
        while (task := self._next()) is not None:
            task.do()
            del task  # releases memory that the task refers to

    def _next(self) -> Work[Any] | None:
        with self._condition:
            self._idle += 1
            self._condition.wait_for(lambda: self._queue, self._idle_s)
            self._idle -= 1
            if self._queue:
                return self._queue.popleft()
            self._threads -= 1
            return None
