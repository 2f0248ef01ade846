"""Lines of the log that would come again and again: one of each kind a minute. Pure, bounded."""

from __future__ import annotations

from collections.abc import Hashable

PERIOD_S = 60.0
_MOST = 1024


class LogThrottle:
    """Says when something is to be logged again."""

    def __init__(self, period: float = PERIOD_S) -> None:
        self._period = period
        self._last: dict[Hashable, tuple[float, int]] = {}
        """By kind: the time of its last line, and how often it happened since."""

    def due(self, kind: Hashable, now: float) -> bool:
        """Whether a line of this kind is due; it counts as written then."""
        return self.times(kind, now) > 0

    def times(self, kind: Hashable, now: float) -> int:
        """How often this kind happened since its last line, this time included, where a line is due; it counts as
        written then. 0: none is due."""
        last, unlogged = self._last.get(kind, (float("-inf"), 0))
        if now - last < self._period:
            self._last[kind] = (last, unlogged + 1)
            return 0
        self._last.pop(kind, None)
        self._last[kind] = (now, 0)
        if len(self._last) > _MOST:
            del self._last[next(iter(self._last))]
        return unlogged + 1
