"""Times at which the front gives free memory of its heap back to the system. Pure: the clock is passed in."""

from __future__ import annotations

QUIET = 5.0
"""Seconds without a session after which trimming delays no client."""
GROWTH = float(8 << 20)
"""Growth in bytes beyond the least memory so far that is worth a trimming."""
STILL = 3.0
"""Seconds without further growth, after which a burst of traffic is over."""
GRAIN = float(1 << 20)
"""Bytes beyond the peak that count as further growth: a session at work moves the peak by a few pages all the time."""
INTERVAL = 5.0
"""Seconds from one trimming to the next while there are sessions: steady transfers use what is free again and again,
and pay for each page that was given back."""
LONGEST = 60.0
"""Longest interval in seconds. The interval doubles with each trimming that leaves the growth: the memory is in use,
and may be released at any later time."""


class HeapTrimming:
    """Decides when the heap is trimmed: once after the last session has ended, and after a burst of traffic has made
    the process grow while sessions stay.

    Args:
        quiet: seconds without a session before the heap is trimmed.
    """

    def __init__(self, quiet: float = QUIET) -> None:
        self._quiet = quiet
        self._used = False
        self._since: float | None = None
        """The time since which there has been no session."""
        self._floor: float | None = None
        """Least bytes of memory so far."""
        self._peak, self._peak_at = 0.0, 0.0
        """Most bytes since the last trimming, and the time of the last growth by `GRAIN`."""
        self._left = 0.0
        """Bytes of memory after the last trimming."""
        self._trimmed_at = -INTERVAL
        self._interval = INTERVAL

    def due(self, sessions: int, memory: float, now: float) -> bool:
        """Returns True if the heap is to be trimmed now.

        Args:
            sessions: their present number. A session that comes and goes between two calls leaves little.
            memory: bytes of memory that the process has for itself.
            now: seconds of a monotonic clock.
        """
        if self._floor is None or memory < self._floor:
            self._floor = memory
        if memory >= self._peak + GRAIN:
            self._peak, self._peak_at = memory, now
        return self._deserted(sessions, now) or self._burst_over(memory, now)

    def done(self, memory: float, now: float) -> None:
        """Takes note of a trimming that has left the process `memory` bytes."""
        assert self._floor is not None
        self._peak = self._left = memory
        self._trimmed_at = now
        in_use = memory - self._floor >= GROWTH
        self._interval = min(2 * self._interval, LONGEST) if in_use else INTERVAL

    def _deserted(self, sessions: int, now: float) -> bool:
        if sessions:
            self._used, self._since = True, None
            return False
        if not self._used:
            return False
        if self._since is None:
            self._since = now
        if now - self._since < self._quiet:
            return False
        self._used, self._since = False, None
        return True

    def _burst_over(self, memory: float, now: float) -> bool:
        assert self._floor is not None
        grown_again = memory - self._left >= GROWTH
        interval = INTERVAL if grown_again else self._interval
        grown = memory - self._floor >= GROWTH
        return grown and now - self._peak_at >= STILL and now >= self._trimmed_at + interval
