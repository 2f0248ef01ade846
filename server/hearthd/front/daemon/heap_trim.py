"""Trimming of the heap after a burst of sessions, when the front gives free memory back. Pure: the clock is passed
in."""

from __future__ import annotations

QUIET = 5.0
"""Seconds without a session after which it delays no client."""


class HeapTrimming:
    """Decides when the heap is trimmed: once after each time that sessions were there and have been gone for `quiet`
    seconds."""

    def __init__(self, quiet: float = QUIET) -> None:
        self._quiet = quiet
        self._used = False
        self._since: float | None = None

    def due(self, sessions: int, now: float) -> bool:
        """Returns True if the heap is to be trimmed now. `sessions`: their present number. A session that comes and
        goes between two calls leaves little."""
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
