"""Graphs: recorded work that the thread of a stream runs as one unit."""

from __future__ import annotations

from collections.abc import Sequence

from hearthd.device.backend.graph_nodes import Enqueues, GraphNode, replay
from hearthd.device.cpu.racecheck import Race
from hearthd.device.cpu.streams import Work


class Recorder:
    """Replacement for a stream that records work instead of running it."""

    launched: Sequence[tuple[int, str, str]] = ()
    session = ""
    races: Sequence[Race] = ()

    def __init__(self) -> None:
        self.work: list[Work] = []

    def submit(self, work: Work) -> None:
        """Records work for the graph's launches. Takes the place of `CpuStream.submit`."""
        self.work.append(work)


class CpuGraph:
    """The work of each node of a graph. A launch takes a snapshot, which a later update does not change."""

    __slots__ = ("_all", "_steps")

    def __init__(self, steps: list[list[Work]]) -> None:
        self._steps = steps
        self._all: tuple[Work, ...] | None = None

    def work(self) -> tuple[Work, ...]:
        """The work of all nodes, in order."""
        if self._all is None:
            self._all = tuple(work for step in self._steps for work in step)
        return self._all

    def replace(self, index: int, step: list[Work]) -> None:
        """Replaces the work of the node at `index`, effective from the next launch."""
        self._steps[index] = step
        self._all = None


def steps(server: Enqueues, node: GraphNode) -> list[Work]:
    """Returns the work of one node, recorded from the calls that `server` would make on a stream."""
    recorder = Recorder()
    replay(server, (node,), recorder)
    return recorder.work
