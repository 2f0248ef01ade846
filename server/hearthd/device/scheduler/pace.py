"""How much of a session's work goes to the device in one go. Pure; seconds of device time, and numbers of commands."""

from __future__ import annotations

import math

SLICE_S = 1e-3
"""What one slice should take: as long as others may have to wait for a turn that is theirs."""

QUANTUM_S = 3e-3
"""Device time that a session of average weight gets each round."""

PATIENCE_S = 0.1
"""How long a slice may take before others are let go beside it."""

CHANCE_S = 0.01
"""How often a session with a slice that has taken too long is given another, whatever it owes: what its kernel waits
for may be behind it, and while the kernel runs the session is charged as much as it is given."""

BESIDE_S = SLICE_S
"""How long a slice beside the turn of another costs no more than it should take by itself."""

AHEAD = 2
"""Slices of the one whose turn it is that may be on the device, so that it does not run dry."""

MOST = 256
"""Commands of one slice, however short they are."""

FIRST = 2
"""Commands of a session of which nothing is known yet."""

_LESS = 0.5
_MORE = 0.1
"""The weight of the last slice in what a command is expected to take, where it took less, and where it took more: what
it took has in it how late that was noticed."""

_AGEING = 1.02


class Pace:
    """What a session's commands take, as far as it is known."""

    __slots__ = ("fastest", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of one command; 0: nobody knows."""
        self.fastest = 0.0
        """The least that one has taken from being given to the device to its end, of late; 0: nobody knows."""

    def learn(self, count: int, seconds: float, elapsed: float) -> None:
        """So many commands took so long, by what was charged, and by the clock."""
        if count <= 0:
            return
        each = max(seconds / count, 1e-7)
        new = 1.0 if not self.seconds else _LESS if each < self.seconds else _MORE
        self.seconds += new * (each - self.seconds)
        each = max(elapsed / count, 1e-7)
        self.fastest = min(each, self.fastest * _AGEING) if self.fastest else each

    def most(self, on_device: int, limit: float = SLICE_S) -> int:
        """How many commands may follow those that are on the device, so that all but the last take `limit` seconds.

        At least one where there is none, however long it takes.
        """
        if not self.seconds:
            return max(FIRST - on_device, 0)
        least = int(not on_device)
        return max(least, min(math.ceil(min(limit / self.seconds, AHEAD * MOST)) - on_device, MOST))

    def owed(self, count: int) -> float:
        """What so many commands should take by themselves; infinite where nobody knows."""
        return self.fastest * count if self.fastest else math.inf
