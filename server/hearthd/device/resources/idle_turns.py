"""How long launches are held back for work that the driver does only while no kernel runs.

At first not at all: a device that is not busy all the time comes to rest by itself. Then for a while, and as long not,
each time twice as long: what is queued is finite, so it comes to an end in one of these, and others keep at least half
of the device while a kernel runs on and on.
"""

from __future__ import annotations

PATIENCE_S = 0.005
"""How long it may take by itself."""

FIRST_S = 0.020
LONGEST_S = 5.0


def holding(waited: float) -> tuple[bool, float]:
    """Whether launches are held back after so many seconds of waiting, and for how much longer it stays so."""
    end = PATIENCE_S
    if waited < end:
        return False, end - waited
    length = FIRST_S
    while True:
        for held in (True, False):
            end += length
            if waited < end:
                return held, end - waited
        if length == LONGEST_S:
            rest = (waited - end) % (2 * length)
            return rest < length, length - rest % length
        length = min(2 * length, LONGEST_S)
