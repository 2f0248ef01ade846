"""Conditional nodes of CUDA graphs: their handles, and the kernel that gives a handle the value of 4 bytes of memory.

The condition of a node is a value in device memory, which kernels write as they write any other memory. CUDA decides by
a handle instead, which only a kernel of the graph can set (cudaGraphSetConditional). So a kernel of one thread sets the
handle to the value in memory, in front of the node and at the end of a loop's body. It is PTX, because the driver
resolves the function when it loads the code; the compilers do not know it.

Nodes of one body need CUDA 12.4; those of several bodies, `if` with `else` and `switch`, need CUDA 12.8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cuda.bindings import driver
from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Image
from hearthd.device.backend.graph_nodes import BRANCHES, Conditional, ConditionalNode
from hearthd.device.cuda.errors import CudaError, checked
from hearthd.device.cuda.launch import CudaFunction, CudaLauncher
from hearthd.device.cuda.streams import CaptureStreams, CudaStreams, Stream

_BRANCHES_DRIVER = 12080
"""Oldest CUDA version of a driver with conditional nodes of several bodies, 12.8."""
_SETTER = "hearth_set_condition"
_PTX = f"""
.version 6.0
.target sm_50
.address_size 64

.extern .func cudaGraphSetConditional
(
    .param .b64 cudaGraphSetConditional_param_0,
    .param .b32 cudaGraphSetConditional_param_1
)
;

.visible .entry {_SETTER}(
    .param .u64 handle,
    .param .u64 address
)
{{
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;

    ld.param.u64 %rd1, [handle];
    ld.param.u64 %rd2, [address];
    cvta.to.global.u64 %rd3, %rd2;
    ld.global.u32 %r1, [%rd3];
    {{
    .param .b64 param0;
    st.param.b64 [param0+0], %rd1;
    .param .b32 param1;
    st.param.b32 [param1+0], %r1;
    call.uni cudaGraphSetConditional, (param0, param1);
    }}
    ret;
}}
"""


class ConditionalNodes:
    """Adds conditional nodes to graphs that are being captured."""

    def __init__(self, launcher: CudaLauncher, streams: CudaStreams) -> None:
        self._launcher = launcher
        self._setter: CudaFunction | None = None
        self._recorders = CaptureStreams(streams)
        """Streams for the captures of bodies, by depth."""

    def load(self) -> None:
        """Loads the kernel that sets handles. A second call has no effect."""
        if self._setter is None:
            self._setter = self._launcher.load(Image(_PTX.encode())).function(_SETTER)

    def add(
        self, node: ConditionalNode, stream: Stream, depth: int, bodies: Mapping[int, Callable[[Stream], None]]
    ) -> None:
        """Adds a node after the nodes of a stream that is being captured.

        Each entry of `bodies` enqueues the body of this index on another stream, whose capture is the body's graph;
        indices without an entry have empty bodies. `depth` is the number of bodies that contain the node. Raises
        CudaError, and what the entries raise.
        """
        handle = self._new_handle(stream)
        self._set(handle, node.address, stream)
        graphs = _add_node(handle, node.kind, 1 + max(bodies), stream)
        for index, add_body in bodies.items():
            self._capture_body(graphs[index], handle, node, depth, add_body)

    def _capture_body(
        self, body: Any, handle: Any, node: ConditionalNode, depth: int, add_body: Callable[[Stream], None]
    ) -> None:
        recorder = self._recorders.first(depth + 1)[depth]
        checked(driver.cuStreamBeginCaptureToGraph(recorder.pointer, body, None, None, 0, _RELAXED))
        try:
            add_body(recorder)
            if node.kind is Conditional.WHILE:
                self._set(handle, node.address, recorder)
        except BaseException:
            with suppress(*CudaError):
                runtime.streamEndCapture(recorder.pointer)
            self._recorders.drop(depth)  # deeper streams may still be captured
            raise
        runtime.streamEndCapture(recorder.pointer)  # the body's graph, which belongs to the node

    def _new_handle(self, stream: Stream) -> Any:
        if self._setter is None:
            raise Refusal(Reason.INTERNAL, "the kernel of conditional nodes is not loaded", fix="report it")
        graph, _dependencies, _count = _capture(stream)
        (context,) = checked(driver.cuCtxGetCurrent())
        (handle,) = checked(driver.cuGraphConditionalHandleCreate(graph, context, 0, 0))
        return handle

    def _set(self, handle: Any, address: int, stream: Stream) -> None:
        assert self._setter is not None, "`_new_handle` has made the handle"
        params = bytearray(struct.pack("<QQ", int(handle), address))
        self._launcher.launch(self._setter, (1, 1, 1), (1, 1, 1), 0, stream, params)


_RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


def _capture(stream: Stream) -> tuple[Any, Sequence[Any], int]:
    """Returns the graph that a stream is captured into, and what its next node depends on.

    The dependencies are the arguments that functions of `cuda.bindings` take for them: the nodes and, from version 13
    on, the data of the edges. The number of nodes follows.
    """
    _status, _id, graph, *dependencies, count = checked(driver.cuStreamGetCaptureInfo(stream.pointer))
    return graph, dependencies, int(count)


def branch_features(driver_version: int) -> list[str]:
    """Returns the features that conditional nodes of several bodies need, by the driver's CUDA version."""
    return [BRANCHES] if driver_version >= _BRANCHES_DRIVER else []


def _add_node(handle: Any, kind: Conditional, bodies: int, stream: Stream) -> Sequence[Any]:
    """Adds a conditional node after the nodes of a stream that is being captured. Returns the graphs of its bodies."""
    (context,) = checked(driver.cuCtxGetCurrent())
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = getattr(driver.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{kind.name}")
    params.conditional.size = bodies
    params.conditional.ctx = context
    graph, dependencies, count = _capture(stream)
    (node,) = checked(driver.cuGraphAddNode(graph, *dependencies, count, params))
    edges = [None] * (len(dependencies) - 1)
    replace = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    checked(driver.cuStreamUpdateCaptureDependencies(stream.pointer, [node], *edges, 1, replace))
    graphs: Sequence[Any] = params.conditional.phGraph_out
    return graphs
