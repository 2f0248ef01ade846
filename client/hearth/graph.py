"""Graphs and prepared launches: work that is checked once, then run as often as wanted with one small command.

Inside ``with gpu.graph() as g:`` a private stream is current; the launches, copies and fills that it is given are
recorded instead of run, and nothing else may be given to it. ``with gpu.prepared() as p:`` collects launches alone.
What a graph or a list uses lives as long as it does, also where the arrays and modules are gone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hearth import stream as streams
from hearth.errors import ArgumentError, HearthError, InvalidHandleError, LaunchError
from hearth.stream import Stream
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.attachment import Attachment
    from hearth.connection import Connection
    from hearth.launching import Call
    from hearth.memory import Kind, Space

COUNT_MAX = 2**64 - 1


class Recorder(Stream):
    """The private stream of a graph that is being recorded. It ends with the attachment that it was made on."""

    records = True

    def __init__(self, connection: Connection) -> None:
        self.calls: list[Call] = []
        self._order = threading.Lock()
        super().__init__(connection)

    def launched(self, attachment: Attachment, record: bytes, call: Call, _args: object) -> None:
        """Sends the launch, and notes it in the order in which it was sent."""
        with self._order:
            attachment.launch(record)
            self.calls.append(call)

    def submitted(self, attachment: Attachment, command: commands_pb2.Command, calls: Sequence[Call]) -> None:
        """Sends a prepared list, and notes its launches."""
        with self._order:
            attachment.submit(command)
            self.calls.extend(calls)

    def _handle_on(self, attachment: Attachment) -> int:
        if self._attachment is not None and self._attachment is not attachment:
            raise _lost("the graph that was being recorded", self._connection, None)
        return super()._handle_on(attachment)


class Collector(Stream):
    """In the place of a stream, while launches are prepared: takes them, and nothing else."""

    records = True

    def __init__(self, connection: Connection) -> None:
        self._home = connection.attachment()
        self.packed: list[bytes] = []
        self.calls: list[Call] = []
        self.kept: list[object] = []
        """Arguments: they have to be there when the daemon looks the launches up."""
        super().__init__(connection, default=True)

    def launched(self, attachment: Attachment, record: bytes, call: Call, args: object) -> None:
        """Takes the launch instead of sending it."""
        if attachment is not self._home:
            raise _lost("the list of launches that was being prepared", self._connection, None)
        self.packed.append(record)
        self.calls.append(call)
        self.kept.append(args)

    def _work_on(self, attachment: Attachment) -> int:
        raise LaunchError(
            "only launches can be prepared.",
            reason="CAPTURE_INVALID",
            fix="copy, fill, allocate and read outside the block, or record a graph: with gpu.graph() as g.",
        )

    def __repr__(self) -> str:
        return f"<launches being prepared for device {self._connection.ordinal}>"


class Program:
    """What graphs and prepared lists have in common: a handle that is lost with the device's process."""

    _kind: Kind
    _what: str

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._handle = 0
        self._space: Space | None = None
        self._closed = False

    def close(self) -> None:
        """Gives it back now; launches that were asked for before still run. A second call does nothing."""
        if not self._closed:
            self._closed = True
            if self._space is not None and not self._space.lost:
                self._space.graveyard.bury(self._kind, self._handle)

    def __del__(self) -> None:
        if getattr(self, "_closed", True) is False:
            self.close()

    def _usable(self) -> Attachment:
        """The attachment on which it can be used. Raises what stands against it."""
        connection = self._connection
        if connection.refusal is not None:
            raise connection.refusal.again()
        space = self._space
        if self._closed:
            raise InvalidHandleError(
                f"{self._what} was closed.", reason="INVALID_HANDLE", fix="keep it until its last launch."
            )
        if space is None:
            raise ArgumentError(
                f"{self._what} has not been recorded.", reason="INVALID_ARGUMENT", fix=f"with gpu.{self._kind}() as x:"
            )
        attachment = connection.attachment()
        if space.lost or attachment.space is not space:
            raise _lost(self._what, connection, space)
        return attachment

    def _ready_to_enter(self) -> None:
        if self._handle or self._closed:
            raise ArgumentError(
                f"{self._what} is recorded once.", reason="INVALID_ARGUMENT", fix=f"make another: gpu.{self._kind}()."
            )

    def _target(self, stream: Stream | None) -> Stream | None:
        return stream if stream is not None else streams.current(self._connection)

    def _state(self) -> str:
        if self._closed:
            return ", closed"
        if self._space is None:
            return ", not recorded"
        return ", lost" if self._space.lost else ""


class GraphNode:
    """One launch, copy or fill of a graph."""

    def __init__(self, graph: Graph, index: int, kind: str, kernel: str, call: Call | None) -> None:
        self._graph = graph
        self._call = call
        self.index = index
        """Its place in the graph."""
        self.kind = kind
        """``"kernel"``, ``"copy"`` or ``"fill"``."""
        self.kernel = kernel
        """The kernel's name; empty for copies and fills."""

    def set_args(
        self, args: Sequence[Any], *, grid: Any = None, block: Any = None, shared_mem: int | None = None
    ) -> None:
        """Gives a launch other arguments, and another geometry where one is named.

        Launches of the graph that were asked for before keep what they had, also while they run. Raises `LaunchError`
        for what can be seen here; the rest surfaces at the next sync, read or flush of the current stream.
        """
        call = self._call
        if call is None:
            raise LaunchError(
                f"{self!r} is no launch whose arguments can be changed.",
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
        command.update_graph.launch = call.function._pack(
            attachment, call.grid, call.block, args, call.shared_mem, Stream(connection, default=True), None,
            call.mode, call.cooperative, call.cluster,
        )  # fmt: skip
        attachment.submit(command)
        self._call = call

    def __repr__(self) -> str:
        return f"<hearth.GraphNode {self.index}: {' '.join(filter(None, (self.kind, self.kernel)))}>"


class Graph(Program):
    """Work recorded by ``with gpu.graph() as g:``, launched by `launch`.

    The end of the block waits until the daemon has made the graph, and raises what could not be recorded; an exception
    in the block discards it. Work on other streams, and other threads, goes on as ever.
    """

    _kind: Kind = "graph"
    _what = "the graph"

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._nodes: tuple[GraphNode, ...] = ()
        self._recorder: Recorder | None = None
        self._begun: Attachment | None = None
        self._last: tuple[object, commands_pb2.Command] | None = None

    # ---- recording ----

    def __enter__(self) -> Graph:
        self._ready_to_enter()
        connection = self._connection
        attachment = connection.attachment()
        recorder = Recorder(connection)
        handle = connection.mint()
        command = commands_pb2.Command(stream=recorder._handle_on(attachment))
        command.begin_capture.graph = handle
        attachment.submit(command)
        self._handle, self._begun, self._recorder = handle, attachment, recorder
        recorder.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorder, attachment = self._recorder, self._begun
        assert recorder is not None and attachment is not None, "left without having been entered"
        recorder.__exit__(kind, error, trace)
        self._recorder = self._begun = None
        command = commands_pb2.Command(stream=recorder._handle)
        command.end_capture.graph = self._handle
        if error is not None:
            command.end_capture.discard = True
            self._closed = True
            with contextlib.suppress(HearthError):  # the block's own error is the news
                attachment.submit(command)
            return
        self._space = attachment.space
        try:
            result = self._connection.call(command, attachment=attachment).graph
        except BaseException:
            self.close()
            raise
        calls = (call for call in recorder.calls for _ in range(call.iterations))
        self._nodes = tuple(
            GraphNode(self, index, node.kind, node.kernel, next(calls, None) if node.kind == "kernel" else None)
            for index, node in enumerate(result.nodes)
        )

    # ---- use ----

    def launch(self, n: int = 1, stream: Stream | None = None, *, timeout: float | None = None) -> None:
        """Launches it `n` times in a row on `stream`, or on the current one; one way.

        It is ordered as one command that does all that is in it. `timeout`: seconds that each launch of it may take,
        after which the device process is ended.
        """
        attachment = self._usable()
        on = streams.resolve(stream, self._connection, attachment)
        target = self._target(stream)
        if target is not None and target.records:
            raise LaunchError(
                "a graph cannot be launched inside the recording of another one.",
                reason="CAPTURE_INVALID",
                fix="launch it after the block, or record its work again.",
            )
        key = (on, n, timeout)
        if self._last is None or self._last[0] != key:
            command = commands_pb2.Command(stream=on)
            command.launch_graph.graph = self._handle
            command.launch_graph.count = _count(n)
            if timeout is not None:
                command.launch_graph.timeout_ns = _nanoseconds(timeout)
            self._last = (key, command)
        attachment.submit(self._last[1])

    def update(
        self,
        node: int,
        args: Sequence[Any],
        *,
        grid: Any = None,
        block: Any = None,
        shared_mem: int | None = None,
    ) -> None:
        """As `GraphNode.set_args` of the node of that number."""
        self.nodes[node].set_args(args, grid=grid, block=block, shared_mem=shared_mem)

    @property
    def nodes(self) -> tuple[GraphNode, ...]:
        """What was recorded, in order; a launch with iterations is as many nodes."""
        return self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def __bool__(self) -> bool:
        return True  # also where nothing was recorded

    def __repr__(self) -> str:
        state = ", being recorded" if self._recorder is not None else self._state()
        return f"<hearth.Graph of {len(self)} nodes on device {self._connection.ordinal}{state}>"


class Prepared(Program):
    """Launches collected by ``with gpu.prepared() as p:`` or `Device.prepare`, run by `launch`.

    They are checked together at the end of the block, which raises everything that is wrong with them.
    """

    _kind: Kind = "prepared"
    _what = "the prepared list"

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._calls: tuple[Call, ...] = ()
        self._collector: Collector | None = None
        self._last: tuple[object, commands_pb2.Command] | None = None

    def __enter__(self) -> Prepared:
        self._ready_to_enter()
        self._collector = Collector(self._connection)
        self._handle = self._connection.mint()
        self._collector.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        collector, self._collector = self._collector, None
        assert collector is not None, "left without having been entered"
        collector.__exit__(kind, error, trace)
        if error is not None:
            self._closed = True
            return
        attachment = collector._home
        command = commands_pb2.Command()
        command.prepare.prepared = self._handle
        command.prepare.launches = b"".join(collector.packed)
        self._space = attachment.space
        try:
            self._connection.call(command, attachment=attachment)
        except BaseException:
            self.close()
            raise
        self._calls = tuple(call for call in collector.calls for _ in range(call.iterations))

    def launch(self, n: int = 1, stream: Stream | None = None) -> None:
        """Runs all of them in order, `n` times in a row, on `stream` or on the current one; one way."""
        attachment = self._usable()
        target = self._target(stream)
        on = streams.resolve(stream, self._connection, attachment)
        key = (on, n)
        if self._last is None or self._last[0] != key:
            command = commands_pb2.Command(stream=on)
            command.launch_prepared.prepared = self._handle
            command.launch_prepared.count = _count(n)
            self._last = (key, command)
        if isinstance(target, Recorder):
            target.submitted(attachment, self._last[1], self._calls * n)
        else:
            attachment.submit(self._last[1])

    def __len__(self) -> int:
        return len(self._calls)

    def __bool__(self) -> bool:
        return True  # also where there is nothing in it

    def __repr__(self) -> str:
        state = ", being collected" if self._collector is not None else self._state()
        return f"<hearth.Prepared of {len(self)} launches on device {self._connection.ordinal}{state}>"


def prepare(connection: Connection, launches: Iterable[Sequence[Any]]) -> Prepared:
    """See `Device.prepare`."""
    with Prepared(connection) as prepared:
        for index, launch in enumerate(launches):
            if not isinstance(launch, tuple | list) or not 4 <= len(launch) <= 5:
                raise ArgumentError(
                    f"launch {index} is {launch!r}.",
                    reason="INVALID_ARGUMENT",
                    fix="give (kernel, grid, block, args), and shared_mem where it is wanted.",
                )
            kernel, *rest = launch
            kernel(*rest)
    return prepared


def _count(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= COUNT_MAX:
        raise ArgumentError(
            f"n is {n!r}; it is a whole number from 1 on.",
            reason="INVALID_ARGUMENT",
            fix="skip the launch when there is nothing to do." if n == 0 else "check how it is computed.",
        )
    return n


def _nanoseconds(timeout: float) -> int:
    if not 0 < timeout < 2**63 / 1e9:
        raise ArgumentError(f"timeout is {timeout} s.", reason="INVALID_ARGUMENT", fix="give seconds above 0.")
    return max(1, int(timeout * 1e9))


def _lost(what: str, connection: Connection, space: Space | None) -> InvalidHandleError:
    where = f"generation {space.generation} of device {connection.ordinal}" if space else "the connection"
    return InvalidHandleError(
        f"{what} was lost with {where}.",
        reason="INVALID_HANDLE",
        fix="record it again; kernels and streams carry on by themselves, arrays have to be made again.",
        details={} if space is None else {"generation": str(space.generation)},
    )
