"""Rates of counters over the last seconds. Pure: the time is handed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

WINDOW_S = 10.0
"""Seconds over which a rate is taken; less while less is known, more where no sample came in between."""
STEP_S = 0.5
"""A sample that comes sooner replaces the last one, so that few are kept at any rate of sampling."""
LATE_S = 3.0
"""Seconds within which counters count as those of now: device processes are asked every two seconds."""

Number = int | float


@dataclass(frozen=True)
class RatesView:
    """State of a `Rates`, for tests and diagnostics."""

    samples: int
    seconds: float
    """From the oldest sample to the newest."""


class Rates:
    """Rates of counters that never go down."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[str, Number]]] = deque()

    def inspect(self) -> RatesView:
        """Returns the number of samples that are kept, and the time that they span."""
        samples = self._samples
        return RatesView(len(samples), samples[-1][0] - samples[0][0] if samples else 0.0)

    def sample(self, now: float, counts: Mapping[str, Number]) -> None:
        """The counters at one time, no earlier than the last."""
        samples = self._samples
        if len(samples) > 1 and now - samples[-2][0] < STEP_S:
            samples.pop()
        samples.append((now, counts))
        while len(samples) > 2 and now - samples[1][0] >= WINDOW_S:
            samples.popleft()

    def per_second(self, now: float) -> dict[str, float]:
        """Each counter's rate; empty until two samples are there. A counter that came later began from 0."""
        if len(self._samples) < 2:
            return {}
        (since, before), (until, after) = self._samples[0], self._samples[-1]
        seconds = (until if now - until < LATE_S else now) - since
        if seconds <= 0:
            return {}
        return {name: max(0.0, (value - before.get(name, 0)) / seconds) for name, value in after.items()}
