"""Capture of a graph: the recorded nodes, their buffers and modules, and commands that could not be recorded.

Commands are checked when they are recorded, in the order of the stream; their buffers and modules are held from then
on.
"""

from __future__ import annotations

from collections.abc import Sequence

from hearth_proto.launches import LaunchFlag
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.graph_nodes import CopyNode, FillNode, GraphNode, KernelNode
from hearthd.device.backend.resources import Graph
from hearthd.device.graphs.capture_policy import CaptureOrder
from hearthd.device.graphs.repeat import NAMED, TURN, LaunchProgram
from hearthd.device.launch.binder import BoundLaunch, ResolvedRecord
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.holdings import Holdings, Uses
from hearthd.device.session.module import ModuleEntry
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_errors import StreamErrors, StreamFailure
from hearthd.device.streams.stream_pool import WINDOW

MAX_NODES = 4096
"""Most nodes of one graph. Instantiation is a single driver call, during which no other session is served."""


class GraphEntry(LaunchProgram):
    """A client's graph, which is being recorded, ready, or failed."""

    __slots__ = ("failures", "graph", "kernels", "nodes", "order")

    turn = 2 * TURN  # for the driver, a command in a graph takes a third of the time of a single command

    def __init__(self, handle: int, holdings: Holdings, order: CaptureOrder) -> None:
        super().__init__(handle, holdings)
        self.order = order
        self.nodes: list[GraphNode] = []
        self.kernels: list[str] = []
        """Kernel name of each node; empty for copies and fills."""
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
    def empty(self) -> bool:
        """True if the graph has no nodes."""
        return not self.nodes

    @property
    def cost(self) -> int:
        """Number of nodes, at most `WINDOW`."""
        # CUDA does not document how much of the driver's queue a graph launch takes. Each node counts as one command,
        # up to one window.
        return min(len(self.nodes), WINDOW)

    @property
    def names(self) -> list[str]:
        """Names of the last `NAMED` different kernels, each with the graph's; only the graph's if it has no kernel."""
        kernels = list(dict.fromkeys(filter(None, self.kernels)))
        return [f"{kernel} ({self.name})" for kernel in kernels[-NAMED:]] or [self.name]


class Capture:
    """A recording in progress: the value of `LogicalStream.capture` until EndCapture."""

    def __init__(self, stream: LogicalStream, entry: GraphEntry) -> None:
        self._stream = stream
        self.entry = entry

    def admit(self, origin: Origin) -> None:
        """Decides about a command of the stream: it is recorded, executed as usual, or refused with Refusal."""
        try:
            recorded = self.entry.order.records(origin.name)
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
        made = [(kernel_node(bound), bound.plan.name, uses_of(bound)) for bound in launches]
        for _ in range(count):
            for node, kernel, uses in made:
                self._add(node, kernel, uses)

    def add_copy(self, destination: Buffer, source: Buffer, node: CopyNode) -> None:
        """Adds a copy; `node` has the addresses of the ranges in the two buffers."""
        if not node.width or not node.rows:
            return
        self._check_room(1, "the copy")
        same = destination is source
        whole = node.rows == 1 and node.width == destination.size
        uses = Uses(
            written=(destination,),
            read=() if same else (source,),
            modules=modules_of(destination, source),
            needed=(source,),
            replaced=destination if whole and not same else None,
        )
        self._add(node, "", uses)

    def add_fill(self, buffer: Buffer, node: FillNode) -> None:
        """Adds a fill; `node` has the address of the range in the buffer."""
        if not node.size:
            return
        self._check_room(1, "the fill")
        whole = node.size == buffer.size
        uses = Uses(written=(buffer,), modules=modules_of(buffer), replaced=buffer if whole else None)
        self._add(node, "", uses)

    def discard(self, session: DeviceSession) -> None:
        """Drops the recording; the stream executes its commands again."""
        self.entry.order.abort()
        self._stream.capture = None
        session.graphs.items.pop(self.entry.handle, None)
        self.entry.holdings.release()

    def _add(self, node: GraphNode, kernel: str, uses: Uses) -> None:
        self.entry.holdings.add(uses)
        self.entry.nodes.append(node)
        self.entry.kernels.append(kernel)

    def _check_room(self, more: int, what: str) -> None:
        there = len(self.entry.nodes)
        if there + more > MAX_NODES:
            raise Refusal(
                Reason.CAPTURE_INVALID,
                f"{what} would bring {self.entry.name} to {there + more} nodes; the maximum is {MAX_NODES}",
                fix="record fewer commands, and launch the graph several times",
                details={"graph": self.entry.handle, "nodes": there + more, "max_nodes": MAX_NODES},
            )


def kernel_node(bound: BoundLaunch) -> KernelNode:
    """Returns a graph node for a bound launch."""
    plan = bound.plan
    return KernelNode(plan.function, plan.grid, plan.block, plan.shared_mem, bytes(bound.params), plan.attributes)


def uses_of(bound: BoundLaunch) -> Uses:
    """Returns the buffers and modules that a bound launch uses."""
    written, read = bound.buffers[: len(bound.writes)], bound.buffers[len(bound.writes) :]
    modules = (bound.module, *modules_of(*bound.buffers))
    return Uses(tuple(written), tuple(read), modules, tuple(bound.buffers))


def check_record(parsed: ResolvedRecord) -> None:
    """Raises Refusal(CAPTURE_INVALID) for a launch that the host takes part in, which cannot be stored and repeated."""
    record = parsed.record
    what = (
        'mode="validate"'
        if record.flags & LaunchFlag.VALIDATE
        else "a grid from a buffer"
        if parsed.grid_buffer is not None
        else ""
    )
    if what:
        raise Refusal(
            Reason.CAPTURE_INVALID,
            f"launch of {parsed.entry.name} with {what} cannot be kept and repeated: the host takes part in it",
            fix="launch it by itself",
            details={"kernel": parsed.entry.name},
        )


def modules_of(*buffers: Buffer) -> tuple[ModuleEntry, ...]:
    """Returns the modules whose global variables are among the buffers."""
    return tuple(buffer.module for buffer in buffers if buffer.module is not None)


def check_plan(bound: BoundLaunch) -> None:
    """Raises Refusal(CAPTURE_INVALID) for a launch with a time limit, because a graph is timed as a whole."""
    plan = bound.plan
    if plan.timeout_ns:
        raise Refusal(
            Reason.CAPTURE_INVALID,
            f"launch of {plan.name} with a time limit of {plan.timeout_ns} ns in a graph: a graph is timed as a whole",
            fix="leave it out, and give LaunchGraph a limit for each launch of the graph",
            details={"kernel": plan.name, "timeout_ns": plan.timeout_ns},
        )
