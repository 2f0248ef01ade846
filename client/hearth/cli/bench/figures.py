"""Results of the measurements: a figure of the daemon, and the floors of this machine with which it is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hearth.cli.bench.sampling import Measurement
    from hearth.errors import HearthError


@dataclass
class Figure:
    """A row of the result. Its ratio refers to the first floor. `error`: reason for which it has no samples."""

    measurement: Measurement
    floors: tuple[Measurement, ...]
    error: HearthError | None = None

    def ratio(self, floor: Measurement) -> float:
        """Returns the ratio of the medians, Hearth's to the floor's.

        Hearth is slower than the floor if the ratio of times is above 1, or the ratio of rates below 1.
        """
        return self.measurement.percentiles().p50 / floor.percentiles().p50

    def to_json(self) -> dict[str, Any]:
        """Returns the figure's object of the JSON document."""
        measurement = self.measurement
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
        return {**document, **measurement.percentiles()._asdict(), "floor": first, "other_floors": further}

    def _floor(self, floor: Measurement) -> dict[str, Any]:
        return {
            "name": floor.name,
            "unit": floor.unit,
            **floor.percentiles()._asdict(),
            "ratio": self.ratio(floor),
        }
