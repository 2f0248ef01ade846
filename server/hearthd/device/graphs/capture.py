"""Capture of a graph: the recorded nodes, the objects that they use, and commands that could not be recorded.

Commands are checked when they are recorded, in the order of the stream; their buffers, modules and segments are held
from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hearth_proto.launches import LaunchFlag
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.graph_nodes import (
    ConditionalNode,
    CopyNode,
    FillNode,
    GraphBody,
    GraphNode,
    HostCopyNode,
    KernelNode,
)
from hearthd.device.backend.resources import Graph
from hearthd.device.flows.segment import Segment
from hearthd.device.graphs.capture_policy import SHARED, CaptureOrder
from hearthd.device.graphs.node_order import NodeOrders
from hearthd.device.graphs.repeat import MAX_NAMED, MAX_PER_ITERATION, LaunchProgram
from hearthd.device.graphs.sections import Sections
from hearthd.device.launch.binder import BoundLaunch, ResolvedRecord
from hearthd.device.launch.holdings import Holdings, Uses
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.module import ModuleEntry
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import EventEntry, LogicalStream
from hearthd.device.streams.stream_errors import StreamErrors, StreamFailure
from hearthd.device.streams.stream_pool import WINDOW

MAX_NODES = 4096
"""Most nodes of one graph. Instantiation is a single driver call, during which no other session is served."""


class GraphEntry(LaunchProgram):
    """A client's graph, which is being recorded, ready, or failed."""

    __slots__ = ("failures", "graph", "kernels", "nodes", "order", "orders", "sections", "streams")

    # For the driver, a command in a graph takes a third of the time of a single command.
    max_per_iteration = 2 * MAX_PER_ITERATION

    def __init__(self, handle: int, holdings: Holdings, order: CaptureOrder) -> None:
        super().__init__(handle, holdings)
        self.order = order
        self.orders = NodeOrders(order.stream)
        self.streams: list[LogicalStream] = []
        """Streams that are or were in the capture, in the order of their lanes; cleared at the end of the capture."""
        self.nodes: list[GraphNode] = []
        self.kernels: list[str] = []
        """Kernel name of each node; empty for nodes without a kernel."""
        self.sections = Sections(handle)
        self.failures = StreamErrors()
        """Failures of commands that were to be recorded. They are reported at the end of the capture, and fail only the
        graph."""
        self.graph: Graph | None = None
        """The instantiated graph; None before instantiation, and for an empty graph."""

    @property
    def name(self) -> str:
        """Name of the graph in messages."""
        return f"graph {self.handle}"

    def check(self) -> None:
        """Raises Refusal if the graph cannot be launched: CAPTURE_INVALID while it is being recorded."""
        if self.order.recording:
            raise Refusal(
                Reason.CAPTURE_INVALID,
                f"{self.name} is still being recorded on stream {self.order.stream}",
                fix="end its capture first",
                details={"graph": self.handle, "stream": self.order.stream},
            )
        super().check()

    @property
    def recording(self) -> bool:
        """True until the end of the capture arrives, or the capture is discarded."""
        return self.order.graph == self.handle

    def detach(self) -> list[LogicalStream]:
        """Takes all streams out of the capture. Returns them."""
        streams, self.streams = self.streams, []
        for stream in streams:
            if stream.capture is not None and stream.capture.entry is self:
                stream.capture = None
        return streams

    @property
    def empty(self) -> bool:
        """True if the graph has no nodes."""
        return not self.nodes

    @property
    def conditional(self) -> bool:
        """True if the graph has conditional nodes."""
        return any(isinstance(node, ConditionalNode) for node in self.nodes)

    @property
    def branched(self) -> bool:
        """True if a conditional node has several bodies, of which one at most runs."""
        return any(isinstance(node, ConditionalNode) and len(node.bodies) > 1 for node in self.nodes)

    def in_body(self, index: int) -> bool:
        """True if the node with this index belongs to the body of a conditional node."""
        return any(
            isinstance(node, ConditionalNode) and position < index <= position + node.size
            for position, node in enumerate(self.nodes[:index])
        )

    @property
    def cost(self) -> int:
        """Number of nodes, at most `WINDOW`."""
        # CUDA does not document how much of the driver's queue a graph launch takes. Each node counts as one command,
        # up to one window.
        return min(len(self.nodes), WINDOW)

    @property
    def names(self) -> list[str]:
        """Names of the last `MAX_NAMED` different kernels, each with the graph's; without kernels only the graph's."""
        kernels = list(dict.fromkeys(filter(None, self.kernels)))
        return [f"{kernel} ({self.name})" for kernel in kernels[-MAX_NAMED:]] or [self.name]


class Capture:
    """A stream's part of a recording in progress: the value of `LogicalStream.capture` until EndCapture."""

    def __init__(self, stream: LogicalStream, entry: GraphEntry, lane: int = 0) -> None:
        self._stream = stream
        self.lane = lane
        self.entry = entry
        entry.streams.append(stream)

    def admit(self, origin: Origin, command: commands_pb2.Command) -> None:
        """Decides about a command of the stream: it is recorded, executed as usual, or refused with Refusal."""
        try:
            shared = origin.name in SHARED and getattr(command, origin.name).HasField("shared")
            recorded = self.entry.order.records(origin.name, shared)
        except Refusal:
            if origin.answered:  # the client receives this refusal, so the recording may continue
                origin.capture = None
            raise
        if not recorded:
            origin.capture = None

    def failed(self, failure: StreamFailure) -> None:
        """Records that a command is missing, so that the graph cannot be created."""
        self.entry.failures.add(failure)

    def add_launch(self, bound: BoundLaunch) -> None:
        """Adds one node for each iteration of the launch."""
        plan = bound.plan
        check_plan(bound)
        self._check_room(plan.iterations, f"launch of {plan.name}")
        node, uses = kernel_node(bound), uses_of(bound)
        for _ in range(plan.iterations):
            self._add(node, plan.name, uses)

    def add_launches(self, launches: Sequence[BoundLaunch], count: int) -> None:
        """Adds a prepared list `count` times, with one node for each of its launches; adds all nodes or none."""
        self._check_room(count * len(launches), "the prepared list")
        for bound in launches:
            check_plan(bound)
        nodes = [(kernel_node(bound), bound.plan.name, uses_of(bound)) for bound in launches]
        for _ in range(count):
            for node, kernel, uses in nodes:
                self._add(node, kernel, uses)

    def add_graph(self, graph: GraphEntry, count: int) -> None:
        """Adds copies of another graph's nodes, `count` times in sequence; adds all nodes or none.

        In the body of a conditional node, the nodes of several streams run one after the other.
        """
        self._check_room(count * len(graph.nodes), f"{count} launches of {graph.name}")
        entry = self.entry
        for _ in range(count if graph.nodes else 0):
            entry.sections.add_child(graph.handle, len(entry.nodes), len(graph.nodes), graph.sections)
            for uses in graph.holdings.uses:
                self._hold(uses)
            entry.nodes += graph.nodes
            entry.kernels += graph.kernels
            if entry.sections.in_body and graph.orders.forked:
                for _node in graph.nodes:
                    entry.orders.add(self.lane)
            else:
                entry.orders.embed(self.lane, graph.orders)

    def add_copy(self, destination: Buffer, source: Buffer, node: CopyNode) -> None:
        """Adds a copy; `node` has the addresses of the ranges in the two buffers."""
        if not node.width or not node.rows:
            return
        self._check_room(1, "the copy")
        self._add(node, "", copy_uses(destination, source, node))

    def add_fill(self, buffer: Buffer, node: FillNode) -> None:
        """Adds a fill; `node` has the address of the range in the buffer."""
        if not node.size:
            return
        self._check_room(1, "the fill")
        self._add(node, "", fill_uses(buffer, node))

    def add_host_copy(self, buffer: Buffer, node: HostCopyNode) -> None:
        """Adds a copy between a range of the buffer and a segment."""
        if not node.width or not node.rows:
            return
        self._check_room(1, "the copy")
        self._add(node, "", host_copy_uses(buffer, node))

    # ---- conditional nodes ----

    def begin_conditional(self, buffer: Buffer, node: ConditionalNode) -> None:
        """Adds a conditional node, whose body consists of the nodes from now to `end_conditional`.

        Each body of a switch begins by `begin_case` instead.
        """
        self._check_room(1, "the conditional node")
        self.entry.sections.begin(self.lane, len(self.entry.nodes), node.kind)
        self._add(node, "", Uses(read=(buffer,), modules=modules_of(buffer), needed=(buffer,)))

    def begin_case(self, value: int) -> None:
        """Begins the body of the innermost switch for a value. Raises Refusal if there is no switch, or a second body.

        The body ends by `end_conditional`.
        """
        entry = self.entry
        index = entry.sections.open_switch(self.lane, value)
        node = entry.nodes[index]
        assert isinstance(node, ConditionalNode)
        if any(body.index == value for body in node.bodies):
            raise Refusal(
                Reason.CAPTURE_INVALID,
                f"{entry.name}: the switch of node {index} has a case for {value} already",
                fix="record one case for each value",
                details={"graph": entry.handle, "node": index, "value": value},
            )
        entry.sections.begin_case(self.lane, index, value, len(entry.nodes))
        entry.orders.begin_body(self.lane, index)

    def begin_else(self) -> None:
        """Begins the second body of an `if` that has just ended. Raises Refusal if there is none.

        The body ends by `end_conditional`.
        """
        entry = self.entry
        entry.orders.begin_body(self.lane, entry.sections.begin_else(self.lane, len(entry.nodes)))

    def end_conditional(self) -> None:
        """Ends the innermost body, or the innermost switch. Raises Refusal if there is none."""
        entry = self.entry
        nodes = entry.nodes
        section = entry.sections.end(self.lane, len(nodes))
        if section.body is None:
            return
        node = nodes[section.node]
        assert isinstance(node, ConditionalNode)
        body = GraphBody(section.body, len(nodes) - section.first)
        nodes[section.node] = replace(node, bodies=(*node.bodies, body))
        entry.orders.end_body(self.lane, section.node)

    # ---- events: fork and join ----

    def record(self, origin: Origin, event: EventEntry) -> Operation:
        """Returns the operation that makes the event a point of the graph, after the stream's nodes so far."""
        event.capture = self

        def run() -> bool:
            self.entry.sections.add_event("an event")
            event.point = self.entry.orders.point(self.lane)
            origin.reply()
            return True

        return Operation(origin, run, writes=(origin.stream, event))

    def wait(self, origin: Origin, event: EventEntry) -> Operation:
        """Returns the operation that orders the stream's next nodes after the event.

        A stream outside the capture that waits for one of its events joins the capture on arrival of the command.
        Raises Refusal(CAPTURE_INVALID), without effect on the capture if the client waits for the answer, for an event
        that is not of this capture.
        """
        captured: Capture | None = event.capture
        if captured is None or not captured.entry.recording or (origin.capture or captured).entry is not captured.entry:
            refusal = self._foreign(origin, event, captured)
            if origin.answered:
                origin.capture = None
            raise refusal
        if origin.capture is None:
            stream, orders = origin.stream, captured.entry.orders
            stream.capture = origin.capture = Capture(stream, captured.entry, orders.fork(stream.handle))
        lane = origin.capture.lane

        def run() -> bool:
            captured.entry.sections.add_event("a wait for an event")
            captured.entry.orders.join(lane, event.point)
            origin.reply()
            return True

        return Operation(origin, run, writes=(origin.stream,), reads=(event,))

    def _foreign(self, origin: Origin, event: EventEntry, captured: Capture | None) -> Refusal:
        """Returns the refusal of a wait for an event that the stream's capture does not contain."""
        stream = origin.stream.handle
        context = f" while it records graph {self.entry.handle}" if origin.capture is not None else ""
        if captured is None:
            cause = "the event was recorded outside the capture, which cannot wait for work that is not in the graph"
            fix = "wait for the event before the capture, or record it on a stream that the capture contains"
        elif not captured.entry.recording:
            cause = f"the event is a point of graph {captured.entry.handle}, whose capture has ended"
            fix = "record the event again"
        else:
            cause = f"the event is a point of graph {captured.entry.handle}; two captures cannot be joined"
            fix = "record both parts in one capture, or launch the graphs one after the other"
        return Refusal(
            Reason.CAPTURE_INVALID,
            f"wait_event on stream {stream}{context}: {cause}",
            fix=fix,
            details={"stream": stream, "event": event.handle, "graph": (captured or self).entry.handle},
        )

    def discard(self, session: DeviceSession) -> None:
        """Drops the recording; its streams execute their commands again.

        A stream that joined the recording by an event only leaves it.
        """
        if self.lane:
            self._stream.capture = None
            return
        self.entry.order.abort()
        self.entry.detach()
        session.graphs.items.pop(self.entry.handle, None)
        self.entry.holdings.release()

    def _add(self, node: GraphNode, kernel: str, uses: Uses) -> None:
        self._hold(uses)
        self.entry.nodes.append(node)
        self.entry.kernels.append(kernel)
        self.entry.orders.add(self.lane)

    def _hold(self, uses: Uses) -> None:
        # A body may not run, so its nodes replace the contents of no buffer for certain.
        self.entry.holdings.add(uses._replace(replaced=None) if self.entry.sections.in_body else uses)

    def _check_room(self, added: int, description: str) -> None:
        """Raises Refusal if the nodes cannot be added: too many, or at the wrong place."""
        self.entry.sections.check_node(self.lane, description)
        present = len(self.entry.nodes)
        if present + added > MAX_NODES:
            raise Refusal(
                Reason.CAPTURE_INVALID,
                f"{description} would bring {self.entry.name} to {present + added} nodes; the maximum is {MAX_NODES}",
                fix="record fewer commands, and launch the graph several times",
                details={"graph": self.entry.handle, "nodes": present + added, "max_nodes": MAX_NODES},
            )


def kernel_node(bound: BoundLaunch) -> KernelNode:
    """Returns a graph node for a bound launch."""
    plan = bound.plan
    return KernelNode(plan.function, plan.grid, plan.block, plan.shared_mem, bytes(bound.params), bound.attributes)


def uses_of(bound: BoundLaunch) -> Uses:
    """Returns the buffers and modules that a bound launch uses."""
    written, read = bound.buffers[: len(bound.writes)], bound.buffers[len(bound.writes) :]
    modules = (bound.module, *modules_of(*bound.buffers))
    return Uses(tuple(written), tuple(read), modules, tuple(bound.buffers))


def copy_uses(destination: Buffer, source: Buffer, node: CopyNode) -> Uses:
    """Returns the buffers and modules that a copy uses; a module is used if a buffer is its global variable."""
    in_place = destination is source
    replaces_all = node.rows == 1 and node.width == destination.size
    return Uses(
        written=(destination,),
        read=() if in_place else (source,),
        modules=modules_of(destination, source),
        needed=(source,),
        replaced=destination if replaces_all and not in_place else None,
    )


def fill_uses(buffer: Buffer, node: FillNode) -> Uses:
    """Returns the buffer and the module that a fill uses; a module is used if the buffer is its global variable."""
    replaces_all = node.size == buffer.size
    return Uses(written=(buffer,), modules=modules_of(buffer), replaced=buffer if replaces_all else None)


def host_copy_uses(buffer: Buffer, node: HostCopyNode) -> Uses:
    """Returns what a copy between a buffer and a segment uses."""
    segment: Segment = node.host
    modules = modules_of(buffer)
    if not node.upload:
        return Uses(read=(buffer,), modules=modules, needed=(buffer,), segments=(segment,))
    replaces_all = node.width * node.rows == buffer.size
    return Uses(written=(buffer,), modules=modules, replaced=buffer if replaces_all else None, segments=(segment,))


def check_record(parsed: ResolvedRecord) -> None:
    """Raises Refusal(CAPTURE_INVALID) for a launch that the host takes part in, which cannot be stored and repeated."""
    record = parsed.record
    feature = (
        'mode="validate"'
        if record.flags & LaunchFlag.VALIDATE
        else "a grid from a buffer"
        if parsed.grid_buffer is not None
        else ""
    )
    if feature:
        raise Refusal(
            Reason.CAPTURE_INVALID,
            f"launch of {parsed.entry.name} with {feature} cannot be kept and repeated: the host takes part in it",
            fix="launch it by itself",
            details={"kernel": parsed.entry.name},
        )


def modules_of(*buffers: Buffer) -> tuple[ModuleEntry, ...]:
    """Returns the modules whose global variables are among the buffers."""
    return tuple(buffer.module for buffer in buffers if buffer.module is not None)


def check_plan(bound: BoundLaunch) -> None:
    """Raises Refusal(CAPTURE_INVALID) for a launch with a time limit, because a graph is timed as a whole."""
    plan = bound.plan
    check_untimed(f"launch of {plan.name}", plan.timeout_ns, {"kernel": plan.name})


def check_untimed(description: str, timeout_ns: int, details: dict[str, object]) -> None:
    """Raises Refusal(CAPTURE_INVALID) if a command that is to be recorded has a time limit."""
    if timeout_ns:
        raise Refusal(
            Reason.CAPTURE_INVALID,
            f"{description} with a time limit of {timeout_ns} ns in a graph: a graph is timed as a whole",
            fix="leave it out, and give LaunchGraph a limit for each launch of the graph",
            details={**details, "timeout_ns": timeout_ns},
        )
