"""Chances of a session with a late slice: when it gets another slice, whatever it owes. Pure.

A late kernel may wait for work behind it, such as a flag that a later kernel sets, so the session has to get some. A
kernel that is merely long would collect commands for as long as it runs, which the session has to pay for afterwards.
So the interval from one chance to the next doubles while no slice of the session completes.
"""

from __future__ import annotations

SHORTEST_S = 0.01
"""First interval, in seconds."""

LONGEST_S = 1.0
"""Longest interval, in seconds."""


class Chances:
    """The chances of one session.

    Attributes:
        at: the time of the next one, in seconds of the caller's clock.
    """

    __slots__ = ("_interval", "at")

    def __init__(self) -> None:
        self.at = 0.0
        self._interval = SHORTEST_S

    def take(self, now: float) -> bool:
        """Returns True if a chance is due, and takes it."""
        if now < self.at:
            return False
        self.at = now + self._interval
        self._interval = min(2 * self._interval, LONGEST_S)
        return True

    def completed(self) -> None:
        """Takes note that a slice of the session is done: the intervals begin anew."""
        self._interval = SHORTEST_S
