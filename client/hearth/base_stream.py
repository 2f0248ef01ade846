"""Abstract logical streams and events, with CuPy's names.

A stream belongs to one device of a session. A ``with`` block makes it the current stream of the thread (or task) for
that device. Work that names no stream goes to the current stream, which is the device's default stream outside of such
blocks.

Covers everything that the streams and events of `hearth` and of `hearth.aio` have in common: state, and commands that
are sent one way. Does not cover calls that wait; each of the two clients has its own.
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
    """Streams that a ``with`` block made current, by device; `outer` is restored when the block ends.

    Immutable, so that several threads may enter a stream at the same time.
    """

    streams: dict[int, BaseStream]
    outer: _Scope | None


current_streams: ContextVar[_Scope | None] = ContextVar("hearth_current_streams", default=None)


def current(connection: Connection) -> BaseStream | None:
    """Returns the current stream of this thread or task on the connection's device; None: the default stream.

    A ``with`` block on a stream makes the stream current.
    """
    scope = current_streams.get()
    return None if scope is None else scope.streams.get(id(connection))


def resolve(stream: BaseStream | None, connection: Connection, attachment: Attachment, *, work: bool = True) -> int:
    """Returns the handle of `stream`, or of the current stream, on an attachment.

    Args:
        stream: A stream of the connection's device; None: the current stream.
        connection: The connection to the device.
        attachment: The attachment on which the handle will be used; the stream is created there if necessary.
        work: False for commands that submit no work to the stream.

    Returns:
        The handle; 0 is the default stream.

    Raises:
        ArgumentError: The stream belongs to another device or session.
        LaunchError: `work` is True, and the stream accepts only launches, which are being prepared.
    """
    if stream is None:
        stream = current(connection)
        if stream is None:
            return 0
    elif stream._connection is not connection:
        raise ArgumentError(
            f"{stream!r} belongs to another device or session.",
            reason="INVALID_ARGUMENT",
            fix=f"create one with node.device({connection.ordinal}).stream().",
        )
    return stream._work_on(attachment) if work else stream._handle_on(attachment)


def resolve_for_memory(stream: BaseStream | None, connection: Connection, attachment: Attachment) -> int:
    """Returns the handle of a stream for an allocation; see `resolve`.

    Args:
        stream: A stream of the connection's device; None: the current stream.
        connection: The connection to the device.
        attachment: The attachment on which the handle will be used.

    Returns:
        The handle; 0 is the default stream.

    Raises:
        ArgumentError: The stream belongs to another device or session.
        LaunchError: The stream's work is being recorded.
    """
    handle = resolve(stream, connection, attachment)
    target = stream if stream is not None else current(connection)
    if target is not None and target._recorder is not None:
        raise LaunchError(
            "memory cannot be allocated while a graph is being recorded.",
            reason="CAPTURE_INVALID",
            fix="allocate the arrays before the block, or on another stream.",
        )
    return handle


def resolve_for_collective(stream: BaseStream | None, connection: Connection, attachment: Attachment) -> int:
    """Returns the handle of a stream for a collective operation; see `resolve`.

    Args:
        stream: A stream of the connection's device; None: the default stream.
        connection: The connection to the device.
        attachment: The attachment on which the handle will be used.

    Returns:
        The handle; 0 is the default stream.

    Raises:
        ArgumentError: The stream belongs to another device or session.
        LaunchError: The stream's work is being recorded.
    """
    if stream is None:
        return 0
    if stream._recorder is not None:
        raise LaunchError(
            "a collective cannot be recorded in a graph.", reason="CAPTURE_INVALID", fix="call it outside the block."
        )
    return resolve(stream, connection, attachment)


class LaunchCall(NamedTuple):
    """A launch as the caller requested it, without its arguments."""

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
    """Receives the launches of a stream whose work is recorded instead of run: see `hearth.kernels.recorders`."""

    def launched(self, attachment: Attachment, record: bytes, call: LaunchCall, args: object) -> None:
        """Receives one launch.

        Args:
            attachment: The attachment for which the launch was packed.
            record: The packed launch.
            call: The launch as the caller requested it.
            args: The kernel's arguments.
        """

    def check_work(self) -> None:
        """Raises `LaunchError` if the stream accepts only launches."""

    def check_attachment(self, attachment: Attachment) -> None:
        """Checks that the recording can be continued.

        Args:
            attachment: The attachment that is about to be used.

        Raises:
            InvalidHandleError: The recording was made on an earlier attachment and lost with it.
        """


class BaseStream:
    """Abstract sequence of commands that run in order; see `Device.stream`."""

    _recorder: LaunchRecorder | None = None
    """Receives the launches of the stream instead of the device; None: launches run."""

    def __init__(self, connection: Connection, priority: int = 0, *, default: bool = False) -> None:
        self._connection = connection
        self.priority = priority
        self._default = default
        self._attachment: Attachment | None = None
        self._handle = 0
        self._making = threading.Lock()
        self._sync = 0, SYNC
        """The stream's handle, and the serialized Sync command that waits for that stream."""
        self._probe: tuple[tuple[Attachment, int], BaseEvent] | None = None
        """The event that `done` recorded last, with the attachment and its number of submissions at that time. While
        neither has changed, `done` queries that event again instead of recording another."""
        if not default:
            self._handle_on(connection.attachment())

    def _handle_on(self, attachment: Attachment) -> int:
        """Returns the stream's handle on `attachment`; creates the stream there if it was created on an earlier one."""
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
        """Returns the stream's handle for submitting work. Raises `LaunchError` if the stream accepts only launches."""
        if self._recorder is not None:
            self._recorder.check_work()
        return self._handle_on(attachment)

    @property
    def records(self) -> bool:
        """True while the work of the stream is recorded instead of run; see `Device.graph`."""
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
        reply.signalled_result = DONE
        return reply

    def _record(self, event: BaseEvent) -> None:
        attachment = self._connection.attachment()
        handle = event._record_on(attachment, self._connection)
        command = commands_pb2.Command(stream=self._handle_on(attachment))
        command.record_event.event = handle
        attachment.submit(command)

    def wait_event(self, event: BaseEvent) -> None:
        """Makes later work of this stream wait, on the device, for the event's last record. Does not block.

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
        """Returns an event behind all work submitted so far, and True if it was recorded just now.

        A fresh event is to be queried twice, because even an idle stream needs a moment to complete the record itself.
        """
        attachment = self._connection.attachment()
        probe = self._probe
        if probe is not None and probe[0] == (attachment, attachment.session.queue.submitted):
            return probe[1], False
        event = BaseEvent(self._connection)
        self._record(event)
        self._probe = (attachment, attachment.session.queue.submitted), event
        return event, True

    def __enter__(self) -> Self:
        outer = current_streams.get()
        streams = {} if outer is None else dict(outer.streams)
        streams[id(self._connection)] = self
        current_streams.set(_Scope(streams, outer))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope = current_streams.get()
        current_streams.set(None if scope is None else scope.outer)

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
    """Abstract event: a point in the order of a stream's work. Recorded by `Stream.record` and `record`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._attachment: Attachment | None = None
        self._handle = 0

    def record(self, stream: BaseStream | None = None) -> None:
        """Records the event after the work submitted so far to a stream: ``stream.record(event)``. Does not block.

        Args:
            stream: Stream of the same device; None: the current one.

        Raises:
            ArgumentError: The stream belongs to another device.
        """
        (stream or current(self._connection) or BaseStream(self._connection, default=True))._record(self)

    def _record_on(self, attachment: Attachment, connection: Connection) -> int:
        self._check(connection)
        if self._attachment is not attachment:
            self._handle, self._attachment = self._connection.mint(), attachment
        return self._handle

    def _recorded_on(self, attachment: Attachment, connection: Connection) -> int:
        self._check(connection)
        if self._attachment is None:
            raise ArgumentError(
                "the event has not been recorded.",
                reason="INVALID_ARGUMENT",
                fix="record it first: stream.record(event).",
            )
        if self._attachment is not attachment:
            raise InvalidHandleError(
                "the event was lost with the connection or device process on which it was recorded.",
                reason="INVALID_HANDLE",
                fix="record it again.",
            )
        return self._handle

    def _check(self, connection: Connection) -> None:
        if connection is not self._connection:
            raise ArgumentError(
                f"the event belongs to device {self._connection.ordinal} of its session, not to device "
                f"{connection.ordinal}.",
                reason="INVALID_ARGUMENT",
                fix="record an event on a stream of the same device.",
            )

    def _measuring(self, start: BaseEvent) -> PendingResult[float]:
        attachment = self._connection.attachment()
        command = commands_pb2.Command()
        command.elapsed_time.start = start._recorded_on(attachment, self._connection)
        command.elapsed_time.end = self._recorded_on(attachment, self._connection)
        return self._connection.request(command, lambda result: result.event.elapsed_ns / 1e6, attachment)

    def _querying(self, wait: bool) -> PendingResult[bool]:
        attachment = self._connection.attachment()
        command = commands_pb2.Command()
        command.query_event.event = self._recorded_on(attachment, self._connection)
        command.query_event.wait = wait
        return self._connection.request(command, lambda result: result.event.done, attachment)

    def __del__(self) -> None:
        attachment = getattr(self, "_attachment", None)
        if attachment is not None and attachment.alive and attachment.space is not None:
            attachment.space.deferred_frees.add("event", self._handle)
