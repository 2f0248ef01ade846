"""Results of the measurements: a figure of the daemon, and the floors of this machine with which it is compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hearth.cli.bench.sampling import Better, Measurement
    from hearth.errors import HearthError


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
class Series:
    """Samples of one measurement, from all rounds."""

    measurement: Measurement
    samples: list[float] = field(default_factory=list)

    def percentiles(self) -> Percentiles:
        """Returns the percentiles of the samples. Raises `ValueError` if there are none."""
        return Percentiles.of(self.samples, self.measurement.better)


@dataclass
class Figure:
    """A row of the result. Its ratio refers to the first floor. `error`: reason for which it has no samples."""

    series: Series
    floors: tuple[Series, ...]
    error: HearthError | None = None

    def ratio(self, floor: Series) -> float:
        """Returns the ratio of the medians, Hearth's to the floor's.

        Hearth is slower than the floor if the ratio of times is above 1, or the ratio of rates below 1.
        """
        return self.series.percentiles().p50 / floor.percentiles().p50

    def to_json(self) -> dict[str, Any]:
        """Returns the figure's object of the JSON document."""
        measurement = self.series.measurement
        document: dict[str, Any] = {
            "figure": measurement.key,
            "name": measurement.name,
            "unit": measurement.unit,
            "better": measurement.better,
        }
        if measurement.unit == "GB/s":
            document["bytes"] = int(measurement.amount)
        if self.error is not None:
            error = self.error
            return {**document, "error": {"reason": error.reason, "message": error.message, "fix": error.fix}}
        first, *further = (self._floor(floor) for floor in self.floors)
        return {**document, **self.series.percentiles()._asdict(), "floor": first, "other_floors": further}

    def _floor(self, floor: Series) -> dict[str, Any]:
        measurement = floor.measurement
        return {
            "name": measurement.name,
            "unit": measurement.unit,
            **floor.percentiles()._asdict(),
            "ratio": self.ratio(floor),
        }
