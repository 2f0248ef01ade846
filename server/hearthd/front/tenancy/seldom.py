"""Throttling of log lines that repeat: one of each kind a minute. Pure, bounded."""

from __future__ import annotations

from collections.abc import Hashable

PERIOD_S = 60.0
_MOST = 1024


class LogThrottle:
    """Decides when a line of a kind is logged again."""

    def __init__(self, period: float = PERIOD_S) -> None:
        self._period = period
        self._last: dict[Hashable, tuple[float, int]] = {}
        """By kind: the time of its last line, and how often it happened since."""

    def due(self, kind: Hashable, now: float) -> bool:
        """Returns True if a line of this kind is due, and counts it as written."""
        return self.times(kind, now) > 0

    def times(self, kind: Hashable, now: float) -> int:
        """Returns the events of this kind since its last line, this one included, and counts a line as written. 0: no
        line is due."""
        last, unlogged = self._last.get(kind, (float("-inf"), 0))
        if now - last < self._period:
            self._last[kind] = (last, unlogged + 1)
            return 0
        self._last.pop(kind, None)
        self._last[kind] = (now, 0)
        if len(self._last) > _MOST:
            del self._last[next(iter(self._last))]
        return unlogged + 1
