"""Extra slices for a session with a late slice, whatever its debt. Pure.

A late kernel may wait for later work of the same session, such as a kernel that sets a flag, so the session must be
allowed some slices. If the kernel is merely long, it would collect commands for as long as it runs, and the session
would have to pay for them afterwards. Therefore the interval between two extra slices doubles while no slice of the
session completes.
"""

from __future__ import annotations

SHORTEST_S = 0.01
"""First interval, in seconds."""

LONGEST_S = 1.0
"""Longest interval, in seconds."""


class ExtraSlices:
    """Schedule of the extra slices of one session.

    Attributes:
      at: time of the next extra slice, in seconds of the caller's clock.
    """

    __slots__ = ("_interval", "at")

    def __init__(self) -> None:
        self.at = 0.0
        self._interval = SHORTEST_S

    def claim(self, now: float) -> bool:
        """Returns True if an extra slice may begin at time `now`, and schedules the next one."""
        if now < self.at:
            return False
        self.at = now + self._interval
        self._interval = min(2 * self._interval, LONGEST_S)
        return True

    def reset(self) -> None:
        """Resets the interval, because a slice of the session has completed."""
        self._interval = SHORTEST_S
