"""Sections of a graph: consecutive nodes that belong together, as child graphs and the bodies of conditional nodes."""

from __future__ import annotations

from typing import NamedTuple

from hearth_proto.reasons import Reason, Refusal

MAX_DEPTH = 16
"""Most bodies of conditional nodes that may contain one another."""


class ChildGraph(NamedTuple):
    """Nodes that one launch of another graph, during the capture, has added."""

    graph: int
    """Handle of the launched graph."""
    first: int
    """Index of the first node."""
    nodes: int
    """Number of nodes."""


class Body(NamedTuple):
    """The body of a conditional node, while it is being captured."""

    lane: int
    """Lane of the stream from which the body is captured."""
    node: int
    """Index of the conditional node."""


class Sections:
    """Child graphs, and the bodies that are being captured, of one graph."""

    __slots__ = ("_graph", "_open", "children")

    def __init__(self, graph: int) -> None:
        self._graph = graph
        self._open: list[Body] = []
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

    def begin_body(self, lane: int, node: int) -> None:
        """Begins the body of the conditional node with this index. Raises Refusal(CAPTURE_INVALID)."""
        if len(self._open) == MAX_DEPTH:
            raise self._refusal(
                f"the body of node {node} would be in {MAX_DEPTH} other bodies, which is the maximum",
                "end one of them first",
                node,
            )
        self._open.append(Body(lane, node))

    def end_body(self, lane: int) -> int:
        """Ends the innermost body. Returns the index of its conditional node. Raises Refusal(CAPTURE_INVALID)."""
        if not self._open or self._open[-1].lane != lane:
            raise self._refusal(
                "no body of a conditional node has begun on this stream", "send BeginConditional first", 0
            )
        return self._open.pop().node

    def check_lane(self, lane: int, description: str) -> None:
        """Raises Refusal(CAPTURE_INVALID) for a node of another stream than that of the body being captured."""
        if self._open and self._open[-1].lane != lane:
            raise self._refusal(
                f"{description} on another stream, during the body of node {self._open[-1].node}",
                "record a body from one stream, and the work of other streams before or behind it",
                self._open[-1].node,
            )

    def check_no_body(self, description: str) -> None:
        """Raises Refusal(CAPTURE_INVALID) while the body of a conditional node is being captured."""
        if self._open:
            raise self._refusal(
                f"{description} in the body of node {self._open[-1].node}, whose nodes run one after the other",
                "leave the event out; order work of several streams before or behind the body",
                self._open[-1].node,
            )

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
