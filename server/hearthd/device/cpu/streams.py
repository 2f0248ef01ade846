"""Streams as threads: a stream runs submitted work in order; events are flags that other streams can wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from hearthd.device.cpu.racecheck import Race

Work = Callable[[], object]


class CpuEvent:
    """An event, done when the stream has reached it; `at_ns` is the time at which that happened."""

    __slots__ = ("_flag", "at_ns", "done")

    def __init__(self) -> None:
        self.done = False
        self.at_ns = 0
        self._flag = threading.Event()

    def set(self) -> None:
        """Marks the event as done and wakes the threads that wait for it. Called on the thread of its stream."""
        self.at_ns = time.perf_counter_ns()
        self.done = True
        self._flag.set()

    def wait(self) -> None:
        """Blocks until the event is done. Called on the thread of another stream."""
        if not self.done:
            self._flag.wait()


class CpuStream:
    """A thread that runs submitted work in order. The first exception is kept as `failure`: the device has failed."""

    def __init__(self, name: str, on_progress: Callable[[], None]) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._on_progress = on_progress
        self.failure: BaseException | None = None
        self.launched: Sequence[tuple[int, str, str]] = ()
        """The latest launches as (position, kernel, session); the last one is the launch that is being submitted."""
        self.session = ""
        """Id of the session of the most recently submitted launches."""
        self.races: Sequence[Race] = ()
        """Races of the latest launch that was checked for races. Written on the stream's thread."""
        self._worker = threading.Thread(target=self._run, name=name, daemon=True)
        self._worker.start()

    def submit(self, work: Work) -> None:
        """Queues work after all earlier work. Never blocks; an exception of the work becomes `failure`."""
        self._queue.put(work)

    def record(self, event: CpuEvent) -> None:
        """Queues the event, which is set, and `on_progress` called, after all earlier work."""

        def reached() -> None:
            event.set()
            self._on_progress()

        self._queue.put(reached)

    def close(self) -> None:
        """Ends the thread after all work that was submitted before."""
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException as error:
                if self.failure is None:
                    self.failure = error
                self._on_progress()
