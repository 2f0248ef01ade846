"""Logical streams and events, by CuPy's names.

A stream belongs to a device of a session; used with `with`, it is the current stream of the thread (or task) for that
device. Work that names no stream goes to the current one, at first the device's default stream.

Covers state and commands that are sent one way: all that the streams and events of `hearth` and of `hearth.aio` have in
common. Does not cover calls that wait; each of the two clients has its own.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hearth.codec.decode import DONE
from hearth.codec.encode import SYNC
from hearth.errors import ArgumentError, InvalidHandleError, LaunchError
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.reply import PendingResult, Reply


class _Scope(NamedTuple):
    """Streams that a ``with`` block made current, by device; `outer` is restored at its end. Immutable, so that a
    stream can be entered in several threads at once."""

    streams: dict[int, BaseStream]
    outer: _Scope | None


_current: ContextVar[_Scope | None] = ContextVar("hearth_current_streams", default=None)


def current(connection: Connection) -> BaseStream | None:
    """The stream that `with` made current here for the connection's device; None: the default stream."""
    scope = _current.get()
    return None if scope is None else scope.streams.get(id(connection))


def resolve(stream: BaseStream | None, connection: Connection, attachment: Attachment, *, work: bool = True) -> int:
    """The handle of `stream`, or of the current one. Raises `ArgumentError` for a stream of another device.

    `work`: False for commands that give the stream nothing to do.
    """
    if stream is None:
        stream = current(connection)
        if stream is None:
            return 0
    elif stream._connection is not connection:
        raise ArgumentError(
            f"{stream!r} belongs to another device or session.",
            reason="INVALID_ARGUMENT",
            fix=f"make one with node.device({connection.ordinal}).stream().",
        )
    return stream._work_on(attachment) if work else stream._handle_on(attachment)


def resolve_for_memory(stream: BaseStream | None, connection: Connection, attachment: Attachment) -> int:
    """The handle of a stream for an allocation; see `resolve`. Raises `LaunchError` if its work is being recorded."""
    handle = resolve(stream, connection, attachment)
    target = stream if stream is not None else current(connection)
    if target is not None and target._recorder is not None:
        raise LaunchError(
            "memory cannot be allocated while a graph is recorded: a graph allocates none.",
            reason="CAPTURE_INVALID",
            fix="make the arrays before the block, or on another stream.",
        )
    return handle


def resolve_for_collective(stream: BaseStream | None, connection: Connection, attachment: Attachment) -> int:
    """The handle of `stream`; None: of the default one. Raises `LaunchError` where its work is being recorded."""
    if stream is None:
        return 0
    if stream._recorder is not None:
        raise LaunchError(
            "a collective cannot be recorded in a graph.", reason="CAPTURE_INVALID", fix="call it outside the block."
        )
    return resolve(stream, connection, attachment)


class LaunchCall(NamedTuple):
    """A launch as it was asked for, without its arguments."""

    function: Any
    """The kernel: `hearth.kernels.base_function.BaseFunction`."""
    grid: Any
    block: Any
    shared_mem: int = 0
    mode: str = "checked"
    cooperative: bool = False
    cluster: Any = None
    iterations: int = 1


class LaunchRecorder(Protocol):
    """Takes the launches of a stream whose work is recorded rather than run: see `hearth.kernels.recorders`."""

    def launched(self, attachment: Attachment, record: bytes, call: LaunchCall, args: object) -> None:
        """Takes a packed launch."""

    def check_work(self) -> None:
        """Raises `LaunchError` where the stream takes nothing but launches."""

    def check_attachment(self, attachment: Attachment) -> None:
        """Raises `InvalidHandleError` where the recording was lost with an earlier attachment."""


class BaseStream:
    """Abstract sequence of commands that run in order; see `Device.stream`."""

    _recorder: LaunchRecorder | None = None
    """Takes the launches of the stream instead of the device; None: they run."""

    def __init__(self, connection: Connection, priority: int = 0, *, default: bool = False) -> None:
        self._connection = connection
        self.priority = priority
        self._default = default
        self._attachment: Attachment | None = None
        self._handle = 0
        self._making = threading.Lock()
        self._sync = 0, SYNC
        """The command that waits for it, behind its handle."""
        self._probe: tuple[tuple[Attachment, int], BaseEvent] | None = None
        """The event that `done` recorded last, and after how many submissions: polling does not record ever anew."""
        if not default:
            self._handle_on(connection.attachment())

    def _handle_on(self, attachment: Attachment) -> int:
        """Returns the stream's handle on the attachment that is about to be used: after a loss it is created again."""
        if self._default or self._attachment is attachment:
            return self._handle
        if self._recorder is not None:
            self._recorder.check_attachment(attachment)
        with self._making:
            if self._attachment is not attachment:
                handle = self._connection.mint()
                create = commands_pb2.CreateStream(stream=handle, priority=self.priority)
                attachment.submit(commands_pb2.Command(create_stream=create))
                self._handle, self._attachment = handle, attachment
        return self._handle

    def _work_on(self, attachment: Attachment) -> int:
        """Returns the stream's handle, for work."""
        if self._recorder is not None:
            self._recorder.check_work()
        return self._handle_on(attachment)

    @property
    def records(self) -> bool:
        """True while the work of the stream is recorded rather than run; see `Device.graph`."""
        return self._recorder is not None

    def _synchronizing(self) -> Reply:
        connection = self._connection
        connection.raise_deferred(self._handle)
        attachment = connection.attachment()
        handle = self._handle_on(attachment)
        if self._sync[0] != handle:
            command = commands_pb2.Command(stream=handle, sync=commands_pb2.Sync())
            self._sync = handle, command.SerializeToString()
        reply = attachment.ask(self._sync[1], reports=True)
        reply.foretold = DONE
        return reply

    def _record(self, event: BaseEvent) -> None:
        attachment = self._connection.attachment()
        handle = event._record_on(attachment, self._connection)
        command = commands_pb2.Command(stream=self._handle_on(attachment))
        command.record_event.event = handle
        attachment.submit(command)

    def wait_event(self, event: BaseEvent) -> None:
        """Lets later work of this stream wait, on the device, for the event's last record. Does not block.

        Args:
            event: A recorded event of the same device.

        Raises:
            ArgumentError: The event was never recorded, or belongs to another device.
            InvalidHandleError: The event was lost with its device process.
        """
        attachment = self._connection.attachment()
        command = commands_pb2.Command(stream=self._handle_on(attachment))
        command.wait_event.event = event._recorded_on(attachment, self._connection)
        attachment.submit(command)

    def _probing(self) -> tuple[BaseEvent, bool]:
        """An event behind everything submitted so far, and whether it was recorded just now: then it is to be queried
        twice, for an idle stream needs a moment for the record itself."""
        attachment = self._connection.attachment()
        probe = self._probe
        if probe is not None and probe[0] == (attachment, attachment.session.queue.submitted):
            return probe[1], False
        event = BaseEvent(self._connection)
        self._record(event)
        self._probe = (attachment, attachment.session.queue.submitted), event
        return event, True

    def __enter__(self) -> Self:
        outer = _current.get()
        streams = {} if outer is None else dict(outer.streams)
        streams[id(self._connection)] = self
        _current.set(_Scope(streams, outer))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope = _current.get()
        _current.set(None if scope is None else scope.outer)

    def __repr__(self) -> str:
        if self._default and self._recorder is not None:
            return f"<launches being prepared for device {self._connection.ordinal}>"
        name = "default" if self._default else str(self._handle)
        return f"<hearth.Stream {name} of device {self._connection.ordinal}>"

    def __del__(self) -> None:
        attachment = getattr(self, "_attachment", None)
        if attachment is not None and attachment.alive and attachment.space is not None:
            attachment.space.deferred_frees.add("stream", self._handle)


class BaseEvent:
    """Abstract point in a stream. Recorded by `Stream.record`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._attachment: Attachment | None = None
        self._handle = 0

    def _record_on(self, attachment: Attachment, connection: Connection) -> int:
        self._check(connection)
        if self._attachment is not attachment:
            self._handle, self._attachment = self._connection.mint(), attachment
        return self._handle

    def _recorded_on(self, attachment: Attachment, connection: Connection) -> int:
        self._check(connection)
        if self._attachment is None:
            raise ArgumentError("the event was never recorded.", reason="INVALID_ARGUMENT", fix="stream.record(event)")
        if self._attachment is not attachment:
            raise InvalidHandleError(
                "the event was lost with the connection or device process that it was recorded on.",
                reason="INVALID_HANDLE",
                fix="record it again.",
            )
        return self._handle

    def _check(self, connection: Connection) -> None:
        if connection is not self._connection:
            raise ArgumentError(
                f"the event belongs to device {self._connection.ordinal} of its session, "
                f"not to this device {connection.ordinal}.",
                reason="INVALID_ARGUMENT",
                fix="record an event on a stream of the same device.",
            )

    def _measuring(self, start: BaseEvent) -> PendingResult[float]:
        attachment = self._connection.attachment()
        command = commands_pb2.Command()
        command.elapsed_time.start = start._recorded_on(attachment, self._connection)
        command.elapsed_time.end = self._recorded_on(attachment, self._connection)
        return self._connection.asking(command, lambda result: result.event.elapsed_ns / 1e6, attachment)

    def _querying(self, wait: bool) -> PendingResult[bool]:
        attachment = self._connection.attachment()
        command = commands_pb2.Command()
        command.query_event.event = self._recorded_on(attachment, self._connection)
        command.query_event.wait = wait
        return self._connection.asking(command, lambda result: result.event.done, attachment)

    def __del__(self) -> None:
        attachment = getattr(self, "_attachment", None)
        if attachment is not None and attachment.alive and attachment.space is not None:
            attachment.space.deferred_frees.add("event", self._handle)
