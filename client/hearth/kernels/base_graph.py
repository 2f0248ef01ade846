"""Abstract graphs: work that is recorded and checked once, and then run any number of times with one small command.

Inside ``with gpu.graph() as g:`` a private stream is current. Launches, copies and fills on it are recorded instead of
run; other work on it is refused. The memory and modules that a graph uses exist as long as the graph, even if the
program has dropped the arrays and modules.

`BaseGraph` has everything that `hearth.Graph` and `hearth.aio.Graph` have in common.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from hearth import base_stream as streams
from hearth.errors import HearthError, LaunchError
from hearth.kernels import launch_config
from hearth.kernels.graph_program import Program, count
from hearth.kernels.recorders import CaptureRecorder
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.base_stream import BaseStream, LaunchCall
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.memory import Kind
    from hearth.session.reply import PendingResult


class GraphNode:
    """A launch, copy or fill in a graph."""

    def __init__(self, graph: BaseGraph, index: int, kind: str, kernel: str, call: LaunchCall | None) -> None:
        self._graph = graph
        self._call = call
        self.index = index
        """Position in the graph, from 0."""
        self.kind = kind
        """``"kernel"``, ``"copy"`` or ``"fill"``."""
        self.kernel = kernel
        """The kernel's name; empty for copies and fills."""

    def set_args(
        self, args: Sequence[Any], *, grid: Any = None, block: Any = None, shared_mem: int | None = None
    ) -> None:
        """Replaces the arguments of a launch in the graph, and its geometry if one is given. Does not block.

        Launches of the graph that were submitted earlier keep their arguments, even if they are still running.

        Args:
            args: The kernel's arguments.
            grid: Blocks along each axis; None: as before.
            block: Threads along each axis; None: as before.
            shared_mem: Dynamic shared memory in bytes; None: as before.

        Raises:
            LaunchError: The node is not a launch, or the client has found the new launch invalid. Other failures are
                reported by the next sync, read or flush of the current stream.
            InvalidHandleError: The graph is closed, or was lost with its device process.
        """
        call = self._call
        if call is None:
            raise LaunchError(
                f"{self!r} is not a kernel launch, so it has no arguments that can be changed.",
                reason="INVALID_ARGUMENT",
                fix='choose a node whose kind is "kernel".',
                details={"node": str(self.index)},
            )
        connection = self._graph._connection
        attachment = self._graph._usable()
        call = call._replace(
            grid=call.grid if grid is None else grid,
            block=call.block if block is None else block,
            shared_mem=call.shared_mem if shared_mem is None else shared_mem,
        )
        command = commands_pb2.Command(stream=streams.resolve(None, connection, attachment))
        command.update_graph.graph = self._graph._handle
        command.update_graph.node = self.index
        default = streams.BaseStream(connection, default=True)
        command.update_graph.launch = call.function._pack(
            attachment, call.grid, call.block, args, call.shared_mem, default, None, call.mode, call.cooperative,
            call.cluster,
        )  # fmt: skip
        attachment.submit(command)
        self._call = call

    def __repr__(self) -> str:
        return f"<hearth.GraphNode {self.index}: {' '.join(filter(None, (self.kind, self.kernel)))}>"


class BaseGraph(Program):
    """Abstract graph: its nodes and launches, and the requests that begin and end its recording."""

    _kind: Kind = "graph"
    _what = "the graph"

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._nodes: tuple[GraphNode, ...] = ()
        self._captured: BaseStream | None = None
        """The stream from which the work is recorded."""
        self._recorder: CaptureRecorder | None = None
        self._begun: Attachment | None = None
        self._last: _GraphLaunch | None = None

    # ---- recording ----

    def _begin(self) -> None:
        self._ready_to_enter()
        connection = self._connection
        attachment = connection.attachment()
        stream, recorder = self._stream_type(connection), CaptureRecorder(connection)
        stream._recorder = recorder
        handle = connection.mint()
        command = commands_pb2.Command(stream=stream._handle_on(attachment))
        command.begin_capture.graph = handle
        attachment.submit(command)
        self._handle, self._begun, self._captured, self._recorder = handle, attachment, stream, recorder
        stream.__enter__()

    def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> PendingResult[None] | None:
        stream, recorder, attachment = self._captured, self._recorder, self._begun
        assert stream is not None and recorder is not None and attachment is not None, (
            "left without having been entered"
        )
        stream.__exit__(kind, error, trace)
        self._captured = self._recorder = self._begun = None
        command = commands_pb2.Command(stream=stream._handle)
        command.end_capture.graph = self._handle
        if error is not None:
            command.end_capture.discard = True
            self._closed = True
            with contextlib.suppress(HearthError):  # the block's own exception takes precedence
                attachment.submit(command)
            return None
        self._space = attachment.space

        def read(result: commands_pb2.Result) -> None:
            calls = (call for call in recorder.calls for _ in range(call.iterations))
            self._nodes = tuple(
                GraphNode(self, index, node.kind, node.kernel, next(calls, None) if node.kind == "kernel" else None)
                for index, node in enumerate(result.graph.nodes)
            )

        with self._or_closed():
            return self._connection.request(command, read, attachment)

    # ---- use ----

    def launch(self, n: SupportsIndex = 1, stream: BaseStream | None = None, *, timeout: float | None = None) -> None:
        """Launches the graph as one command, which is ordered like all the work in the graph. Does not block.

        Args:
            n: Number of launches in a row, from 1.
            stream: Stream to launch on; None: the current one.
            timeout: Seconds that each launch may take, after which the device process is ended; None: the session's
                limit.

        Raises:
            ArgumentError: `n` or `timeout` is out of range, the graph has not been recorded, or `stream` belongs to
                another device or session.
            InvalidHandleError: The graph is closed, or was lost with its device process.
            LaunchError: The stream is being recorded.
        """
        attachment = self._usable()
        on = streams.resolve(stream, self._connection, attachment)
        target = self._target(stream)
        if target is not None and target._recorder is not None:
            raise LaunchError(
                "a graph cannot be launched while another graph is being recorded.",
                reason="CAPTURE_INVALID",
                fix="launch it after the block, or record its work again in the block.",
            )
        if self._last is None or self._last.on != on or self._last.timeout != timeout:
            self._last = _GraphLaunch(self._handle, on, timeout)
        attachment.count_up(self._last, count(n), self._last.command)

    def update(
        self,
        node: int,
        args: Sequence[Any],
        *,
        grid: Any = None,
        block: Any = None,
        shared_mem: int | None = None,
    ) -> None:
        """Replaces the arguments of a launch in the graph: `GraphNode.set_args` by number. Does not block.

        Args:
            node: Index of the node in `nodes`.
            args: The kernel's arguments.
            grid: Blocks along each axis; None: as before.
            block: Threads along each axis; None: as before.
            shared_mem: Dynamic shared memory in bytes; None: as before.

        Raises:
            IndexError: There is no such node.
            LaunchError: An error that `GraphNode.set_args` raises.
        """
        self.nodes[node].set_args(args, grid=grid, block=block, shared_mem=shared_mem)

    @property
    def nodes(self) -> tuple[GraphNode, ...]:
        """The recorded launches, copies and fills, in order.

        A launch with `iterations` makes one node for each iteration.
        """
        return self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def __bool__(self) -> bool:
        return True  # a graph is true even if it is empty

    def __repr__(self) -> str:
        state = ", being recorded" if self._recorder is not None else self._state()
        return f"<hearth.Graph of {len(self)} nodes on device {self._connection.ordinal}{state}>"


class _GraphLaunch:
    """The launch of one graph on one stream.

    The object identifies the command while repeated launches are merged into it.
    """

    def __init__(self, graph: int, on: int, timeout: float | None) -> None:
        self.on = on
        self.timeout = timeout
        self._graph = graph
        self._timeout_ns = launch_config.nanoseconds(timeout)

    def command(self, n: int) -> bytes:
        """Serializes the command for a number of launches.

        Args:
            n: Number of launches.

        Returns:
            The serialized command.
        """
        launch = commands_pb2.LaunchGraph(graph=self._graph, count=n, timeout_ns=self._timeout_ns)
        return commands_pb2.Command(stream=self.on, launch_graph=launch).SerializeToString()
