"""Lines of the log that would come again and again: one of each kind a minute. Pure, bounded."""

from __future__ import annotations

from collections.abc import Hashable

PERIOD_S = 60.0
_MOST = 1024


class Seldom:
    """Says when something is to be logged again."""

    def __init__(self, period: float = PERIOD_S) -> None:
        self._period = period
        self._last: dict[Hashable, float] = {}

    def due(self, kind: Hashable, now: float) -> bool:
        """Whether a line of this kind is due; it counts as written then."""
        if now - self._last.get(kind, -self._period) < self._period:
            return False
        self._last.pop(kind, None)
        self._last[kind] = now
        if len(self._last) > _MOST:
            del self._last[next(iter(self._last))]
        return True
