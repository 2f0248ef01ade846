"""Event loop of the device-handle thread: one epoll over sockets and wake-ups, and tasks posted by other threads.

Everything that uses CUDA or device state runs inside `Loop.run`, on the thread that called it. Other threads reach that
thread only through `post`.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable

from hearthd.device.platform.spin_policy import SpinPolicy

Task = Callable[[], object]

SHORT_S = 1e-3
"""Sleeps shorter than this, in seconds, are naps."""

EXPECTED_S = 1e-4
"""Time, in seconds, for which the loop polls only for the next request of a client that has just been answered."""


def countdown(count: int, callback: Callable[[], None]) -> Callable[[], None]:
    """Returns a function whose `count`-th call calls `callback`: it joins `count` completions, at least one."""

    def complete_one() -> None:
        nonlocal count
        count -= 1
        if not count:
            callback()

    return complete_one


class Loop:
    """Runs ready sockets, then posted tasks in order, then the `on_poll` hook, until `stop`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._tasks: deque[Task] = deque()
        self._woken = False
        self._stopping = False
        self.on_poll: Callable[[], float | None] = lambda: None
        """Called in each iteration. Returns the seconds that the loop may sleep; None: until an event."""
        self.on_nap: Callable[[], bool | None] = lambda: False
        """Called before the loop sleeps for less than a millisecond. Returns True to start the next iteration
        immediately, False to sleep, and None to be called again after a poll of sockets and tasks."""
        self.on_idle: Callable[[], None] = lambda: None
        """Called before the loop may sleep, to send gathered frames."""
        self.on_served: Callable[[], bool] = lambda: False
        """Called after a single ready socket was served. Returns True if the next request of its client is expected
        soon, and should be polled for before anything else."""
        self.on_iteration: Callable[[int], None] = lambda nanoseconds: None
        """Called with the duration of each iteration that did work, in nanoseconds, without sleep."""
        self._iteration_began_ns = 0
        self._found_events = False
        """True if the last spin-wait returned events; `_serve` then reports the end of the wait to the policy."""
        self.expected_s = EXPECTED_S
        """Time for which the next request of a client that has just been answered is polled for, in seconds."""
        self.lingering: SpinPolicy | None = None
        """Policy for polling after work was done, before the loop sleeps; None: the loop sleeps immediately."""

    def post(self, task: Task) -> None:
        """Runs `task` on the loop's thread, after the tasks posted before. May be called on any thread."""
        self._tasks.append(task)
        self.wake()

    def wake(self) -> None:
        """Makes a sleeping loop run one iteration. May be called on any thread."""
        if not self._woken:  # a race costs one more write, and never loses a wake-up
            self._woken = True
            os.eventfd_write(self._wake_fd, 1)

    def add_reader(self, fd: int, callback: Callable[[int], None]) -> None:
        """Calls `callback(events)` whenever `fd` is readable or has failed. Loop's thread only."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def watch(self, fd: int, *, reads: bool = True, writes: bool = False) -> None:
        """Selects the events of `fd` that are delivered to its callback. Errors are always delivered."""
        self._epoll.modify(fd, select.EPOLLIN * reads | select.EPOLLOUT * writes)

    def remove_reader(self, fd: int) -> None:
        """Ends `add_reader` for `fd`; no effect if it has no callback. Loop's thread only."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def stop(self) -> None:
        """Ends `run` after the tasks posted so far have run. May be called on any thread."""
        self.post(self._stop)

    def run(self) -> None:
        """Runs until stopped.

        An exception in a task ends the loop and is raised, so posted tasks must catch their errors.
        """
        while not self._stopping:
            sleep = self.on_poll()
            if not self._tasks:
                self.on_idle()
            if self._iteration_began_ns:
                self.on_iteration(time.perf_counter_ns() - self._iteration_began_ns)
                self._iteration_began_ns = 0
                self.linger()
            self.run_once(0.0 if self._tasks else sleep)

    def linger(self) -> None:
        """Starts the spin-wait after work was done, because the next request may arrive soon. Loop's thread only."""
        if self.lingering is not None:
            self.lingering.begin(time.perf_counter())

    def close(self) -> None:
        """Releases the descriptors. To be called after `run` has ended; later calls of `post` and `wake` do nothing."""
        self._woken = True
        self._epoll.close()
        os.close(self._wake_fd)

    def run_once(self, sleep: float | None) -> None:
        """Runs one iteration: waits for a ready socket or a posted task, then serves the sockets and tasks.

        Sleeps at most `sleep` seconds (None: without limit). Called in a loop by `run`. Loop's thread only.
        """
        if self.lingering is not None and (sleep is None or sleep >= SHORT_S):
            ready = self._spin(self.lingering, sleep)
        elif sleep is None:
            ready = self._epoll.poll()
        elif 0.0 < sleep < SHORT_S:
            ready = self._nap(sleep)
        else:
            ready = self._epoll.poll(sleep)
        while not self._serve(ready) and len(ready) == 1 and self.on_served():
            self.on_iteration(time.perf_counter_ns() - self._iteration_began_ns)
            ready = self._expect()

    def _serve(self, ready: list[tuple[int, int]]) -> int:
        """Serves ready sockets and the posted tasks. Returns the number of tasks."""
        self._iteration_began_ns = time.perf_counter_ns() if ready or self._tasks else 0
        for fd, events in ready:
            if fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
                self._woken = False
            else:
                callback = self._callbacks.get(fd)
                if callback is not None:
                    callback(events)
        if self._found_events:  # after the callbacks, which clients may wait for
            self._found_events = False
            if self.lingering is not None:
                self.lingering.wait_ended(self._iteration_began_ns / 1e9)
        tasks = len(self._tasks)
        for _ in range(tasks):
            self._tasks.popleft()()
        return tasks

    def _spin(self, lingering: SpinPolicy, sleep: float | None) -> list[tuple[int, int]]:
        """Returns the ready sockets. Polls as long as the policy allows, then sleeps for at most `sleep` seconds."""
        poll, ready = self._epoll.poll, None
        while lingering.spins(time.perf_counter()):
            ready = poll(0)
            if ready or self._tasks:
                break
        if not (ready or self._tasks):
            ready = poll(sleep) if sleep is not None else poll()
        self._found_events = bool(ready)
        return ready or []

    def _expect(self) -> list[tuple[int, int]]:
        """Polls for ready sockets for at most `EXPECTED_S`, and returns them."""
        poll, clock = self._epoll.poll, time.perf_counter
        until = clock() + self.expected_s
        while not (ready := poll(0)) and not self._tasks and clock() < until:
            pass
        return ready

    def _nap(self, seconds: float) -> list[tuple[int, int]]:
        """Returns the ready sockets, after at most `seconds` of sleep.

        Used for sleeps that epoll, which counts milliseconds, cannot make.
        """
        poll, nap = self._epoll.poll, self.on_nap
        while (awake := nap()) is None:
            ready = poll(0)
            if ready or self._tasks:
                return ready
        if awake or select.select((self._epoll,), (), (), seconds)[0]:  # `select` sleeps with microsecond resolution
            return poll(0)
        return []

    def _stop(self) -> None:
        self._stopping = True
