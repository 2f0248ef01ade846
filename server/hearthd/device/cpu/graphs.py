"""Graphs: recorded work that the thread of a stream runs as one unit."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from hearthd.device.backend.graph_nodes import Conditional, ConditionalNode, GraphNode, WorkNode
from hearthd.device.backend.replay import replay
from hearthd.device.backend.server import ComputeServer
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

    __slots__ = ("_all_work", "_node_work", "_nodes")

    def __init__(self, nodes: Sequence[GraphNode], node_work: list[list[Work]]) -> None:
        self._nodes = tuple(nodes)
        self._node_work = node_work
        self._all_work: tuple[Work, ...] | None = None

    def work(self) -> tuple[Work, ...]:
        """The work of all nodes, in order; the thread of the stream evaluates the conditions between the nodes."""
        if self._all_work is None:
            self._all_work = self._work_of(0, len(self._nodes))
        return self._all_work

    def replace(self, index: int, work: list[Work]) -> None:
        """Replaces the work of the node at `index`, effective from the next launch."""
        self._node_work[index] = work
        self._all_work = None

    def _work_of(self, index: int, end: int) -> tuple[Work, ...]:
        work: list[Work] = []
        while index < end:
            node = self._nodes[index]
            if isinstance(node, ConditionalNode):
                bodies = {body: self._work_of(nodes.start, nodes.stop) for body, nodes in node.ranges(index)}
                work.append(_conditional(node, bodies))
                index += 1 + node.size
            else:
                work += self._node_work[index]
                index += 1
        return tuple(work)


def _conditional(node: ConditionalNode, bodies: Mapping[int, Sequence[Work]]) -> Work:
    """Returns the work of a conditional node, whose bodies are given by index. An exception of a body ends a loop."""
    value = ctypes.c_uint32.from_address(node.address)

    def run_while() -> None:
        body = bodies.get(0, ())
        while value.value:
            for work in body:
                work()

    def run_if() -> None:
        for work in bodies.get(0 if value.value else 1, ()):
            work()

    def run_switch() -> None:
        for work in bodies.get(value.value, ()):
            work()

    return {Conditional.WHILE: run_while, Conditional.IF: run_if, Conditional.SWITCH: run_switch}[node.kind]


def node_work(server: ComputeServer, node: WorkNode) -> list[Work]:
    """Returns the work of one node, recorded from the calls that `server` would make on a stream."""
    recorder = Recorder()
    replay(server, (node,), recorder)
    return recorder.work
