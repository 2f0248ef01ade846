"""Heap trimming: decides when the front returns free heap memory to the system. Pure: the clock is passed in."""

from __future__ import annotations

import math

IDLE_S = 5.0
"""Time, in seconds, without a session after which trimming delays no client."""
MIN_GROWTH_BYTES = float(8 << 20)
"""Growth, in bytes, above the least memory so far from which trimming is worthwhile."""
SETTLE_S = 3.0
"""Time, in seconds, without further growth after which a burst of traffic counts as ended."""
PEAK_GROWTH_BYTES = float(1 << 20)
"""Growth of the peak, in bytes, that counts as further growth. A session at work always moves the peak by a few
pages."""
MIN_INTERVAL_S = 5.0
"""Minimum interval, in seconds, between trimmings while there are sessions. Steady transfers reuse free memory, and
each page that was returned to the system costs time when it is used again."""
MAX_INTERVAL_S = 60.0
"""Maximum interval in seconds. The interval doubles with each trimming after which the growth remains: the memory is
then in use, and may become free at any later time."""


class HeapTrimming:
    """Decides when the heap is trimmed.

    It is trimmed once after the last session has ended, and after a burst of traffic that made the process grow while
    sessions remain.
    """

    def __init__(self) -> None:
        self._idle_since: float | None = math.inf
        """The time since which there has been no session. None: there are sessions. Infinite: the heap was trimmed
        since, or there was no session yet."""
        self._floor: float | None = None
        """The least memory so far, in bytes."""
        self._peak, self._peak_at = 0.0, 0.0
        """The most memory since the last trimming, in bytes, and the time of the last growth by `PEAK_GROWTH_BYTES`."""
        self._trimmed_memory = 0.0
        """Memory after the last trimming, in bytes."""
        self._trimmed_at = -MIN_INTERVAL_S
        self._interval = MIN_INTERVAL_S

    def is_due(self, sessions: int, memory: float, now: float) -> bool:
        """Returns True if the heap must be trimmed now.

        Args:
            sessions: present number of sessions. A session that opens and closes between two calls leaves little
                memory.
            memory: bytes of private memory of the process.
            now: seconds of a monotonic clock.
        """
        if self._floor is None or memory < self._floor:
            self._floor = memory
        if memory >= self._peak + PEAK_GROWTH_BYTES:
            self._peak, self._peak_at = memory, now
        return self._is_idle_trim_due(sessions, now) or self._is_burst_over(memory, now)

    def record_trim(self, memory: float, now: float) -> None:
        """Notes a trimming, after which the process uses `memory` bytes."""
        assert self._floor is not None
        self._peak = self._trimmed_memory = memory
        self._trimmed_at = now
        in_use = memory - self._floor >= MIN_GROWTH_BYTES
        self._interval = min(2 * self._interval, MAX_INTERVAL_S) if in_use else MIN_INTERVAL_S

    def _is_idle_trim_due(self, sessions: int, now: float) -> bool:
        if sessions:
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since < IDLE_S:
            return False
        self._idle_since = math.inf
        return True

    def _is_burst_over(self, memory: float, now: float) -> bool:
        assert self._floor is not None
        grown_again = memory - self._trimmed_memory >= MIN_GROWTH_BYTES
        interval = MIN_INTERVAL_S if grown_again else self._interval
        grown = memory - self._floor >= MIN_GROWTH_BYTES
        return grown and now - self._peak_at >= SETTLE_S and now >= self._trimmed_at + interval
