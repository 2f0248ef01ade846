"""Repeated measurement of one operation: the durations of its runs, and their percentiles."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Better = Literal["lower", "higher"]
Unit = Literal["us", "ms", "1/s", "GB/s"]
After = Callable[[], object]
Once = Callable[[], After | None]
"""Operation that is timed; it may return a function to be called after the clock has stopped."""

_MAX_SAMPLES = 100_000


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


@dataclass
class Measurement:
    """An operation to time, of a daemon or of this machine alone, and its samples from all rounds."""

    key: str
    name: str
    unit: Unit
    opened: Callable[[], AbstractContextManager[Once]]
    """Context manager that prepares the operation, yields it, and cleans up."""
    amount: float = 1
    """Number of launches or bytes in one run, for rates."""
    samples: list[float] = field(default_factory=list)
    """Samples so far, in `unit`."""

    @property
    def better(self) -> Better:
        """Direction in which values improve: "lower" or "higher"."""
        return "lower" if self.unit in ("us", "ms") else "higher"

    def sample(self, seconds: float, minimum: int = 1) -> None:
        """Adds as many samples as fit into `seconds`, but at least `minimum`."""
        with self.opened() as once:
            self.samples += [self.value(duration) for duration in _measure_durations(once, seconds, minimum)]

    def percentiles(self) -> Percentiles:
        """Returns the percentiles of the samples. Raises `ValueError` if there are none."""
        return Percentiles.of(self.samples, self.better)

    def value(self, seconds: float) -> float:
        """Converts the duration of one run, `seconds`, to `unit`."""
        if self.unit == "us":
            return seconds * 1e6
        if self.unit == "ms":
            return seconds * 1e3
        return self.amount / seconds / (1e9 if self.unit == "GB/s" else 1)


def _measure_durations(once: Once, seconds: float, minimum: int) -> list[float]:
    """Returns the duration of each run in seconds, after a warm-up of a quarter of `seconds`.

    A run that takes longer than `seconds`, such as an upload over a slow network, is not repeated as warm-up.
    """
    started = time.perf_counter()
    first = _time_once(once)
    durations = [first] if first > seconds else []
    while not durations and time.perf_counter() < started + seconds / 4:
        _time_once(once)
    end = time.perf_counter() + (0 if durations else seconds)
    while len(durations) < minimum or (time.perf_counter() < end and len(durations) < _MAX_SAMPLES):
        durations.append(_time_once(once))
    return durations


def _time_once(once: Once) -> float:
    started = time.perf_counter_ns()
    after = once()
    elapsed_ns = time.perf_counter_ns() - started
    if after is not None:
        after()
    return max(elapsed_ns, 1) / 1e9
