"""Helper threads for large memory copies, because one core alone is slower than a device."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from hearth_proto.cores import cores

MAX_THREADS = 5
"""Maximum number of threads that copy for one transfer; more threads wait for each other (figures of an H100 in
docs/performance.md)."""
_LEAVE_S = 5.0
"""Seconds for which an interrupted caller waits for each of its helpers, which must finish one piece."""


def threads() -> int:
    """Returns the number of threads that are useful for one transfer on this machine, including the calling thread."""
    return max(1, min(MAX_THREADS, cores()))


class _Task:
    """Work for one thread, started once or cancelled before."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.done = threading.Event()
        self._work = work
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """Claims the task; returns False if it was claimed before."""
        return self._claim.acquire(blocking=False)

    def run(self) -> None:
        try:
            if self.claim():
                self._work()
        finally:
            self.done.set()


class Crew:
    """Helper threads of this process, started at their first use.

    They are daemon threads, and may be busy with another transfer for long: the caller does all the work itself if no
    helper is free.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[_Task] = SimpleQueue()
        self._threads = 0

    def run(self, work: Callable[[], None], count: int, stop: Callable[[BaseException], object]) -> None:
        """Calls `work` in this thread and in threads of the crew, and returns when all of these calls have returned.

        Args:
            work: Function that each thread calls once; must not raise.
            count: Maximum number of helpers.
            stop: Makes `work` return soon; called with an exception that interrupts this thread (KeyboardInterrupt),
                which is then raised.
        """
        tasks = self._start(work, count)
        try:
            work()
            _dismiss(tasks)
        except BaseException as error:
            stop(error)
            _dismiss(tasks, _LEAVE_S)
            raise

    def _start(self, work: Callable[[], None], count: int) -> list[_Task]:
        tasks = [_Task(work) for _ in range(count)]
        try:
            with self._lock:
                while self._threads < min(count, MAX_THREADS - 1):
                    name = f"hearth-copy-{self._threads}"
                    threading.Thread(target=self._run, args=(self._tasks,), name=name, daemon=True).start()
                    self._threads += 1
        except RuntimeError:  # the system provides no more threads, or the interpreter is shutting down
            pass
        for task in tasks:
            self._tasks.put(task)
        return tasks

    @staticmethod
    def _run(tasks: SimpleQueue[_Task]) -> None:
        while True:
            tasks.get().run()

    def forked(self) -> None:
        """Resets the crew in the child process of a fork: the threads belong to the parent."""
        self.__init__()  # type: ignore[misc]


def _dismiss(tasks: list[_Task], seconds: float | None = None) -> None:
    """Cancels tasks that have not started, and waits for the others, each for `seconds` at most."""
    for task in [task for task in tasks if not task.claim()]:
        task.done.wait(seconds)


crew = Crew()
"""Crew of this process."""

os.register_at_fork(after_in_child=crew.forked)
