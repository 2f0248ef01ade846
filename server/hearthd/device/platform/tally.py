"""Three sums in one integer, so that a launch that is counted costs one addition.

A launch weighs its threads, its occupancy and itself, each in a separate field; a tally is the sum of weights. Fields
are so wide that none runs over into the next: 2^48 launches are nine years at a million a second.
"""

from __future__ import annotations

from typing import NamedTuple

FULL = 10_000
"""Occupancy of a multiprocessor that is filled, in hundredths of a percent."""

_LAUNCHES = 0
_MEASURED = 48
_OCCUPANCY = 96
_THREADS = 160
_COUNT = (1 << 48) - 1
_SUM = (1 << 64) - 1


class Tally(NamedTuple):
    """Decoded sum of weights. `occupancy` is the sum over the `measured` launches, each `FULL` at the most."""

    launches: int
    threads: int
    measured: int
    occupancy: int


def weigh(threads: int, occupancy: int | None) -> int:
    """The weight of one launch: its threads in all (grid times block), and its occupancy where it is known."""
    weight = 1 << _LAUNCHES | threads << _THREADS
    if occupancy is not None:
        weight += (1 << _MEASURED) + (min(max(occupancy, 0), FULL) << _OCCUPANCY)
    return weight


def read(tally: int) -> Tally:
    """The sums behind a tally."""
    return Tally(
        launches=tally >> _LAUNCHES & _COUNT,
        threads=tally >> _THREADS,
        measured=tally >> _MEASURED & _COUNT,
        occupancy=tally >> _OCCUPANCY & _SUM,
    )
