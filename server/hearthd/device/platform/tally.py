"""Tally: several sums in one integer, so that counting a launch costs one addition.

The weight of a launch contains its threads, its occupancy and a count, each in a separate field; a tally is a sum of
weights. The fields are wide enough not to overflow: 2^48 launches are nine years at a million per second.
"""

from __future__ import annotations

from typing import NamedTuple

FULL = 10_000
"""Occupancy of a full multiprocessor, in hundredths of a percent."""

_LAUNCHES = 0
_MEASURED = 48
_OCCUPANCY = 96
_THREADS = 160
_COUNT = (1 << 48) - 1
_SUM = (1 << 64) - 1


class Tally(NamedTuple):
    """Decoded sum of weights. `occupancy` is the sum over the `measured` launches, each at most `FULL`."""

    launches: int
    threads: int
    measured: int
    occupancy: int


def launch_weight(threads: int, occupancy: int | None) -> int:
    """Returns the weight of one launch.

    `threads` is grid times block; `occupancy` is in units of `FULL`, or None if unknown.
    """
    weight = 1 << _LAUNCHES | threads << _THREADS
    if occupancy is not None:
        weight += (1 << _MEASURED) + (min(max(occupancy, 0), FULL) << _OCCUPANCY)
    return weight


def read(tally: int) -> Tally:
    """Decodes a tally."""
    return Tally(
        launches=tally >> _LAUNCHES & _COUNT,
        threads=tally >> _THREADS,
        measured=tally >> _MEASURED & _COUNT,
        occupancy=tally >> _OCCUPANCY & _SUM,
    )
