"""Pace of a session: determines the number of commands in one slice. Pure. Times are seconds of device time."""

from __future__ import annotations

import math

SLICE_S = 1e-3
"""Intended length of one slice, in seconds: the time that other sessions may have to wait."""

QUANTUM_S = 3e-3
"""Device time, in seconds, that a session of average weight receives in each round."""

LATE_S = 0.1
"""Time, in seconds, after which a slice is late and other sessions run concurrently with it."""

BESIDE_S = SLICE_S
"""Time, in seconds, for which a slice during another session's turn costs no more than its expected time alone."""

MAX_SLICES_ON_DEVICE = 2
"""Number of slices of the session with the turn that may be on the device at the same time, so that the device does not
run out of work between them."""

MAX_COMMANDS = 256
"""Largest number of commands in one slice, however short they are."""

FIRST_SLICE = 2
"""Number of commands in the first slice of a session whose pace is unknown."""

_FASTER = 0.5
_SLOWER = 0.1
"""Weight of the last slice in the expected time of a command: `_FASTER` if the slice was faster than expected,
`_SLOWER` if it was slower. The measured time includes the delay until completion was noticed, so slower values count
less."""

_AGEING = 1.02


class Pace:
    """Expected device time of a session's commands."""

    __slots__ = ("fastest", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Expected time of one command, in seconds; 0 if unknown."""
        self.fastest = 0.0
        """Shortest recent time of one command from submission to completion, in seconds; 0 if unknown."""

    def update(self, count: int, seconds: float, elapsed: float) -> None:
        """Updates the pace: `count` commands took `seconds` of charged device time and `elapsed` seconds in total."""
        if count <= 0:
            return
        per_command = max(seconds / count, 1e-7)
        weight = 1.0 if not self.seconds else _FASTER if per_command < self.seconds else _SLOWER
        self.seconds += weight * (per_command - self.seconds)
        per_command = max(elapsed / count, 1e-7)
        self.fastest = min(per_command, self.fastest * _AGEING) if self.fastest else per_command

    def slice_size(self, on_device: int, limit: float = SLICE_S) -> int:
        """Returns how many commands may follow those on the device so that all but the last take `limit` seconds.

        Returns at least one if the device has none of the session's commands, however long one takes.
        """
        if not self.seconds:
            return max(FIRST_SLICE - on_device, 0)
        minimum = int(not on_device)
        return max(
            minimum,
            min(math.ceil(min(limit / self.seconds, MAX_SLICES_ON_DEVICE * MAX_COMMANDS)) - on_device, MAX_COMMANDS),
        )

    def expected_time(self, count: int) -> float:
        """Returns the expected time, in seconds, of `count` commands that run alone; infinity if unknown."""
        return self.fastest * count if self.fastest else math.inf
