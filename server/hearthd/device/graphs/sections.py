"""Sections of a graph: consecutive nodes that belong together, as child graphs and the bodies of conditional nodes.

A body, or a switch with its bodies, is open from its begin to its end. The sections that are open contain one another.
"""

from __future__ import annotations

from typing import NamedTuple

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.graph_nodes import Conditional

MAX_DEPTH = 16
"""Most bodies of conditional nodes that may contain one another."""
MAX_CASES = 256
"""Number of values, from 0, for which a switch may have bodies."""


class ChildGraph(NamedTuple):
    """Nodes that one launch of another graph, during the capture, has added."""

    graph: int
    """Handle of the launched graph."""
    first: int
    """Index of the first node."""
    nodes: int
    """Number of nodes."""


class OpenSection(NamedTuple):
    """A body of a conditional node, or a switch, while it is being captured."""

    lane: int
    """Lane of the stream from which the section is captured."""
    node: int
    """Index of the conditional node."""
    kind: Conditional
    body: int | None
    """Index of the body; None: the section is a switch, which contains nodes only in its bodies."""
    first: int
    """Index of the first node of a body."""


class Sections:
    """Child graphs, and the bodies that are being captured, of one graph."""

    __slots__ = ("_ended", "_graph", "_open", "children")

    def __init__(self, graph: int) -> None:
        self._graph = graph
        self._open: list[OpenSection] = []
        self._ended: tuple[OpenSection, int] | None = None
        """The body of an `if` that has ended, with the number of nodes at that time; None: no `else` can follow."""
        self.children: list[ChildGraph] = []
        """Child graphs in the order in which they were added; each is before those that it contains."""

    @property
    def in_body(self) -> bool:
        """True while the body of a conditional node is being captured."""
        return bool(self._open)

    def add_child(self, graph: int, first: int, nodes: int, inner: Sections) -> None:
        """Adds a child graph with the child graphs that it contains."""
        self.children.append(ChildGraph(graph, first, nodes))
        self.children += [child._replace(first=first + child.first) for child in inner.children]

    def begin(self, lane: int, node: int, kind: Conditional) -> None:
        """Begins body 0 of the conditional node with this index, or the switch. Raises Refusal(CAPTURE_INVALID)."""
        if kind is Conditional.SWITCH:
            self._open.append(OpenSection(lane, node, kind, None, 0))
        else:
            self._begin_body(lane, node, kind, 0, node + 1)

    def open_switch(self, lane: int, value: int) -> int:
        """Returns the index of the switch in which the case for a value may begin. Raises Refusal(CAPTURE_INVALID)."""
        if not self._open or self._open[-1].body is not None or self._open[-1].lane != lane:
            raise self._refusal(
                f"no switch has begun on this stream directly around the case for {value}",
                "send BeginConditional with `switch` first",
                0,
            )
        node = self._open[-1].node
        if value >= MAX_CASES:
            raise self._refusal(
                f"the case for {value} of node {node}: a switch has cases for 0 to {MAX_CASES - 1}",
                "use smaller values",
                node,
            )
        return node

    def begin_case(self, lane: int, node: int, value: int, nodes: int) -> None:
        """Begins the body of a switch for a value. `nodes` is the number of nodes of the graph.

        `node` is the result of `open_switch`. Raises Refusal(CAPTURE_INVALID).
        """
        self._begin_body(lane, node, Conditional.SWITCH, value, nodes)

    def begin_else(self, lane: int, nodes: int) -> int:
        """Begins body 1 of the `if` whose body has just ended. `nodes` is the number of nodes of the graph.

        Returns the index of the conditional node. Raises Refusal(CAPTURE_INVALID).
        """
        if self._ended is None or self._ended[0].lane != lane or self._ended[1] != nodes:
            raise self._refusal(
                "no if without an else has ended on this stream directly before the else",
                "begin the else after the end of the if; record other work and events before the if or after the else",
                0,
            )
        node = self._ended[0].node
        self._begin_body(lane, node, Conditional.IF, 1, nodes)
        return node

    def _begin_body(self, lane: int, node: int, kind: Conditional, body: int, first: int) -> None:
        if sum(section.body is not None for section in self._open) == MAX_DEPTH:
            raise self._refusal(
                f"the body of node {node} would be in {MAX_DEPTH} other bodies, which is the maximum",
                "end one of them first",
                node,
            )
        self._open.append(OpenSection(lane, node, kind, body, first))

    def end(self, lane: int, nodes: int) -> OpenSection:
        """Ends the innermost section, and returns it. `nodes` is the number of nodes of the graph.

        Raises Refusal(CAPTURE_INVALID).
        """
        if not self._open or self._open[-1].lane != lane:
            raise self._refusal(
                "no body of a conditional node has begun on this stream", "send BeginConditional first", 0
            )
        section = self._open.pop()
        self._ended = (section, nodes) if section.kind is Conditional.IF and section.body == 0 else None
        return section

    def check_node(self, lane: int, description: str) -> None:
        """Raises Refusal(CAPTURE_INVALID) for a node of another stream than that of the open section, or of a switch.

        A switch contains nodes only in its bodies.
        """
        if not self._open:
            return
        section = self._open[-1]
        if section.lane != lane:
            raise self._refusal(
                f"{description} on another stream, during the body of node {section.node}",
                "record a body from one stream, and the work of other streams before or after it",
                section.node,
            )
        if section.body is None:
            raise self._refusal(
                f"{description} in the switch of node {section.node}, but in none of its cases",
                "record it in a case, or before or after the switch",
                section.node,
            )

    def add_event(self, description: str) -> None:
        """Notes that an event is recorded, or waited for, which no `else` follows.

        Raises Refusal(CAPTURE_INVALID) while the body of a conditional node is being captured.
        """
        if self._open:
            raise self._refusal(
                f"{description} in the body of node {self._open[-1].node}, whose nodes run one after the other",
                "leave the event out; order work of several streams before or after the body",
                self._open[-1].node,
            )
        self._ended = None

    def check_ended(self) -> None:
        """Raises Refusal(CAPTURE_INVALID) if the body of a conditional node has not ended."""
        if self._open:
            raise self._refusal(
                f"the body of node {self._open[-1].node} has not ended",
                "send EndConditional before EndCapture",
                self._open[-1].node,
            )

    def _refusal(self, message: str, fix: str, node: int) -> Refusal:
        return Refusal(
            Reason.CAPTURE_INVALID,
            f"graph {self._graph}: {message}",
            fix=fix,
            details={"graph": self._graph, "node": node},
        )
