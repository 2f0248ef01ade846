"""Report of `hearth bench`, as text and as a JSON document."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hearth.cli.format.complaint import one_line
from hearth.cli.format.table import number, table
from hearth_proto import VERSION

if TYPE_CHECKING:
    from hearth.cli.bench.figures import Figure
    from hearth.cli.bench.floor_process import Kind
    from hearth.cli.bench.sampling import Measurement

_HEADER = ("", "p50", "p90", "p99", "unit", "n", "floor", "ratio", "floor measured")
_OVER = {"unix": "a Unix socket", "tcp": "loopback TCP"}
_NUMBERS = frozenset({1, 2, 3, 5, 6, 7})


@dataclass(frozen=True)
class BenchReport:
    """Figures of one run, with a description of the daemon, the device and this machine."""

    target: str
    on_loopback: bool
    daemon_version: str
    node: str
    device: int
    device_name: str
    backend: str
    quick: bool
    seconds: float
    floors_over: Kind
    loop: str
    """Event loop of the floors' process."""
    figures: Sequence[Figure]

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON document."""
        return {
            "target": self.target,
            "daemon": {"version": self.daemon_version, "node": self.node},
            "device": {"ordinal": self.device, "name": self.device_name, "backend": self.backend},
            "client": {
                "host": platform.node(),
                "system": f"{platform.system()} {platform.machine()}",
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "version": VERSION,
            },
            "floors": {"over": self.floors_over, "event_loop": self.loop},
            "quick": self.quick,
            "seconds": round(self.seconds, 3),
            "figures": [figure.to_json() for figure in self.figures],
        }

    def to_text(self) -> str:
        """Returns a heading, the table, and an explanation."""
        rows = [row for figure in self.figures for row in _rows(figure)]
        heading = (
            f"{self.target}, hearthd {self.daemon_version}; device {self.device}: {self.device_name} ({self.backend})\n"
            f"from {platform.node()}, Python {platform.python_version()}, {self.seconds:.1f} s"
        )
        reading = (
            "p50, p90, p99: 50, 90 and 99 of 100 samples were at least as good. ratio: p50 divided by the floor's p50, "
            f"which is what\nthis machine achieves without Hearth over {_OVER[self.floors_over]}, measured in the same "
            "run. The ratio of a time is at least about\n1, that of a rate at most about 1."
        )
        if not self.on_loopback:
            reading += "\nThe daemon is on another host; the floors do not include the network in between."
        return f"{heading}\n\n{table(_HEADER, rows, _NUMBERS)}\n\n{reading}"


def _rows(figure: Figure) -> list[tuple[str, ...]]:
    """Returns the figure's row, and a row for each further floor."""
    measurement = figure.measurement
    if figure.error is not None:
        return [(measurement.name, f"not measured: {one_line(figure.error.message)}")]
    percentiles = measurement.percentiles()
    values = (*map(number, percentiles[:3]), measurement.unit, str(percentiles.n))
    first_floor, *further_floors = (_floor_cells(figure, floor) for floor in figure.floors)
    return [(measurement.name, *values, *first_floor), *((*("",) * 6, *cells) for cells in further_floors)]


def _floor_cells(figure: Figure, floor: Measurement) -> tuple[str, ...]:
    return (number(floor.percentiles().p50), number(figure.ratio(floor)), floor.name)
