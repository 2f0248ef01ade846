"""Percentiles of samples, from good to bad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

Better = Literal["lower", "higher"]


class Percentiles(NamedTuple):
    """p99: 99 of 100 samples were at least as good. So of a rate it is the low end, as of a latency the high one."""

    p50: float
    p90: float
    p99: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float], better: Better) -> Percentiles:
        """Raises `ValueError` where there are no samples."""
        if not samples:
            raise ValueError("no samples")
        ordered = sorted(samples, reverse=better == "higher")
        return cls(quantile(ordered, 0.5), quantile(ordered, 0.9), quantile(ordered, 0.99), len(ordered))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the neighbours, as NumPy's default."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
