"""How long a session's commands stay in their row because a stream takes no more. Pure.

What cannot run yet may be put off, one command at a time, so that what is behind it for other streams goes on. That
takes several times as long as handing a launch to the driver, and where kernels are short the device would run dry
meanwhile. So as long as the stream gets on, the row stands still, as a thread would in cuLaunchKernel; where it does
not, a kernel may never end, and only what needs the stream has to wait for it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE_S = 0.01
"""How long without anything done on the stream the row stands still: so long a launch's way may take for each of a
window, which is more than it does."""


class Standstill(Generic[T]):
    """Of one row."""

    __slots__ = ("_seen", "_until", "stream")

    def __init__(self) -> None:
        self.stream: T | None = None
        """The stream before which the row stands still; None: it does not."""
        self._seen: tuple[int, int] | None = None
        self._until = 0.0

    def lasts(self, stream: int, done: int, now: float) -> bool:
        """Whether the row stands still before a stream that has so far `done` as many commands; `now` in seconds."""
        if (stream, done) != self._seen:
            self._seen = stream, done
            self._until = now + PATIENCE_S
        return now < self._until

    def left(self, now: float) -> float:
        """Seconds until it is asked for in vain, if nothing is done."""
        return max(0.0, self._until - now)
