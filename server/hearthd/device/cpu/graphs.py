"""Graphs: what a stream's thread is given as one piece of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from hearthd.device.backend.graph_nodes import Enqueues, GraphNode, KernelNode, replay
from hearthd.device.cpu.racecheck import Race
from hearthd.device.cpu.streams import CpuStream, Work


class Recorder:
    """In the place of a stream: keeps its work instead of running it."""

    launched: Sequence[tuple[int, str, str]] = ()
    session = ""
    races: Sequence[Race] = ()

    def __init__(self) -> None:
        self.work: list[Work] = []

    def submit(self, work: Work) -> None:
        self.work.append(work)


class CpuGraph:
    """The work of each node. A launch takes it as it is then: an update does not change what is under way."""

    __slots__ = ("_all", "_steps")

    def __init__(self, steps: list[list[Work]]) -> None:
        self._steps = steps
        self._all: tuple[Work, ...] | None = None

    def work(self) -> tuple[Work, ...]:
        """All of it, in order."""
        if self._all is None:
            self._all = tuple(work for step in self._steps for work in step)
        return self._all

    def replace(self, index: int, step: list[Work]) -> None:
        self._steps[index] = step
        self._all = None


class CpuGraphOperations:
    """The part of CpuServer that makes graphs and launches them."""

    _note_session: Callable[[CpuStream], None]
    """See `hearthd.device.cpu.launch`."""

    def create_graph(self, nodes: Sequence[GraphNode]) -> CpuGraph:
        return CpuGraph([self._step(node) for node in nodes])

    def launch_graph(self, graph: CpuGraph, stream: CpuStream, times: int = 1) -> None:
        work = graph.work()
        self._note_session(stream)

        def run() -> None:
            for each in work:
                each()

        for _ in range(times):
            stream.submit(run)

    def update_graph(self, graph: CpuGraph, index: int, node: KernelNode) -> None:
        graph.replace(index, self._step(node))

    def destroy_graph(self, graph: CpuGraph) -> None:
        pass  # the last reference is enough

    def _step(self, node: GraphNode) -> list[Work]:
        recorder = Recorder()
        replay(cast(Enqueues, self), (node,), recorder)
        return recorder.work
