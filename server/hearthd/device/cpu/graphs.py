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

    __slots__ = ("_all_work", "_node_work")

    def __init__(self, node_work: list[list[Work]]) -> None:
        self._node_work = node_work
        self._all_work: tuple[Work, ...] | None = None

    def work(self) -> tuple[Work, ...]:
        """The work of all nodes, in order."""
        if self._all_work is None:
            self._all_work = tuple(work for actions in self._node_work for work in actions)
        return self._all_work

    def replace(self, index: int, work: list[Work]) -> None:
        """Replaces the work of the node at `index`, effective from the next launch."""
        self._node_work[index] = work
        self._all_work = None


def node_work(server: Enqueues, node: GraphNode) -> list[Work]:
    """Returns the work of one node, recorded from the calls that `server` would make on a stream."""
    recorder = Recorder()
    replay(server, (node,), recorder)
    return recorder.work
