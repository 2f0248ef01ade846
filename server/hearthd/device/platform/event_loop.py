"""The device-handle thread's loop: one epoll over sockets and wake-ups, and the tasks that other threads hand in.

Everything that touches CUDA or device state runs inside `Loop.run`, on the thread that called it. Other threads reach
it through `post` alone.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from hearthd.device.platform.spin_policy import SpinPolicy

Task = Callable[[], object]

SHORT_S = 1e-3
"""Sleeps below this are naps, in seconds."""

EXPECTED_S = 1e-4
"""Time for which the next request of a client that has just been answered is polled for, before anything else, in
seconds."""


class Loop:
    """Runs ready sockets, then posted tasks in order, then `poll` hooks, until `stop`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._tasks: deque[Task] = deque()
        self._woken = False
        self._stopping = False
        self._thread: int | None = None
        self.on_poll: Callable[[], float | None] = lambda: None
        """Called in each round; returns the seconds that the loop may sleep, None: until an event."""
        self.on_nap: Callable[[], bool | None] = lambda: False
        """Called before the loop sleeps for less than a millisecond. True: start the next round at once. None: call
        again, after a poll of sockets and tasks."""
        self.on_idle: Callable[[], None] = lambda: None
        """Called before the loop may sleep: the time to send gathered frames."""
        self.on_served: Callable[[], bool] = lambda: False
        """Called after one ready socket was served. True: more is expected from it in a moment, and nothing else is to
        be done before that."""
        self.on_turn: Callable[[int], None] = lambda nanoseconds: None
        """Called with the nanoseconds of a turn with work, without sleep."""
        self._began = 0
        self._came = False
        """True if the loop polled for events, and there were some."""
        self.expected_s = EXPECTED_S
        """Time for which the next request of a client that has just been answered is polled for, in seconds."""
        self.lingering: SpinPolicy | None = None
        """Policy of the polls for events after work was done, before the loop sleeps."""

    @property
    def inside(self) -> bool:
        """True if the caller is on the loop's thread."""
        return self._thread == threading.get_ident()

    def post(self, task: Task) -> None:
        """Runs `task` on the loop's thread, after those posted before. Any thread."""
        self._tasks.append(task)
        self.wake()

    def wake(self) -> None:
        """Makes a sleeping loop go round once. Any thread."""
        if not self._woken:  # a lost race costs one more write, never a lost wake-up
            self._woken = True
            os.eventfd_write(self._wake_fd, 1)

    def add_reader(self, fd: int, callback: Callable[[int], None]) -> None:
        """`callback(events)` whenever `fd` is readable or has failed. Loop's thread only."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def watch(self, fd: int, *, reads: bool = True, writes: bool = False) -> None:
        """Selects the events of `fd` for its callback: readable, writable. Errors are always delivered."""
        self._epoll.modify(fd, select.EPOLLIN * reads | select.EPOLLOUT * writes)

    def remove_reader(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def stop(self) -> None:
        """Ends `run` once the tasks posted so far have run. Any thread."""
        self.post(self._stop)

    def run(self) -> None:
        """Runs until stopped. A task that raises ends the loop: posted tasks have to catch their errors."""
        self._thread = threading.get_ident()
        try:
            while not self._stopping:
                sleep = self.on_poll()
                if not self._tasks:
                    self.on_idle()
                if self._began:
                    self.on_turn(time.perf_counter_ns() - self._began)
                    self._began = 0
                    self.linger()
                self.turn(0.0 if self._tasks else sleep)
        finally:
            self._thread = None

    def linger(self) -> None:
        """Takes note that work was done: the next request may come soon. Loop's thread only."""
        if self.lingering is not None:
            self.lingering.begin(time.perf_counter())

    def close(self) -> None:
        """Releases the descriptors; after `run` has ended."""
        self._epoll.close()
        os.close(self._wake_fd)

    def turn(self, sleep: float | None) -> None:
        """Sleeps up to `sleep` seconds (None: without a limit) until a socket is ready or a task is posted, and serves
        what is there. `run` calls it in a loop. Loop's thread only."""
        if self.lingering is not None and (sleep is None or sleep >= SHORT_S):
            ready = self._look(self.lingering, sleep)
        elif sleep is None:
            ready = self._epoll.poll()
        elif 0.0 < sleep < SHORT_S:
            ready = self._nap(sleep)
        else:
            ready = self._epoll.poll(sleep)
        while not self._take(ready) and len(ready) == 1 and self.on_served():
            self.on_turn(time.perf_counter_ns() - self._began)
            ready = self._expect()

    def _take(self, ready: list[tuple[int, int]]) -> int:
        """Serves ready sockets and the tasks of other threads; returns the number of tasks."""
        self._began = time.perf_counter_ns() if ready or self._tasks else 0
        for fd, events in ready:
            if fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
                self._woken = False
            else:
                callback = self._callbacks.get(fd)
                if callback is not None:
                    callback(events)
        if self._came:  # after the callbacks, which clients may wait for
            self._came = False
            if self.lingering is not None:
                self.lingering.came(self._began / 1e9)
        tasks = len(self._tasks)
        for _ in range(tasks):
            self._tasks.popleft()()
        return tasks

    def _look(self, lingering: SpinPolicy, sleep: float | None) -> list[tuple[int, int]]:
        """Returns the ready sockets: polls for a while after work was done, then sleeps."""
        poll, ready = self._epoll.poll, None
        while lingering.spins(time.perf_counter()):
            ready = poll(0)
            if ready or self._tasks:
                break
        if not (ready or self._tasks):
            ready = poll(sleep) if sleep is not None else poll()
        self._came = bool(ready)
        return ready or []

    def _expect(self) -> list[tuple[int, int]]:
        """Polls for ready sockets for a short time."""
        poll, clock = self._epoll.poll, time.perf_counter
        until = clock() + self.expected_s
        while not (ready := poll(0)) and not self._tasks and clock() < until:
            pass
        return ready

    def _nap(self, seconds: float) -> list[tuple[int, int]]:
        """Returns the ready sockets, at once or after a sleep shorter than those of epoll, which counts
        milliseconds."""
        poll, nap = self._epoll.poll, self.on_nap
        while (awake := nap()) is None:
            ready = poll(0)
            if ready or self._tasks:
                return ready
        if awake or select.select((self._epoll,), (), (), seconds)[0]:  # which sleeps microseconds
            return poll(0)
        return []

    def _stop(self) -> None:
        self._stopping = True
