"""Standstill: how long the commands of a session stay in the queue because a stream is full. Pure.

A command that cannot run yet may be deferred, so that later commands for other streams continue. Deferring takes
several times as long as submitting a launch to the driver, so with short kernels the device would run out of work
meanwhile. Therefore the queue stands still while the stream makes progress, as a thread would block in cuLaunchKernel.
If the stream makes no progress, a kernel may never end, and only the commands that need the stream must wait for it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

TIMEOUT_S = 0.01
"""Seconds for which the queue stands still while the stream completes no command. Longer than the launch latency of all
commands of a window."""


class Standstill(Generic[T]):
    """The standstill of one queue."""

    __slots__ = ("_last_progress", "_until", "stream", "timeout")

    def __init__(self, timeout: float = TIMEOUT_S) -> None:
        self.timeout = timeout
        """Seconds for which the queue stands still while the stream completes no command."""
        self.stream: T | None = None
        """The full stream before which the queue stands still; None if the queue does not stand still."""
        self._last_progress: tuple[int, int] | None = None
        self._until = 0.0

    def continues(self, stream: int, done: int, now: float) -> bool:
        """True if the queue stands still before a stream with `done` completed commands; `now` is in seconds."""
        if (stream, done) != self._last_progress:
            self._last_progress = stream, done
            self._until = now + self.timeout
        return now < self._until

    def seconds_left(self, now: float) -> float:
        """Returns the seconds until `continues` returns False if no command completes."""
        return max(0.0, self._until - now)
