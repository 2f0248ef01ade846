"""CUDA graphs, captured from the calls that would run outside a graph.

Capturing makes nodes from the same calls that run outside graphs, with the same checks, attributes and limits; there is
no second description of a copy or a fill. One call captures the whole graph, on streams that are used only for
captures, so that neither another stream's work nor another call can invalidate the capture: one stream for a chain, and
one for each lane of a graph with forks, which events order. The captured graph is kept together with the executable
graph instantiated from it, because an update of kernel parameters refers to the node of the captured graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cuda.bindings import driver
from cupy_backends.cuda.api import runtime
from cupy_backends.cuda.api.runtime import graphLaunch

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.graph_nodes import Conditional, ConditionalNode, GraphNode, KernelNode, NodeOrder
from hearthd.device.backend.replay import replay
from hearthd.device.backend.server import ComputeServer
from hearthd.device.cuda.conditional_nodes import ConditionalNodes
from hearthd.device.cuda.errors import CudaError, checked, translate, translated
from hearthd.device.cuda.streams import CaptureStreams, CudaStreams, Event, Stream

MAX_LANES = 16
"""Largest number of streams for captures that are kept for the next graph."""


class Graph:
    """A captured graph and its executable; both pointers are 0 after they have been destroyed."""

    __slots__ = ("captured", "executable", "kernels", "nodes", "uploaded")

    def __init__(
        self,
        nodes: Sequence[GraphNode],
        captured: int,
        executable: int,
        uploaded: Event,
        kernels: list[Any] | None = None,
    ) -> None:
        self.captured = captured
        self.executable = executable
        self.uploaded: Event | None = uploaded
        """Recorded after the upload of the executable; None once a launch has been ordered after it."""
        self.nodes = [isinstance(node, KernelNode) for node in nodes]
        """One entry for each node, in order: True if the node launches a kernel."""
        self.kernels = kernels
        """The driver's kernel nodes, in order; None for a chain before its first update."""


class CudaGraphs:
    """Creates, updates and launches graphs. `server` makes the calls that a capture records."""

    def __init__(self, server: ComputeServer, streams: CudaStreams, conditionals: ConditionalNodes) -> None:
        self._server = server
        self._streams = streams
        self._conditionals = conditionals
        self._recorders = CaptureStreams(streams)
        """The streams for captures, one for each lane."""

    def create(self, nodes: Sequence[GraphNode], orders: Sequence[NodeOrder] | None = None) -> Graph:
        """Creates a graph by capturing in relaxed mode.

        In this mode, other threads of the process (compiles, page locks) may call CUDA at the same time.
        """
        lanes = self._recorders.first(1 + max((order.lane for order in orders or ()), default=0))
        stream = lanes[0]
        captured = executable = 0
        kernels: list[Any] | None = None
        with translated(
            f"making a graph of {len(nodes)} nodes",
            Reason.CAPTURE_INVALID,
            fix="record fewer nodes in one graph, or launch them one by one",
            details={"nodes": len(nodes)},
        ):
            try:
                runtime.streamBeginCapture(stream.pointer, runtime.streamCaptureModeRelaxed)
                try:
                    if orders is None:
                        self._replay_chain(nodes, stream)
                    else:
                        kernels = self._replay_lanes(nodes, orders, lanes)
                except BaseException:
                    with suppress(*CudaError):  # the stream ends the capture even if the capture was invalidated
                        captured = runtime.streamEndCapture(stream.pointer)
                    self._recorders.drop(1)
                    raise
                captured = runtime.streamEndCapture(stream.pointer)
                self._recorders.drop(MAX_LANES)
                executable = runtime.graphInstantiate(captured)
                runtime.graphUpload(executable, stream.pointer)
                uploaded = self._streams.record(stream)
            except BaseException:
                _destroy(captured, executable)
                raise
        return Graph(nodes, captured, executable, uploaded, kernels)

    def _replay_chain(self, nodes: Sequence[GraphNode], stream: Stream, depth: int = 0) -> None:
        """Enqueues nodes that run one after the other, with the bodies of conditional nodes among them.

        `depth` is the number of bodies that contain the nodes.
        """
        index = 0
        while index < len(nodes):
            node = nodes[index]
            if isinstance(node, ConditionalNode):
                self._replay_conditional(node, nodes, index, stream, depth)
                index += node.size
            else:
                replay(self._server, (node,), stream)
            index += 1

    def _replay_conditional(
        self, node: ConditionalNode, nodes: Sequence[GraphNode], index: int, stream: Stream, depth: int = 0
    ) -> None:
        """Enqueues the node at `index` with its bodies. Empty bodies are left out, except that of a loop."""
        bodies = {
            body: partial(self._replay_chain, nodes[indices.start : indices.stop], depth=depth + 1)
            for body, indices in node.ranges(index)
            if indices or node.kind is Conditional.WHILE
        }
        if bodies:  # otherwise the node has no effect
            self._conditionals.add(node, stream, depth, bodies)

    def _replay_lanes(
        self, nodes: Sequence[GraphNode], orders: Sequence[NodeOrder], lanes: Sequence[Stream]
    ) -> list[Any]:
        """Enqueues each node on the stream of its lane, after the nodes of other lanes that it depends on.

        Returns the driver's kernel nodes. Lane 0 is being captured; the other streams join its capture by events, and
        lane 0 waits for all of them at the end.
        """
        streams = self._streams
        followed = {
            predecessor for order in orders for predecessor in order.after if orders[predecessor].lane != order.lane
        }  # an event is recorded after each of these nodes
        events: dict[int, Event] = {}
        kernels: list[Any] = []
        start = streams.record(lanes[0])
        joined = {0}
        done = 0  # number of nodes that have been enqueued, with the bodies of conditional nodes
        try:
            for index, (node, order) in enumerate(zip(nodes, orders, strict=True)):
                if index < done:
                    continue
                done = index + 1
                stream = lanes[order.lane]
                waits = [events[predecessor] for predecessor in order.after if orders[predecessor].lane != order.lane]
                if order.lane not in joined and not waits:
                    waits.append(start)
                joined.add(order.lane)
                for event in waits:
                    streams.wait(stream, event)
                if isinstance(node, ConditionalNode):
                    done += node.size
                    self._replay_conditional(node, nodes, index, stream)
                else:
                    replay(self._server, (node,), stream)
                if isinstance(node, KernelNode):
                    kernels.append(_last_node(stream))
                for follower in followed.intersection(range(index, done)):
                    events[follower] = streams.record(stream)
            for lane in joined - {0}:
                end = streams.record(lanes[lane])
                streams.wait(lanes[0], end)
                streams.release_event(end)
        finally:
            for event in (start, *events.values()):
                streams.release_event(event)
        return kernels

    def launch(self, graph: Graph, stream: Stream, times: int = 1) -> None:
        """Enqueues launches of the graph. The driver runs each after earlier launches of the same graph.

        The driver runs launches one after another, and after earlier work of their stream, but does not promise to
        run a launch after an upload on another stream (cuGraphLaunch, cuGraphUpload).
        """
        uploaded = graph.uploaded
        if uploaded is not None:
            self._streams.wait(stream, uploaded)
            self._forget_upload(graph)
        executable, pointer = graph.executable, stream.pointer
        try:
            for _ in range(times):
                graphLaunch(executable, pointer)
        except CudaError as error:
            raise translate(error, "launching a graph", Reason.LAUNCH_FAILED) from error

    def update(self, graph: Graph, index: int, node: KernelNode) -> None:
        """Changes a kernel node's parameters. Earlier launches keep theirs (cuGraphExecKernelNodeSetParams)."""
        function = node.function
        if node.shared_mem > function.dynamic_limit:
            function.allow_shared(node.shared_mem)
        block = ctypes.create_string_buffer(bytes(node.params), max(1, len(node.params)))
        start = ctypes.addressof(block)
        # An array of addresses, because cooperative kernels do not accept the whole block.
        addresses = (ctypes.c_void_p * max(1, len(function.parameters)))(
            *(start + offset for offset, _ in function.parameters)
        )
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = driver.CUfunction(function.pointer)
        params.gridDimX, params.gridDimY, params.gridDimZ = node.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = node.block
        params.sharedMemBytes = node.shared_mem
        params.kernelParams = ctypes.addressof(addresses)
        try:
            if graph.kernels is None:
                graph.kernels = _kernel_nodes(graph)
            kernel = graph.kernels[sum(graph.nodes[:index])]
            checked(driver.cuGraphExecKernelNodeSetParams(graph.executable, kernel, params))
        except CudaError as error:
            raise translate(
                error,
                f"changing node {index} ({function.name}) of a graph",
                Reason.LAUNCH_INVALID,
                fix="record the graph again where more than arguments and geometry must change",
                details={"node": index, "kernel": function.name, "grid": node.grid, "block": node.block},
            ) from error

    def destroy(self, graph: Graph) -> None:
        """Destroys the graph; if it is still running, the driver frees it afterwards. Further calls have no effect."""
        captured, executable = graph.captured, graph.executable
        graph.captured = graph.executable = 0
        graph.kernels = None
        self._forget_upload(graph)
        _destroy(captured, executable)

    def _forget_upload(self, graph: Graph) -> None:
        uploaded, graph.uploaded = graph.uploaded, None
        if uploaded is not None:
            self._streams.release_event(uploaded)


def _destroy(captured: int, executable: int) -> None:
    with suppress(*CudaError):
        if executable:
            runtime.graphExecDestroy(executable)
    with suppress(*CudaError):
        if captured:
            runtime.graphDestroy(captured)


def _last_node(stream: Stream) -> Any:
    """Returns the node that a stream being captured added last, which is the only one that its next node follows."""
    _status, _id, _graph, dependencies, *_ = checked(driver.cuStreamGetCaptureInfo(stream.pointer))
    (node,) = dependencies
    return node


def _kernel_nodes(graph: Graph) -> list[Any]:
    """Returns the kernel nodes in the order in which they run: the capture of one stream is a chain.

    Copies and fills make nodes of other types, possibly several for one call, so the n-th kernel node is the n-th
    launch.
    """
    (roots, *_) = checked(driver.cuGraphGetRootNodes(graph.captured, 1))
    # version 2 also returns the kinds of the edges; version 1 refuses graphs with edges of programmatic launches
    get_edges = getattr(driver, "cuGraphGetEdges_v2", driver.cuGraphGetEdges)
    count = checked(get_edges(graph.captured))[-1]
    successors: dict[int, Any] = {}
    if count:
        edges = checked(get_edges(graph.captured, count))
        successors = {int(start): end for start, end in zip(edges[0], edges[1], strict=True)}
    kernels: list[Any] = []
    node: Any = roots[0]
    while node is not None:
        (kind,) = checked(driver.cuGraphNodeGetType(node))
        if kind == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            kernels.append(node)
        node = successors.get(int(node))
    if len(kernels) != sum(graph.nodes):
        raise Refusal(
            Reason.INTERNAL,
            f"a graph of {sum(graph.nodes)} launches has {len(kernels)} kernel nodes",
            fix="report it with the daemon's log",
        )
    return kernels
