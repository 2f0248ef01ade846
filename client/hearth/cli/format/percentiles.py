"""Percentiles of samples, ordered from best to worst."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

Better = Literal["lower", "higher"]


class Percentiles(NamedTuple):
    """Percentiles of `n` samples. p99: 99 of 100 samples were at least as good.

    So it is the low end of a rate, and the high end of a latency.
    """

    p50: float
    p90: float
    p99: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float], better: Better) -> Percentiles:
        """Returns the percentiles of `samples`. Raises `ValueError` if there are none."""
        if not samples:
            raise ValueError("no samples")
        ordered = sorted(samples, reverse=better == "higher")
        return cls(quantile(ordered, 0.5), quantile(ordered, 0.9), quantile(ordered, 0.99), len(ordered))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns a quantile of sorted samples, by linear interpolation between neighbours, like NumPy's default."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
