"""Sequence of the measurements: every figure is measured together with its floors, in several rounds.

Figures and floors alternate, so that other activity of the machine affects both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hearth.cli.bench.figures import Figure
from hearth.cli.bench.floor_process import FloorError
from hearth.errors import (
    ClosedError,
    DeviceLostError,
    HearthError,
    OutOfMemoryError,
    SessionExpiredError,
    UnavailableError,
)

if TYPE_CHECKING:
    from hearth.cli.bench.floors import Floors
    from hearth.cli.bench.probes import Probes
    from hearth.cli.bench.sampling import Measurement

_FATAL = (UnavailableError, DeviceLostError, SessionExpiredError, ClosedError)
"""Errors after which nothing else can be measured, or nothing that represents a healthy daemon."""


_MIN_FLOOR_SAMPLES = 3
"""Minimum number of samples of a floor in one round. A figure needs only one, because it may take long over a slow
network."""


class Effort(NamedTuple):
    """Limits on the duration of a run."""

    rounds: int
    seconds: float
    """Seconds for one figure in one round, and a quarter of that for warming up."""
    floor_seconds: float
    launches: int
    """Number of pipelined launches in one sample."""


FULL = Effort(rounds=2, seconds=0.4, floor_seconds=0.2, launches=2000)
QUICK = Effort(rounds=1, seconds=0.08, floor_seconds=0.03, launches=1000)


def plan(probes: Probes, floors: Floors, sizes: Sequence[int], effort: Effort) -> list[Figure]:
    """Returns all figures, without any samples yet."""
    from hearth.cli.bench.probes import SMALL

    count = effort.launches
    pairs: list[tuple[Measurement, tuple[Measurement, ...]]] = [
        (probes.launch(), (floors.launch(),)),
        (probes.launches(count), (floors.launches(count),)),
        (probes.small(), (floors.small(SMALL),)),
        *((probes.upload(size), (floors.upload(size), floors.copy(size))) for size in sizes),
        *((probes.download(size), (floors.download(size), floors.copy(size))) for size in sizes),
        (probes.connection(), (floors.connection(),)),
    ]
    shared: dict[str, Measurement] = {}
    return [
        Figure(measurement, tuple(shared.setdefault(floor.key, floor) for floor in floors_of_it))
        for measurement, floors_of_it in pairs
    ]


def run(
    figures: Sequence[Figure], effort: Effort, settle: Callable[[], None], show_progress: Callable[[str], None]
) -> None:
    """Measures all figures.

    An error of one figure is stored in the figure, and the others are still measured. Raises errors that affect all
    figures, such as `UnavailableError` and `FloorError`.
    """
    for round_ in range(1, effort.rounds + 1):
        measured: set[str] = set()
        for figure in figures:
            if figure.error is not None:
                continue
            show_progress(f"{round_}/{effort.rounds}: {figure.measurement.name}")
            _measure(figure, effort.seconds, settle)
            if figure.error is not None:
                continue
            for floor in figure.floors:
                if floor.key not in measured:
                    measured.add(floor.key)
                    _sample_floor(floor, effort.floor_seconds)


def _measure(figure: Figure, seconds: float, settle: Callable[[], None]) -> None:
    try:
        figure.measurement.sample(seconds)
    except _FATAL:
        raise
    except HearthError as error:
        figure.error = error
    except MemoryError:
        figure.error = OutOfMemoryError(
            "this machine does not have enough memory for the measurement.",
            reason="OUT_OF_MEMORY",
            fix="use a smaller --max-size.",
        )
    if figure.error is not None:
        settle()


def _sample_floor(floor: Measurement, seconds: float) -> None:
    import grpc

    try:
        floor.sample(seconds, _MIN_FLOOR_SAMPLES)
    except (OSError, MemoryError, StopIteration, grpc.RpcError) as error:
        raise FloorError(f"this machine's floor cannot be measured ({floor.name}): {error!r}") from None
