"""Heap trimming: decides when the front returns free heap memory to the system. Pure: the clock is passed in."""

from __future__ import annotations

QUIET = 5.0
"""Time, in seconds, without a session after which trimming delays no client."""
GROWTH = float(8 << 20)
"""Growth, in bytes, above the least memory so far from which trimming is worthwhile."""
STILL = 3.0
"""Time, in seconds, without further growth after which a burst of traffic counts as over."""
GRAIN = float(1 << 20)
"""Growth of the peak, in bytes, that counts as further growth. A session at work always moves the peak by a few
pages."""
INTERVAL = 5.0
"""Minimum interval, in seconds, between trimmings while there are sessions. Steady transfers reuse free memory, and
each page that was returned to the system costs time when it is used again."""
LONGEST = 60.0
"""Maximum interval in seconds. The interval doubles with each trimming after which the growth remains: the memory is
then in use, and may become free at any later time."""


class HeapTrimming:
    """Decides when the heap is trimmed.

    It is trimmed once after the last session has ended, and after a burst of traffic that made the process grow while
    sessions remain.

    Args:
        quiet: seconds without a session before the heap is trimmed.
    """

    def __init__(self, quiet: float = QUIET) -> None:
        self._quiet = quiet
        self._used = False
        self._since: float | None = None
        """The time since which there has been no session. None: there are sessions, or the heap was trimmed since."""
        self._floor: float | None = None
        """The least memory so far, in bytes."""
        self._peak, self._peak_at = 0.0, 0.0
        """The most memory since the last trimming, in bytes, and the time of the last growth by `GRAIN`."""
        self._left = 0.0
        """Memory after the last trimming, in bytes."""
        self._trimmed_at = -INTERVAL
        self._interval = INTERVAL

    def due(self, sessions: int, memory: float, now: float) -> bool:
        """Returns True if the heap has to be trimmed now.

        Args:
            sessions: present number of sessions. A session that opens and closes between two calls leaves little
                memory.
            memory: bytes of private memory of the process.
            now: seconds of a monotonic clock.
        """
        if self._floor is None or memory < self._floor:
            self._floor = memory
        if memory >= self._peak + GRAIN:
            self._peak, self._peak_at = memory, now
        return self._deserted(sessions, now) or self._burst_over(memory, now)

    def done(self, memory: float, now: float) -> None:
        """Notes a trimming, after which the process uses `memory` bytes."""
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
