"""Order of the nodes of a graph: a chain, or forks and joins of several captured streams.

Each captured stream is a lane, which remembers the nodes that its next node depends on, as a stream that is captured by
CUDA does. An event that is recorded in a lane is a point: the nodes that the lane depends on at that time. A lane that
waits for the event depends on them from then on.
"""

from __future__ import annotations

from hearthd.device.backend.graph_nodes import NodeOrder

Point = frozenset[int]
"""Nodes that complete before an event that was recorded in a capture."""


class NodeOrders:
    """Orders of the nodes that are captured from one or more streams. Lane 0 is the stream where the capture began."""

    def __init__(self, stream: int) -> None:
        self.orders: list[NodeOrder] = []
        """Order of each node."""
        self._streams = [stream]
        """Handle of each lane's stream."""
        self._tails: list[Point] = [frozenset()]
        """Nodes that the next node of each lane depends on."""
        self._inner: dict[tuple[int, int], int] = {}
        """Lanes that graphs launched in the capture use, by lane of the launch and lane in the launched graph."""
        self._ends: dict[int, Point] = {}
        """Last nodes of the bodies of each conditional node."""

    @property
    def forked(self) -> bool:
        """True if the graph has more than one lane. If False, each node runs after the node before it."""
        return len(self._tails) > 1

    def fork(self, stream: int) -> int:
        """Adds a lane for the stream with this handle. Returns its number."""
        self._streams.append(stream)
        self._tails.append(frozenset())
        return len(self._tails) - 1

    def add(self, lane: int) -> None:
        """Adds the next node, in a lane."""
        index = len(self.orders)
        self.orders.append(NodeOrder(lane, tuple(sorted(self._tails[lane]))))
        self._tails[lane] = frozenset((index,))

    def begin_body(self, lane: int, node: int) -> None:
        """Makes the next node of the lane depend on a conditional node of the lane, and not on its earlier bodies."""
        self._tails[lane] = frozenset((node,))

    def end_body(self, lane: int, node: int) -> None:
        """Makes the next node of the lane depend on the last nodes of all bodies so far of a conditional node."""
        self._ends[node] = self._tails[lane] = self._tails[lane] | self._ends.get(node, frozenset())

    def point(self, lane: int) -> Point:
        """Returns the point that an event has if it is recorded in the lane now."""
        return self._tails[lane]

    def join(self, lane: int, point: Point) -> None:
        """Makes the next node of the lane depend on the nodes of a point."""
        self._tails[lane] |= point

    def embed(self, lane: int, graph: NodeOrders) -> None:
        """Adds all nodes of another, completed graph, as one step of a lane.

        Its first nodes depend on the lane's nodes so far, and the lane's next node on its last nodes.
        """
        if not graph.orders:
            return
        start, tail = len(self.orders), self._tails[lane]
        for inner, after in graph.orders:
            target = lane
            if inner:
                key = lane, inner
                if key not in self._inner:
                    self._inner[key] = self.fork(self._streams[lane])
                target = self._inner[key]
            dependencies = tuple(start + index for index in after) if after else tuple(sorted(tail))
            self.orders.append(NodeOrder(target, dependencies))
        self._tails[lane] = frozenset(start + index for index in graph.point(0))

    def unjoined(self) -> list[int]:
        """Returns the handles of the streams whose last nodes lane 0 does not depend on, without duplicates."""
        if not self.forked:
            return []
        followed = {predecessor for order in self.orders for predecessor in order.after} | self._tails[0]
        lanes = dict.fromkeys(order.lane for index, order in enumerate(self.orders) if index not in followed)
        return [self._streams[lane] for lane in lanes]
