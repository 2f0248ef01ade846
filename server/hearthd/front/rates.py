"""Rates of counters over the last seconds. Pure: the time is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

WINDOW_S = 10.0
"""Time, in seconds, over which a rate is computed. Shorter while fewer samples exist, longer if no sample was taken in
between."""
STEP_S = 0.5
"""Minimum interval between kept samples, in seconds. An earlier sample replaces the last one, which limits their
number."""
LATE_S = 3.0
"""Age, in seconds, up to which the last sample counts as present. Device processes are asked every two seconds."""

Number = int | float


@dataclass(frozen=True)
class RatesView:
    """State of a `Rates`, for tests and diagnostics."""

    samples: int
    seconds: float
    """Time, in seconds, from the oldest sample to the newest."""


class Rates:
    """Rates of counters that never decrease."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[str, Number]]] = deque()

    def inspect(self) -> RatesView:
        """Returns the number of samples that are kept, and the time that they span."""
        samples = self._samples
        return RatesView(len(samples), samples[-1][0] - samples[0][0] if samples else 0.0)

    def sample(self, now: float, counts: Mapping[str, Number]) -> None:
        """Adds the values of the counters at the time `now`, which must not be earlier than the last one."""
        samples = self._samples
        if len(samples) > 1 and now - samples[-2][0] < STEP_S:
            samples.pop()
        samples.append((now, counts))
        while len(samples) > 2 and now - samples[1][0] >= WINDOW_S:
            samples.popleft()

    def per_second(self, now: float) -> dict[str, float]:
        """Returns each counter's rate per second; empty until there are two samples. A counter that appeared later is
        assumed to have started from 0."""
        if len(self._samples) < 2:
            return {}
        (since, before), (until, after) = self._samples[0], self._samples[-1]
        seconds = (until if now - until < LATE_S else now) - since
        if seconds <= 0:
            return {}
        return {name: max(0.0, (value - before.get(name, 0)) / seconds) for name, value in after.items()}
