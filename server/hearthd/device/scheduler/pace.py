"""Pace of a session: the number of commands for one slice. Pure; seconds of device time, and numbers of commands."""

from __future__ import annotations

import math

SLICE_S = 1e-3
"""Intended length of one slice: the time for which other sessions may have to wait for their turn."""

QUANTUM_S = 3e-3
"""Device time that a session of average weight gets each round."""

PATIENCE_S = 0.1
"""Time after which a slice is late, and other sessions run beside it."""

BESIDE_S = SLICE_S
"""Time for which a slice beside the turn of another session costs no more than its expected time alone."""

AHEAD = 2
"""Slices of the session with the turn that may be on the device at once, so that it does not run dry."""

MOST = 256
"""Commands of one slice, however short they are."""

FIRST = 2
"""Commands of the first slice of a session whose pace is unknown."""

_LESS = 0.5
_MORE = 0.1
"""Weight of the last slice in the expected time of a command, where the slice took less, and where it took more: the
measured time includes the delay until its end was noticed."""

_AGEING = 1.02


class Pace:
    """Expected device time of a session's commands."""

    __slots__ = ("fastest", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds of one command; 0: unknown."""
        self.fastest = 0.0
        """Least recent time of one command from its submission to its end, in seconds; 0: unknown."""

    def learn(self, count: int, seconds: float, elapsed: float) -> None:
        """Takes note that `count` commands took `seconds` as charged and `elapsed` by the clock."""
        if count <= 0:
            return
        each = max(seconds / count, 1e-7)
        new = 1.0 if not self.seconds else _LESS if each < self.seconds else _MORE
        self.seconds += new * (each - self.seconds)
        each = max(elapsed / count, 1e-7)
        self.fastest = min(each, self.fastest * _AGEING) if self.fastest else each

    def most(self, on_device: int, limit: float = SLICE_S) -> int:
        """Returns how many commands may follow those on the device so that all but the last take `limit` seconds.

        At least one where the device has none, however long it takes.
        """
        if not self.seconds:
            return max(FIRST - on_device, 0)
        least = int(not on_device)
        return max(least, min(math.ceil(min(limit / self.seconds, AHEAD * MOST)) - on_device, MOST))

    def owed(self, count: int) -> float:
        """Returns the expected time of `count` commands alone; infinite where it is unknown."""
        return self.fastest * count if self.fastest else math.inf
