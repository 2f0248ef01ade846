"""Context of a group of rows: the daemon, the baseline's server, and the number of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import processes
from tests.bench.processes import Daemon
from tests.bench.stats import Samples, merge


@dataclass(frozen=True)
class Side:
    """One side of a row: a worker's function ("rows.launches:hearth") and its keyword arguments."""

    function: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Context:
    """Context of one run."""

    folder: Path
    backend: str
    """Backend of the daemon: "cuda" or "cpu"."""
    device_count: int
    quick: bool
    daemon: Daemon
    echo_tcp: str
    echo_unix: str
    cupy_alone: Sequence[float] = ()
    """Seconds to a CuPy process's first result before the daemon was started; empty if not measured."""

    @property
    def cuda(self) -> bool:
        """True if CuPy is available as a baseline."""
        return self.backend == "cuda"

    @property
    def rounds(self) -> int:
        """Number of rounds in which the sides alternate."""
        return 1 if self.quick else 2

    def pick(self, quick: int, full: int) -> int:
        """Returns a count that depends on --quick."""
        return quick if self.quick else full

    def run(self, side: Side) -> Any:
        """Runs one side in a new process; returns its result."""
        return processes.run_worker(side.function, side.arguments, processes.environment(self.folder))

    def run_together(
        self, function: str, arguments: Sequence[Mapping[str, Any]], *, barrier: bool = False
    ) -> list[Any]:
        """Runs one worker for each of `arguments`, all concurrently."""
        env = processes.environment(self.folder)
        return processes.run_together(function, arguments, env, barrier=barrier)

    def take_turns(self, sides: Mapping[str, Side]) -> dict[str, Samples]:
        """Runs the sides alternately, for `rounds` rounds, so that a drift of the machine affects all of them."""
        parts: dict[str, list[Samples]] = {name: [] for name in sides}
        for turn in range(self.rounds):
            for name in sides if turn % 2 == 0 else reversed(list(sides)):
                parts[name].append(self.run(sides[name]))
        return {name: merge(samples) for name, samples in parts.items()}
