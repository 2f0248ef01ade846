"""Graph commands: a stream's commands are recorded instead of executed, and then launched as one unit.

A graph may be launched any number of times. A capture belongs to one logical stream, from the arrival of BeginCapture
to that of EndCapture; see `capture`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.graph_nodes import (
    BRANCHES,
    Conditional,
    ConditionalNode,
    CopyNode,
    FillNode,
    GraphNode,
    HostCopyNode,
    KernelNode,
)
from hearthd.device.backend.resources import Graph
from hearthd.device.context import DeviceContext
from hearthd.device.graphs.capture import (
    Capture,
    GraphEntry,
    check_plan,
    check_record,
    check_untimed,
    copy_uses,
    fill_uses,
    kernel_node,
    uses_of,
)
from hearthd.device.graphs.capture_policy import CaptureOrder
from hearthd.device.graphs.repeat import ProgramLaunch, Rounds, check_count
from hearthd.device.launch.binder import Binder, BoundLaunch, ResolvedRecord
from hearthd.device.launch.holdings import Holdings, Keepers, Uses
from hearthd.device.launch.idle_load import IdleLoad
from hearthd.device.launch.watchdog import Watchdog
from hearthd.device.operation import Operation, Origin, destruction
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_errors import StreamFailure
from hearthd.device.transfers.copy_commands import check_pattern, copy_node, fill_node

N = TypeVar("N", KernelNode, CopyNode, FillNode)
_KINDS: dict[type[object], str] = {KernelNode: "launch", CopyNode: "copy", FillNode: "fill"}
"""Names, in messages, of the kinds of nodes that can be updated."""
CONDITION_BYTES = 4
"""Size of the value that decides about a conditional node, in bytes."""


class GraphCommands:
    """Executes the graph commands. Device-handle thread only."""

    def __init__(self, device: DeviceContext, binder: Binder, watchdog: Watchdog, keepers: Keepers) -> None:
        self._device = device
        self._binder = binder
        self._watchdog = watchdog
        self._keepers = keepers
        self._has_conditionals = False
        """True once the backend has loaded what it needs for conditional nodes."""

    # ---- recording ----

    def begin(self, origin: Origin, command: commands_pb2.BeginCapture) -> None:
        """Begins a recording: the stream's commands are recorded from the arrival of this command on."""
        session, stream = origin.session, origin.stream
        session.graphs.check_new(command.graph)
        order = CaptureOrder(stream.handle) if stream.capture is None else stream.capture.entry.order
        order.begin(command.graph)
        entry = GraphEntry(command.graph, Holdings(session, self._keepers), order)
        session.graphs.add(command.graph, entry)
        stream.capture = Capture(stream, entry)
        origin.reply()

    def end(self, origin: Origin, command: commands_pb2.EndCapture) -> Operation:
        """Ends a recording, after the commands that are still to be recorded: a launch may wait for its compile."""
        session, stream = origin.session, origin.stream
        capture = stream.capture
        if capture is None:
            CaptureOrder(stream.handle).end(command.graph)
            raise AssertionError("no capture has begun on this stream")
        entry: GraphEntry = capture.entry
        entry.order.end(command.graph, stream.handle)
        streams = entry.detach()
        if command.discard:
            session.graphs.pop(command.graph)
            no_graph = commands_pb2.Result(graph=commands_pb2.GraphResult())
            return destruction(origin, partial(self._release, entry), (*streams, entry), no_graph)
        entry.unsettled += 1
        operation = Operation(origin, partial(self._instantiate, origin, entry), writes=(*streams, entry))
        operation.on_failure = partial(self._fail, entry)
        return operation

    def _instantiate(self, origin: Origin, entry: GraphEntry) -> bool:
        failures = entry.failures.pop_all()
        if failures:
            refusal = _not_recorded(entry, failures)
            self._fail(entry, refusal)
            if not origin.answered:
                origin.fail(refusal)
                return True
            origin.reply_error(refusal.to_status([failure.to_message() for failure in failures]))
            return True
        orders = entry.orders
        entry.sections.check_ended()
        unjoined = orders.unjoined()
        if unjoined:
            raise _not_joined(entry, unjoined)
        if entry.nodes:
            entry.graph = self._create(entry, entry.nodes)
        entry.unsettled -= 1
        result = commands_pb2.GraphResult(forked=orders.forked or entry.branched)
        for node, kernel, order in zip(entry.nodes, entry.kernels, orders.orders, strict=True):
            added = result.nodes.add(kind=_kind(node), kernel=kernel, after=order.after if result.forked else ())
            if isinstance(node, ConditionalNode):
                added.body = node.size
                for body in node.bodies:
                    added.bodies.add(index=body.index, nodes=body.nodes)
        for graph, first, nodes in entry.sections.children:
            result.children.add(graph=graph, first=first, nodes=nodes)
        origin.reply(commands_pb2.Result(graph=result))
        return True

    def _fail(self, entry: GraphEntry, refusal: Refusal) -> None:
        """Keeps the handle, with the reason of the failure, until it is destroyed."""
        entry.unsettled -= 1
        entry.error = Refusal(
            Reason.CAPTURE_INVALID,
            f"{entry.name} was not made: {refusal.message}",
            fix=refusal.fix,
            details={**refusal.details, "graph": entry.handle},
        )
        self._release(entry)

    # ---- conditional nodes ----

    def begin_conditional(self, origin: Origin, command: commands_pb2.BeginConditional) -> Operation:
        """Returns the operation that adds a conditional node to the stream's capture, and begins its body.

        Raises Refusal outside a capture, and for a switch on a device without it.
        """
        if origin.capture is None:
            raise _no_capture(origin)
        kind = Conditional.SWITCH if command.switch else Conditional.WHILE if command.loop else Conditional.IF
        if kind is Conditional.SWITCH:
            self._check_branches("switch")
        buffer = origin.session.buffers.find(command.buffer)
        wait = IdleLoad(
            self._device,
            origin.session,
            "the load of conditional nodes",
            lambda: self._has_conditionals,
            self._load_conditionals,
        )

        def run() -> bool:
            if not wait.ready():
                return False
            address = buffer.range(command.offset, CONDITION_BYTES, "condition of a graph")
            if address % CONDITION_BYTES:
                raise Refusal(
                    Reason.INVALID_ARGUMENT,
                    f"the condition at byte {command.offset} of buffer {command.buffer} is not aligned to 4 bytes",
                    fix="use an element of an array of 4-byte integers",
                    details={"buffer": command.buffer, "offset": command.offset},
                )
            capture = origin.capture
            assert capture is not None
            capture.begin_conditional(buffer, ConditionalNode(address, kind))
            origin.reply()
            return True

        operation = Operation(origin, run, writes=(origin.stream,), reads=(buffer,))
        operation.on_failure = lambda _refusal: wait.end()
        return operation

    def _load_conditionals(self) -> None:
        self._device.server.load_conditionals()
        self._has_conditionals = True

    def begin_branch(self, origin: Origin, command: commands_pb2.BeginBranch) -> Operation:
        """Returns the operation that begins a further body of a conditional node.

        Raises Refusal outside a capture, and on a device without conditional nodes of several bodies.
        """
        capture = origin.capture
        if capture is None:
            raise _no_capture(origin)
        self._check_branches("else" if command.otherwise else "switch")

        def run() -> bool:
            if command.otherwise:
                capture.begin_else()
            else:
                capture.begin_case(command.value)
            origin.reply()
            return True

        return Operation(origin, run, writes=(origin.stream,))

    def _check_branches(self, part: str) -> None:
        """Raises Refusal(UNSUPPORTED) if the device has no conditional nodes of several bodies."""
        device = self._device
        if BRANCHES not in device.limits.features:
            raise Refusal(
                Reason.UNSUPPORTED,
                f"device {device.spec.ordinal} ({device.spec.backend}) has no {part} in graphs: conditional nodes of "
                "several bodies need a driver of CUDA 12.8 or newer",
                fix=f"check for {BRANCHES} in gpu.properties.features, and record an if for each body if it is missing",
                details={"feature": BRANCHES},
            )

    def end_conditional(self, origin: Origin, _command: commands_pb2.EndConditional) -> Operation:
        """Returns the operation that ends a body or switch. Raises Refusal outside a capture."""
        capture = origin.capture
        if capture is None:
            raise _no_capture(origin)

        def run() -> bool:
            capture.end_conditional()
            origin.reply()
            return True

        return Operation(origin, run, writes=(origin.stream,))

    # ---- use ----

    def launch(self, origin: Origin, command: commands_pb2.LaunchGraph) -> Operation:
        """Returns the operation that launches the graph `count` times. Raises Refusal if the graph cannot be launched.

        The time limit, of the command or else of the session, applies to each launch of the graph. In a capture, the
        nodes become nodes of the graph that is being captured.
        """
        entry: GraphEntry = origin.session.graphs.find(command.graph)
        check_count(command.count, entry.name)
        entry.check()
        if origin.capture is not None:
            check_untimed(f"launch of {entry.name}", command.timeout_ns, {"child": entry.handle})
            return ProgramLaunch(origin, entry, partial(self._record, origin, entry, command.count))
        seconds = command.timeout_ns / 1e9 or origin.session.launch_timeout
        rounds = Rounds(
            self._device,
            self._watchdog,
            origin.stream,
            entry,
            command.count,
            partial(self._issue, entry, origin.stream),
            limit=(lambda: (entry.name, seconds)) if seconds else None,
        )
        return ProgramLaunch(origin, entry, rounds.run)

    @staticmethod
    def _record(origin: Origin, entry: GraphEntry, count: int) -> bool:
        """Adds the nodes of a graph to the graph that is being captured."""
        entry.check()
        assert origin.capture is not None
        origin.capture.add_graph(entry, count)
        return True

    def _issue(self, entry: GraphEntry, stream: LogicalStream, count: int) -> None:
        self._device.server.launch_graph(entry.graph, stream.track.stream, count)
        self._device.telemetry.graph_launches += count

    def update(self, origin: Origin, command: commands_pb2.UpdateGraph) -> Operation:
        """Updates a node, after earlier launches of the graph; later launches use the new arguments."""
        session, index = origin.session, command.node
        entry: GraphEntry = session.graphs.find(command.graph)
        entry.check()
        run: Callable[[], bool]
        reads: tuple[Hashable, ...]
        if command.HasField("copy"):
            destination = session.buffers.find(command.copy.destination)
            source = session.buffers.find(command.copy.source)
            run = partial(self._update_copy, origin, entry, index, command.copy, destination, source)
            reads = (destination, source)
        elif command.HasField("fill"):
            buffer = session.buffers.find(command.fill.buffer)
            check_pattern(command.fill)
            run, reads = partial(self._update_fill, origin, entry, index, command.fill, buffer), (buffer,)
        else:
            parsed = self._binder.parse(session, command.launch)
            written, read = parsed.split()
            run = partial(self._update, origin, entry, index, parsed)
            reads = (parsed.entry.module, *written, *read)
        operation = Operation(origin, run, writes=(entry,), reads=reads)
        entry.unsettled += 1

        def settled(_: Refusal | None = None) -> None:
            entry.unsettled -= 1

        operation.after = settled
        operation.on_failure = settled
        return operation

    def _update(self, origin: Origin, entry: GraphEntry, index: int, parsed: ResolvedRecord) -> bool:
        if parsed.entry.module.pending:
            return False
        entry.check()
        node = _node(entry, index, KernelNode)
        check_record(parsed)
        bound = self._binder.bind(parsed)
        check_plan(bound)
        _check_same(entry, index, node, bound)
        changed, uses = kernel_node(bound), uses_of(bound)
        if entry.conditional:  # the driver changes no nodes of graphs with conditional nodes
            self._replace(entry, index, changed, uses)
        else:
            self._device.server.update_graph(entry.graph, index, changed)
            entry.holdings.replace(index, uses)
            entry.nodes[index] = changed
        origin.reply()
        return True

    def _update_copy(
        self,
        origin: Origin,
        entry: GraphEntry,
        index: int,
        command: commands_pb2.Copy,
        destination: Buffer,
        source: Buffer,
    ) -> bool:
        entry.check()
        _node(entry, index, CopyNode)
        node = copy_node(command, destination, source)
        _check_bytes(entry, index, node.width * node.rows)
        self._replace(entry, index, node, copy_uses(destination, source, node))
        origin.reply()
        return True

    def _update_fill(
        self, origin: Origin, entry: GraphEntry, index: int, command: commands_pb2.Fill, buffer: Buffer
    ) -> bool:
        entry.check()
        _node(entry, index, FillNode)
        node = fill_node(command, buffer)
        _check_bytes(entry, index, node.size)
        self._replace(entry, index, node, fill_uses(buffer, node))
        origin.reply()
        return True

    def _replace(self, entry: GraphEntry, index: int, node: KernelNode | CopyNode | FillNode, uses: Uses) -> None:
        """Replaces a node, by making the graph again.

        The backends make several driver nodes of some fills and copies, so that the driver cannot replace them in
        place. Launches in flight keep the previous graph.
        """
        if entry.in_body(index):
            uses = uses._replace(replaced=None)
        nodes = [*entry.nodes[:index], node, *entry.nodes[index + 1 :]]
        previous, entry.graph = entry.graph, self._create(entry, nodes)
        entry.holdings.replace(index, uses)
        entry.nodes = nodes
        self._destroy(entry, previous)

    def _create(self, entry: GraphEntry, nodes: Sequence[GraphNode]) -> Graph:
        orders = entry.orders
        return self._device.server.create_graph(nodes, orders.orders if orders.forked else None)

    def _destroy(self, entry: GraphEntry, graph: Graph) -> None:
        """Destroys a backend's graph of the entry, after the launches that use it."""
        device = self._device
        tracks = [device.tracks.all[index] for index in entry.usage.tracks()]
        device.tracks.after_all(tracks, partial(device.server.destroy_graph, graph))

    def destroy(self, origin: Origin, command: commands_pb2.DestroyGraph) -> Operation:
        """Destroys the handle now; earlier launches still run."""
        session = origin.session
        entry: GraphEntry = session.graphs.find(command.graph)
        if entry.order.recording:
            entry.check()
        session.graphs.pop(command.graph)
        return destruction(origin, partial(self._release, entry), (entry,))

    # ---- end of streams and sessions ----

    def abandon(self, session: DeviceSession, stream: LogicalStream) -> None:
        """Discards the recording of a stream that is destroyed."""
        if stream.capture is not None:
            stream.capture.discard(session)

    def close(self, session: DeviceSession) -> None:
        """Releases the buffers and modules that the session's graphs hold."""
        for stream in session.streams.items.values():
            self.abandon(session, stream)
        for entry in session.graphs.items.values():
            self._release(entry)

    def _release(self, entry: GraphEntry) -> None:
        """Releases the graph, with its buffers and modules, after the launches that use them.

        A second call has no effect.
        """
        entry.holdings.release()
        entry.nodes.clear()
        entry.kernels.clear()
        graph, entry.graph = entry.graph, None
        if graph is not None:
            self._destroy(entry, graph)


def _node(entry: GraphEntry, index: int, kind: type[N]) -> N:
    """Returns a node of the graph. Raises Refusal(INVALID_ARGUMENT) if there is no such node of this kind."""
    node = entry.nodes[index] if index < len(entry.nodes) else None
    if isinstance(node, kind):
        return node
    candidates = [number for number, candidate in enumerate(entry.nodes) if isinstance(candidate, kind)]
    problem = "it has no such node" if node is None else f"that node is a {_KINDS.get(type(node), _kind(node))}"
    raise Refusal(
        Reason.INVALID_ARGUMENT,
        f"node {index} of {entry.name} cannot be updated by a {_KINDS[kind]}: {problem}; its nodes of that kind are "
        f"{_listed(candidates)}",
        fix="name a node of that kind; see GraphResult",
        details={"graph": entry.handle, "node": index, "nodes": len(entry.nodes)},
    )


def _kind(node: GraphNode) -> str:
    """Returns the kind of a node in a GraphResult."""
    if isinstance(node, KernelNode):
        return "kernel"
    if isinstance(node, CopyNode):
        return "copy"
    if isinstance(node, FillNode):
        return "fill"
    if isinstance(node, HostCopyNode):
        return "write" if node.upload else "read"
    return node.kind.value


def _check_bytes(entry: GraphEntry, index: int, size: int) -> None:
    """Raises Refusal(INVALID_ARGUMENT) for an update by a copy or fill without bytes."""
    if not size:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"node {index} of {entry.name} cannot be updated: the new copy or fill has no bytes",
            fix="record the graph again without the node",
            details={"graph": entry.handle, "node": index},
        )


def _no_capture(origin: Origin) -> Refusal:
    return Refusal(
        Reason.CAPTURE_INVALID,
        f"{origin.name} on stream {origin.stream.handle}, which records no graph",
        fix="begin the capture on this stream",
        details={"stream": origin.stream.handle},
    )


def _check_same(entry: GraphEntry, index: int, node: KernelNode, bound: BoundLaunch) -> None:
    """Raises Refusal(INVALID_ARGUMENT) if an update changes a node's function or attributes."""
    plan = bound.plan
    changes = []
    if plan.function is not node.function:
        changes.append(f"it launches {entry.kernels[index]}, not {plan.name}")
    if bound.attributes != node.attributes:
        changes.append("whether it is cooperative, its clusters and its other attributes cannot change")
    if plan.iterations != 1:
        changes.append(f"it is one launch, not {plan.iterations}")
    if changes:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"node {index} of {entry.name}: " + "; ".join(changes),
            fix="record the graph again",
            details={"graph": entry.handle, "node": index, "kernel": entry.kernels[index]},
        )


def _not_recorded(entry: GraphEntry, failures: list[StreamFailure]) -> Refusal:
    first = failures[0]
    more = len(failures) - 1 + sum(failure.merged for failure in failures)
    return Refusal(
        Reason.CAPTURE_INVALID,
        f"{entry.name} cannot be made: {first.command} could not be recorded: {first.refusal.message}"
        + (f" (and {more} more could not)" if more else ""),
        fix=first.refusal.fix,
        details={**first.refusal.details, "graph": entry.handle, "cause": first.refusal.reason},
    )


def _not_joined(entry: GraphEntry, unjoined: list[int]) -> Refusal:
    """Returns the refusal of a graph with streams whose work the stream that began the capture does not wait for."""
    origin, streams = entry.order.stream, ", ".join(map(str, unjoined))
    return Refusal(
        Reason.CAPTURE_INVALID,
        f"{entry.name} cannot be made: the work of stream {streams} was not joined to stream {origin}, where the "
        "capture began",
        fix=f"record an event on stream {unjoined[0]} after its work, and make stream {origin} wait for the event "
        "before the end of the capture",
        details={"graph": entry.handle, "stream": origin, "unjoined": streams},
    )


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:16]))
    return (shown + (", ..." if len(numbers) > 16 else "")) or "none"
