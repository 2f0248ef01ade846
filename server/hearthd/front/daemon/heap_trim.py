"""When the front gives back what a burst of sessions left free in its heap. Pure: the clock is passed in."""

from __future__ import annotations

QUIET = 5.0
"""Seconds without a session after which it delays no client."""


class HeapTrimming:
    """Asked now and then; says yes once for each time that sessions were there and have been gone for `quiet`
    seconds."""

    def __init__(self, quiet: float = QUIET) -> None:
        self._quiet = quiet
        self._used = False
        self._since: float | None = None

    def due(self, sessions: int, now: float) -> bool:
        """`sessions`: how many there are now. One that comes and goes between two questions leaves little."""
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
