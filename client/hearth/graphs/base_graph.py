"""Abstract graphs: work that is recorded and checked once, and then run any number of times with one small command.

Inside ``with gpu.graph() as g:`` a private stream is current. Launches, copies and fills on it are recorded instead of
run, and so are copies from and to pinned host memory; other work on it is refused. ``with g.if_(condition):`` and
``with g.while_(condition):`` record the body of a conditional node, ``with g.else_():`` the other body of an `if_`, and
``with g.case_(value):``, inside ``with g.switch_(condition):``, a body of a switch. `begin_capture` and `end_capture`
of a stream record that stream instead, and events let further streams join. The memory and modules that a graph uses
exist as long as the graph, even if the program has dropped the arrays and modules.

`BaseGraph` has everything that `hearth.Graph` and `hearth.aio.Graph` have in common.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex

from hearth import base_stream as streams
from hearth.codec import timeouts
from hearth.cupy_names import CupyNames
from hearth.errors import ArgumentError, HearthError, LaunchError, UnsupportedError
from hearth.graphs import conditional_bodies, dot
from hearth.graphs.program import Program
from hearth.graphs.recorders import CaptureRecorder, default_stream_error, one_by_one
from hearth.session.late_errors import current_origin
from hearth.session.reply import CompletionHandler, reported_elsewhere
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.base_stream import BaseStream
    from hearth.interfaces import ArrayLike
    from hearth.launch_recorder import LaunchCall
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.late_errors import ErrorOrigin
    from hearth.session.memory import Kind
    from hearth.session.reply import PendingResult


_OTHER_MEMORY = "change the contents of the pinned array, or record the graph again with another one."
_OTHER_CONDITION = "change the value of the condition, or record the graph again."
_FIXES = {
    "write": _OTHER_MEMORY, "read": _OTHER_MEMORY, "if": _OTHER_CONDITION, "while": _OTHER_CONDITION,
    "switch": _OTHER_CONDITION,
}  # fmt: skip
"""Fixes of `GraphNode.set_args` by the kinds of nodes that have no arguments."""


class GraphNode:
    """A launch, copy, fill or condition in a graph."""

    def __init__(
        self,
        graph: BaseGraph,
        index: int,
        kind: str,
        kernel: str,
        after: Sequence[int],
        call: LaunchCall | None,
        bodies: tuple[range, ...] = (),
    ) -> None:
        self._graph = graph
        self._call = call
        """The launch with the geometry that `set_args` passed last, unless the daemon has refused it."""
        self._accepted = call
        """The launch with the geometry that the daemon accepted last."""
        self.index = index
        """Position in the graph, from 0."""
        self.kind = kind
        """``"kernel"``, ``"copy"``, ``"fill"``; ``"write"`` or ``"read"``: a copy from or to pinned memory; ``"if"``,
        ``"while"`` or ``"switch"``: a conditional node."""
        self.kernel = kernel
        """The kernel's name; empty for other kinds of nodes."""
        self.bodies = bodies
        """Indices of the nodes of each body of a conditional node: that of `while_`; those of `if_` and, if there is
        one, `else_`; or those of a switch by value, empty for values without a `case_`. Empty for other kinds."""
        self.body = range(index + 1, max((body.stop for body in self.bodies), default=index + 1))
        """Indices of the nodes of all bodies of a conditional node; empty for other kinds of nodes."""
        self.after = tuple(after)
        """Indices of the nodes that complete before this node starts; nodes before those are not listed."""

    def set_args(
        self, args: Sequence[Any], *, grid: Any = None, block: Any = None, shared_mem: int | None = None
    ) -> None:
        """Replaces the arguments of a node of the graph, and the geometry of a launch if one is given. Does not block.

        Launches of the graph that were submitted earlier keep their arguments, even if they are still running. The
        daemon changes a launch in place; for a copy or a fill it makes the graph again, which takes as long as the end
        of the recording. If the daemon refuses the update, the node keeps its arguments and geometry.

        Args:
            args: The kernel's arguments; destination and source of a copy; or array and value of a fill.
            grid: Blocks along each axis; None: as before.
            block: Threads along each axis; None: as before.
            shared_mem: Dynamic shared memory in bytes; None: as before.

        Raises:
            LaunchError: The client has found the new launch invalid, or the arguments are not those of a copy or fill;
                or the node is a copy from or to pinned memory, or a conditional node, which have no arguments to
                replace. Other failures are reported by the next sync, read or flush of the current stream.
            ArgumentError: The arrays of a copy or fill do not fit, or need more than one node.
            InvalidHandleError: The graph is closed, or was lost with its device process.
            UnsupportedError: The daemon is too old to change copies and fills.
        """
        call = self._call
        attachment = self._graph._usable()
        if call is None:
            self._set_operands(args, grid is block is shared_mem is None)
            return
        call = call._replace(
            grid=call.grid if grid is None else grid,
            block=call.block if block is None else block,
            shared_mem=call.shared_mem if shared_mem is None else shared_mem,
        )
        command = self._update_command(attachment)
        default = streams.BaseStream(self._graph._connection, default=True)
        command.update_graph.launch = call.function._pack(
            attachment, call.grid, call.block, args, call.shared_mem, default, None, call.mode, call.cooperative,
            call.cluster, attributes=call.attributes,
        )  # fmt: skip
        if grid is block is shared_mem is None:
            attachment.submit(command)
            return
        origin = current_origin("update_graph", command.stream, self._graph._handle)
        answered = CompletionHandler(partial(self._geometry_set, call, attachment, origin))
        self._call = call
        try:
            attachment.submit_serialized(command.SerializeToString(), answered, one_way=True)
        except HearthError:  # the command was not queued
            self._call = self._accepted
            raise

    def _geometry_set(
        self,
        call: LaunchCall,
        attachment: Attachment,
        origin: ErrorOrigin,
        _: commands_pb2.Result | None,
        error: HearthError | None,
    ) -> None:
        """Receives the answer to a change of the geometry: a refused one is withdrawn. See `CompletionHandler`."""
        if error is None:
            self._accepted = call
            return
        if self._call is call:
            self._call = self._accepted
        if not reported_elsewhere(attachment.session.error, error):
            self._graph._connection.defer(error, origin)

    def _set_operands(self, args: Sequence[Any], plain: bool) -> None:
        """Replaces the operands of a copy or fill. `plain` is False if the caller has passed a geometry."""
        from hearth.graphs import node_operands

        connection = self._graph._connection
        if self.kind in _FIXES:
            raise LaunchError(
                f"{self!r} has no arguments that can be replaced.",
                reason="INVALID_ARGUMENT",
                fix=_FIXES[self.kind],
                details={"node": str(self.index)},
            )
        if not plain:
            raise LaunchError(
                f"{self!r} is no launch, and has neither a grid, nor a block, nor shared memory.",
                reason="INVALID_ARGUMENT",
                fix="pass args only.",
                details={"node": str(self.index)},
            )
        streams.check_composition(connection, "does not change copies and fills of graphs")
        work = node_operands.command(self.kind, args, connection)
        attachment = self._graph._usable()
        command = self._update_command(attachment)
        if self.kind == "copy":
            command.update_graph.copy.CopyFrom(work.copy)
        else:
            command.update_graph.fill.CopyFrom(work.fill)
        attachment.submit(command)

    def _update_command(self, attachment: Attachment) -> commands_pb2.Command:
        """Returns a command that changes the node; the caller adds the launch, copy or fill."""
        command = commands_pb2.Command(stream=streams.resolve(None, self._graph._connection, attachment))
        command.update_graph.graph, command.update_graph.node = self._graph._handle, self.index
        return command

    def _box(self) -> dot.Box:
        """Returns the node as `BaseGraph.debug_dot_str` draws it."""
        call = self._call
        label = " ".join(filter(None, (str(self.index), self.kind, self.kernel)))
        if call is not None:
            label += f"\ngrid {call.grid}, block {call.block}, shared memory {call.shared_mem}"
        return dot.Box(self.index, self.kind, label, self.after, self.bodies)

    def __repr__(self) -> str:
        return f"<hearth.GraphNode {self.index}: {' '.join(filter(None, (self.kind, self.kernel)))}>"


class BaseGraph(CupyNames, Program):
    """Abstract graph: its nodes and launches, and the requests that begin and end its recording."""

    _cupy = "Graph"
    _kind: Kind = "graph"
    _noun = "the graph"

    def __init__(self, connection: Connection, stream_type: type[BaseStream], mode: str | int | None = None) -> None:
        super().__init__(connection, stream_type)
        self._relaxed = _relaxed(mode)
        self._nodes: tuple[GraphNode, ...] = ()
        self._children: tuple[range, ...] = ()
        self._captured: BaseStream | None = None
        """The stream from which the work is recorded."""
        self._recorder: CaptureRecorder | None = None
        """Set while the graph is being recorded, as `_captured` is."""

    # ---- recording ----

    def _begin(self) -> None:
        self._ready_to_enter()
        stream = self._stream_type(self._connection)
        self._capture(stream)
        stream.__enter__()

    def _capture(self, stream: BaseStream) -> None:
        """Begins to record the work of a stream. Raises LaunchError if the stream cannot be captured."""
        connection = self._connection
        if stream._default:
            raise default_stream_error("be captured")
        if stream.is_capturing():
            raise LaunchError(
                f"{stream!r} is in a capture already.", reason="CAPTURE_INVALID", fix="end that capture first."
            )
        attachment = connection.attachment()
        command = commands_pb2.Command(stream=stream._handle_on(attachment))
        recorder = CaptureRecorder(connection, attachment, stream, relaxed=self._relaxed)
        handle = connection.mint()
        command.begin_capture.graph = handle
        try:
            attachment.submit(command)
        except BaseException:
            recorder.end()
            raise
        self._handle, self._captured, self._recorder = handle, stream, recorder

    @contextlib.contextmanager
    def if_(self, condition: ArrayLike) -> Iterator[None]:
        """Records the work in the block as the body of a conditional node: ``with g.if_(condition):``.

        Each launch of the graph runs the body if the value of the condition is not 0 when the device reaches the node.
        A kernel of the graph sets the value by a pointer to the array, or by CUDA's ``cudaGraphSetConditional(handle,
        value)``, if the array is passed for a parameter of type ``cudaGraphConditionalHandle``.

        Args:
            condition: An array of one element of a 4-byte integer type.

        Raises:
            LaunchError: The graph is not being recorded.
            ArgumentError: `condition` is not such an array of this device.
            UnsupportedError: The daemon is too old for conditional nodes.
        """
        yield from self._conditional(condition)

    @contextlib.contextmanager
    def while_(self, condition: ArrayLike) -> Iterator[None]:
        """Records the work in the block as the body of a loop: ``with g.while_(condition):``.

        Each launch of the graph runs the body again and again, for as long as the value of the condition is not 0
        before it. The time limit of the launch applies to all rounds together.

        Args:
            condition: An array of one element of a 4-byte integer type; see `if_`.

        Raises:
            HearthError: An error that `if_` raises.
        """
        yield from self._conditional(condition, loop=True)

    @contextlib.contextmanager
    def else_(self) -> Iterator[None]:
        """Records the work in the block as the other body of an `if_`: ``with g.else_():``.

        Must follow the block of the `if_` directly, with no other work, event or wait between the two. Each launch of
        the graph runs this body if the value of the condition is 0 when the device reaches the `if_`.

        Raises:
            LaunchError: The graph is not being recorded. The end of the recording raises it if no `if_` has ended
                directly before.
            UnsupportedError: The daemon is too old for `else_`. The end of the recording raises an error if the device
                has none (feature ``"graph_branches"``).
        """
        yield from self._branch(commands_pb2.BeginBranch(otherwise=True))

    @contextlib.contextmanager
    def switch_(self, condition: ArrayLike) -> Iterator[None]:
        """Records a node that runs one of several bodies: ``with g.switch_(condition):``.

        The block contains a block ``with g.case_(value):`` for each body, and no other work. Each launch of the graph
        runs the body for the value that the condition has when the device reaches the node, and none if there is no
        such body.

        Args:
            condition: An array of one element of a 4-byte integer type; see `if_`.

        Raises:
            HearthError: An error that `if_` or `else_` raises.
        """
        yield from self._conditional(condition, switch=True)

    @contextlib.contextmanager
    def case_(self, value: SupportsIndex) -> Iterator[None]:
        """Records the work in the block as the body of a switch for one value: ``with g.case_(value):``.

        Args:
            value: Value of the condition for which the body runs, from 0 to 255. Values come in any order, each once.

        Raises:
            ArgumentError: `value` is out of range.
            LaunchError: The graph is not being recorded. The end of the recording raises it outside of a `switch_`,
                and for a second body of the same value.
            UnsupportedError: The daemon is too old for `switch_`.
        """
        yield from self._branch(commands_pb2.BeginBranch(value=conditional_bodies.case_value(value)))

    def _conditional(self, condition: ArrayLike, *, loop: bool = False, switch: bool = False) -> Iterator[None]:
        recorder = self._ready_for_body(branches=switch)
        begin = commands_pb2.BeginConditional(loop=loop, switch=switch)
        begin.buffer, begin.offset = conditional_bodies.condition_operand(condition, self._connection)
        yield from self._body(recorder, commands_pb2.Command(begin_conditional=begin))

    def _branch(self, begin: commands_pb2.BeginBranch) -> Iterator[None]:
        recorder = self._ready_for_body(branches=True)
        yield from self._body(recorder, commands_pb2.Command(begin_branch=begin))

    def _ready_for_body(self, *, branches: bool) -> CaptureRecorder:
        """Returns the recorder. Raises an error if no body can be recorded."""
        recorder = self._recorder
        if recorder is None:
            raise LaunchError(
                f"{self!r} is not being recorded, and has no further conditional nodes.",
                reason="CAPTURE_INVALID",
                fix="use the block inside that of the recording: with gpu.graph() as g.",
            )
        limits = self._connection.limits
        if not (limits.graph_branches if branches else limits.graph_conditionals):
            missing = "else_ and no switch_" if branches else "conditional nodes"
            raise UnsupportedError(
                f"the daemon is of an older version, which has no {missing}.",
                fix="record an if_ for each body, or update the daemon."
                if limits.graph_conditionals
                else "read the condition, and launch one graph or another, or update the daemon.",
            )
        return recorder

    def _body(self, recorder: CaptureRecorder, begin: commands_pb2.Command) -> Iterator[None]:
        current, captured = streams.current(self._connection), self._captured
        assert captured is not None
        stream = current if current is not None and current._capture is recorder else captured
        begin.stream = stream._handle
        recorder.attachment.submit(begin)
        try:
            yield
        finally:
            if self._recorder is recorder:  # the recording has not ended in the block
                end = commands_pb2.Command(stream=stream._handle)
                end.end_conditional.SetInParent()
                recorder.attachment.submit(end)

    def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> PendingResult[None] | None:
        assert self._captured is not None, "left without having been entered"
        self._captured.__exit__(kind, error, trace)
        return self._end_capture(error)

    def _end_capture(self, error: BaseException | None = None) -> PendingResult[None] | None:
        """Ends the recording, or discards it because of an error. Returns the request as `_end`."""
        stream, recorder = self._captured, self._recorder
        assert stream is not None and recorder is not None
        attachment = recorder.attachment
        recorder.end()
        self._captured = self._recorder = None
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
            calls = one_by_one(recorder.calls)
            graph = result.graph
            self._nodes = tuple(
                GraphNode(
                    self,
                    index,
                    node.kind,
                    node.kernel,
                    node.after if graph.forked else range(max(index - 1, 0), index),
                    next(calls, None) if node.kind == "kernel" else None,
                    conditional_bodies.ranges(index, node),
                )
                for index, node in enumerate(graph.nodes)
            )
            self._children = tuple(
                range(child.first, child.first + child.nodes) for child in graph.children if child.nodes
            )

        with self._or_closed():
            return self._connection.request(command, read, attachment)

    # ---- use ----

    def launch(self, n: SupportsIndex = 1, stream: BaseStream | None = None, *, timeout: float | None = None) -> None:
        """Launches the graph as one command, which is ordered like all the work in the graph. Does not block.

        Args:
            n: Number of launches in a row, from 1.
            stream: Stream to launch on; None: the current one. If another graph is being recorded from the stream, that
                graph receives copies of the nodes, as they are now.
            timeout: Seconds that each launch may take, after which the device process is ended; None: the session's
                limit. Not allowed while another graph is being recorded from the stream.

        Raises:
            ArgumentError: `n` or `timeout` is out of range, the graph has not been recorded, or `stream` belongs to
                another device or session.
            InvalidHandleError: The graph is closed, or was lost with its device process.
            LaunchError: Launches are being prepared on the stream, or the stream is not in the capture that this thread
                has begun.
            UnsupportedError: The daemon is too old to record launches of graphs.
        """
        self._launch(n, stream, timeout)

    def _launch_command(self, stream: int, timeout: float | None) -> Callable[[int], bytes]:
        graph, timeout_ns = self._handle, timeouts.nanoseconds(timeout)

        def command(n: int) -> bytes:
            launch = commands_pb2.LaunchGraph(graph=graph, count=n, timeout_ns=timeout_ns)
            return commands_pb2.Command(stream=stream, launch_graph=launch).SerializeToString()

        return command

    def _calls_to_record(self) -> tuple[LaunchCall, ...]:
        streams.check_composition(self._connection, "records no launches of graphs in a graph")
        return tuple(node._call for node in self._nodes if node._call is not None)

    def debug_dot_str(self, flags: int = 0) -> str:
        """Describes the nodes and their order in the DOT language of Graphviz, as CuPy's method of this name does.

        Args:
            flags: CUDA's flags for the output; accepted, without effect.

        Returns:
            The text of a ``digraph``, with one box for each node: its index, kind and kernel, and for a launch its
            grid, block and dynamic shared memory in bytes. Child graphs and the bodies of conditional nodes are
            clusters.
        """
        return dot.digraph([node._box() for node in self._nodes], self._children)

    def update(
        self,
        node: int,
        args: Sequence[Any],
        *,
        grid: Any = None,
        block: Any = None,
        shared_mem: int | None = None,
    ) -> None:
        """Replaces the arguments of a node of the graph: `GraphNode.set_args` by number. Does not block.

        Args:
            node: Index of the node in `nodes`.
            args: The kernel's arguments; destination and source of a copy; or array and value of a fill.
            grid: Blocks along each axis; None: as before.
            block: Threads along each axis; None: as before.
            shared_mem: Dynamic shared memory in bytes; None: as before.

        Raises:
            IndexError: There is no such node.
            HearthError: An error that `GraphNode.set_args` raises.
        """
        self.nodes[node].set_args(args, grid=grid, block=block, shared_mem=shared_mem)

    @property
    def nodes(self) -> tuple[GraphNode, ...]:
        """The recorded launches, copies, fills and conditional nodes, in order.

        A launch with `iterations` makes one node for each iteration. The nodes of a child graph, and of the body of a
        conditional node, are among them.
        """
        return self._nodes

    @property
    def children(self) -> tuple[range, ...]:
        """Indices of the nodes of each child graph: of each launch of a graph that was recorded in this one.

        A child graph that contains others comes before them.
        """
        return self._children

    def __len__(self) -> int:
        return len(self._nodes)

    def __bool__(self) -> bool:
        return True  # a graph is true even if it is empty

    def __repr__(self) -> str:
        state = ", being recorded" if self._recorder is not None else self._state()
        return f"<hearth.Graph of {len(self)} nodes on device {self._connection.ordinal}{state}>"


MODES = {None: False, "global": False, "thread_local": False, "relaxed": True, 0: False, 1: False, 2: True}
"""Modes of a capture, with CUDA's names and numbers: True if work on streams outside the capture runs immediately."""


def _relaxed(mode: str | int | None) -> bool:
    relaxed = MODES.get(mode) if not isinstance(mode, bool) else None
    if relaxed is None:
        raise ArgumentError(
            f"mode is {mode!r}, which is no mode of a capture.",
            fix='choose "thread_local", which refuses work on streams outside the capture, or "relaxed", in which such '
            "work runs immediately.",
        )
    return relaxed


def capture_of(stream: BaseStream) -> BaseGraph:
    """Returns the graph that is being recorded from a stream on which `begin_capture` was called.

    Args:
        stream: The stream.

    Returns:
        The graph.

    Raises:
        LaunchError: `begin_capture` was not called on this stream, or its capture has ended.
    """
    graph = stream._graph
    capture = stream._capture
    if isinstance(graph, BaseGraph) and capture is not None:
        return graph
    if capture is None:
        raise LaunchError(
            f"{stream!r} is not being captured.", reason="CAPTURE_INVALID", fix="call stream.begin_capture() first."
        )
    raise LaunchError(
        f"the capture that {stream!r} is in did not begin with its begin_capture().",
        reason="CAPTURE_INVALID",
        fix=f"end it on {capture.origin!r}, or leave the block with gpu.graph() as g.",
    )
