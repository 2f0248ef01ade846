"""Abstract logical streams and events, with CuPy's names.

A stream belongs to one device of a session. A ``with`` block makes it the current stream of the thread (or task) for
that device. Work that names no stream goes to the current stream, which is the device's default stream outside of such
blocks.

Covers everything that the streams and events of `hearth` and of `hearth.aio` have in common: state, and commands that
are sent one way. Does not cover calls that wait; each of the two clients has its own.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hearth.codec.decode import DONE
from hearth.codec.encode import SYNC
from hearth.cupy_names import CupyNames
from hearth.errors import ArgumentError, InvalidHandleError, LaunchError, UnsupportedError
from hearth.stream_scope import StreamScope, captured_by_thread, current_streams
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from hearth.launch_recorder import LaunchRecorder, StreamCapture
    from hearth.session.attachment import Attachment
    from hearth.session.cancelling import Cancelling
    from hearth.session.connection import Connection
    from hearth.session.reply import PendingResult, Reply

E = TypeVar("E", bound="BaseEvent")
"""The class of an event."""


def current(connection: Connection) -> BaseStream | None:
    """Returns the current stream of this thread or task on the connection's device; None: the default stream.

    A ``with`` block on a stream makes the stream current.
    """
    scope = current_streams.get()
    stream: BaseStream | None = None if scope is None else scope.streams.get(id(connection))
    return stream


def check_captured(stream: BaseStream | None, connection: Connection, *, launch: bool = False) -> None:
    """Refuses work that would run immediately, although this thread or task captures a graph or prepares launches.

    Args:
        stream: Stream of the work; None: the current one.
        connection: The connection to the device.
        launch: True for launches, which are the only work that is refused while launches are being prepared.

    Raises:
        LaunchError: The stream is not in the capture or prepared list that the thread has begun on the device.
    """
    capture = captured_by_thread(connection)
    if capture is None:
        return
    target = stream if stream is not None else current(connection)
    if target is None or target._recorder is None:
        capture.check_outside("the default stream" if target is None else repr(target), launch=launch)


def resolve_captured(stream: BaseStream | None, connection: Connection, attachment: Attachment) -> int:
    """Returns the handle of a stream for work that a graph can contain; see `resolve`.

    Args:
        stream: A stream of the connection's device; None: the current stream.
        connection: The connection to the device.
        attachment: The attachment on which the handle will be used.

    Returns:
        The handle; 0 is the default stream.

    Raises:
        ArgumentError: The stream belongs to another device or session.
        LaunchError: The stream accepts only launches, or is not in the capture that this thread has begun.
    """
    handle = resolve(stream, connection, attachment)
    if current_streams.get() is not None:
        check_captured(stream, connection)
    return handle


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
        ArgumentError: The stream belongs to another device or session, or is no stream.
        LaunchError: `work` is True, and the stream accepts only launches, which are being prepared.
    """
    if stream is None:
        stream = current(connection)
        if stream is None:
            return 0
    try:
        if stream._connection is connection:
            return stream._work_on(attachment) if work else stream._handle_on(attachment)
    except AttributeError:
        check_stream(stream)
        raise
    check_stream(stream)
    raise ArgumentError(
        f"{stream!r} belongs to another device or session.",
        fix=f"create one with node.device({connection.ordinal}).stream().",
    )


def check_stream(value: object) -> None:
    """Raises `ArgumentError` for a value that is not a stream."""
    fix = "pass gpu.stream(), or None for the current stream; other arguments after the stream have a keyword."
    _check_type(value, BaseStream, "a stream", fix)


def check_event(value: object) -> None:
    """Raises `ArgumentError` for a value that is not an event."""
    _check_type(value, BaseEvent, "an event", "pass gpu.event(), or the event that stream.record() returns.")


def _check_type(value: object, expected: type, noun: str, fix: str) -> None:
    if not isinstance(value, expected):
        message = f"{value!r} ({type(value).__name__}) is not {noun} of Hearth."
        raise ArgumentError(message, fix=fix)


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
        LaunchError: Launches are being prepared on the stream; or it is being captured, and the daemon is too old to
            allocate memory meanwhile.
    """
    handle = resolve(stream, connection, attachment)
    target = stream if stream is not None else current(connection)
    if target is not None and target._recorder is not None and not connection.limits.graph_memory:
        raise LaunchError(
            "the daemon is of an older version, which allocates no memory while a graph is being recorded.",
            reason="CAPTURE_INVALID",
            fix="allocate the arrays before the block, or on another stream, or update the daemon.",
        )
    return handle


def resolve_for_collective(
    stream: BaseStream | None, connection: Connection, attachment: Attachment, work: str = "a collective"
) -> int:
    """Returns the handle of a stream for an operation of several devices; see `resolve`.

    Args:
        stream: A stream of the connection's device; None: the default stream.
        connection: The connection to the device.
        attachment: The attachment on which the handle will be used.
        work: Noun for the operation, for the error.

    Returns:
        The handle; 0 is the default stream.

    Raises:
        ArgumentError: The stream belongs to another device or session.
        LaunchError: The stream's work is being recorded.
    """
    if stream is None:
        return 0
    check_stream(stream)
    if stream._recorder is not None:
        raise LaunchError(
            f"{work} cannot be recorded in a graph or in prepared launches.",
            reason="CAPTURE_INVALID",
            fix="call it before the block, or after the launch of the graph or list.",
        )
    return resolve(stream, connection, attachment)


class BaseStream(CupyNames):
    """Abstract sequence of commands that run in order; see `Device.stream`."""

    _cupy = "Stream"

    _recorder: LaunchRecorder | None = None
    """Receives the launches of the stream instead of the device; None: launches run."""
    _capture: StreamCapture | None = None
    """The capture that the stream is in; None: the stream is not captured."""
    _graph: object | None = None
    """The graph that `begin_capture` records: `hearth.graphs.base_graph.BaseGraph`; None without a capture."""
    _event_before_capture: BaseEvent | None = None
    """The event after the work that was submitted before the capture; `done` queries it during the capture."""

    def __init__(self, connection: Connection, priority: int = 0, *, default: bool = False) -> None:
        self._connection = connection
        self.priority = priority
        self._default = default
        self._attachment: Attachment | None = None
        self._handle = 0
        self._create_lock = threading.Lock()
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
        with self._create_lock:
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

    def _request_sync(self) -> Reply:
        connection = self._connection
        if not connection.attached:
            connection.raise_deferred(self._handle)
        attachment = connection.attachment()
        handle = self._handle_on(attachment)
        if self._sync[0] != handle:
            command = commands_pb2.Command(stream=handle, sync=commands_pb2.Sync())
            self._sync = handle, command.SerializeToString()
        reply = attachment.request_serialized(self._sync[1], reports=True)
        reply.signalled_result = DONE
        reply.raise_failures = partial(connection.raise_failures, stream=handle)
        return reply

    def _queue_cancel(self) -> Cancelling | None:
        """Queues the cancelling of the stream's commands; returns None if there is nothing to cancel."""
        from hearth.session.cancelling import Cancelling

        attachment = self._connection.current
        if attachment is None or not attachment.alive or not (self._default or attachment is self._attachment):
            return None
        return Cancelling(attachment, commands_pb2.Cancel(), self._handle)

    def is_capturing(self) -> bool:
        """Returns True while the work of the stream is captured as a graph."""
        return self._capture is not None and self._capture.recording

    def _enter_capture(self, recorder: LaunchRecorder, capture: StreamCapture) -> None:
        """Marks the stream as captured. The command that makes the daemon capture it follows."""
        self._event_before_capture = self._probe_event()
        self._recorder, self._capture = recorder, capture

    def _leave_capture(self) -> None:
        """Marks the stream as not captured, because the capture has ended."""
        self._recorder = self._capture = self._graph = self._event_before_capture = self._probe = None

    def launch_host_func(self, fn: Callable[..., object], *args: Any) -> None:
        """Has a function called when the work submitted to the stream so far is done. Does not block.

        With `hearth`, a thread of the client calls it, one function of a device after another, and an exception is
        logged, as by `concurrent.futures.Future.add_done_callback`. With `hearth.aio`, the event loop calls it, as by
        `asyncio.Future.add_done_callback`, and an exception goes to the loop's exception handler.

        Later work of the stream does not wait for the function: to order work after it, submit that work in the
        function. The function is not called if the device is lost or the node is closed before the work is done; a
        failure of the work does not prevent the call.

        Args:
            fn: The function, which may use the device.
            *args: Arguments of the function.

        Raises:
            LaunchError: The stream's work is being recorded.
        """
        if self._recorder is not None:
            raise LaunchError(
                "a function of the client cannot be recorded in a graph or in prepared launches.",
                reason="CAPTURE_INVALID",
                fix="call it after the launch of the graph: stream.launch_host_func(f).",
            )
        event = self._record(BaseEvent(self._connection))
        event._call_when_done(partial(fn, *args))

    def add_callback(self, callback: Callable[[Any, int, Any], object], arg: Any) -> None:
        """Has ``callback(stream, 0, arg)`` called, by CuPy's name. See `launch_host_func`.

        Args:
            callback: The function; its second argument, the error status of CuPy, is always 0.
            arg: Third argument of the function.

        Raises:
            LaunchError: The stream's work is being recorded.
        """
        self.launch_host_func(callback, self, 0, arg)

    def _record(self, event: E) -> E:
        check_event(event)
        attachment = self._connection.attachment()
        if self._capture is not None:
            check_composition(self._connection, "captures no events")
        handle = event._record_on(attachment, self._connection)
        event._capture = self._capture
        command = commands_pb2.Command(stream=self._handle_on(attachment))
        command.record_event.event = handle
        event._submit_record(command, attachment)
        return event

    def wait_event(self, event: BaseEvent) -> None:
        """Makes later work of this stream wait, on the device, for the event's last record. Does not block.

        As in CUDA, an event that was never recorded is done, so waiting for it has no effect.

        If the event was recorded on a stream that is being captured, this stream joins the capture: its work becomes
        part of the graph, after the event, until the capture ends. The stream on which the capture began must wait for
        an event after that work before the capture ends.

        Args:
            event: An event of the same device.

        Raises:
            ArgumentError: The event belongs to another device.
            InvalidHandleError: The event was lost with its device process.
            LaunchError: The event was recorded in another capture or in one that has ended; or this stream is being
                captured, and the event was recorded outside the capture.
        """
        check_event(event)
        attachment = self._connection.attachment()
        event._check(self._connection)
        if not event._was_recorded:
            return
        if event._capture is not None:
            event._recorded_on(attachment, self._connection)
            event._capture.join(self, event)
        elif self._capture is not None:
            raise LaunchError(
                f"{event!r} was recorded outside the capture, which cannot wait for work that is not in the graph.",
                reason="CAPTURE_INVALID",
                fix="wait for the event before the capture, or record it on a stream that the capture contains.",
            )
        command = commands_pb2.Command(stream=self._handle_on(attachment))
        command.wait_event.event = event._recorded_on(attachment, self._connection)
        attachment.submit(command)

    def _probe_event(self) -> BaseEvent:
        """Returns an event after all work submitted so far; during a capture, after the work before the capture."""
        if self._event_before_capture is not None:
            return self._event_before_capture
        attachment = self._connection.attachment()
        probe = self._probe
        if probe is not None and probe[0] == (attachment, attachment.session.queue.submitted):
            return probe[1]
        event = self._record(BaseEvent(self._connection))
        self._probe = (attachment, attachment.session.queue.submitted), event
        return event

    def __enter__(self) -> Self:
        outer = current_streams.get()
        streams = {} if outer is None else dict(outer.streams)
        streams[id(self._connection)] = self
        current_streams.set(StreamScope(streams, outer, {} if outer is None else outer.captures))
        return self

    def __exit__(self, *_: object) -> None:
        scope = current_streams.get()
        if scope is None:
            return
        outer = scope.outer
        if scope.captures != ({} if outer is None else outer.captures):  # a capture began or ended inside the block
            outer = StreamScope({}, None, {}) if outer is None else outer
            outer = outer._replace(captures=scope.captures)
            outer = outer if any(outer) else None
        current_streams.set(outer)

    def __repr__(self) -> str:
        if self._default and self._recorder is not None:
            return f"<launches being prepared for device {self._connection.ordinal}>"
        name = "default" if self._default else str(self._handle)
        return f"<hearth.Stream {name} of device {self._connection.ordinal}>"

    def __del__(self) -> None:
        attachment = getattr(self, "_attachment", None)
        if attachment is not None and attachment.alive and attachment.space is not None:
            attachment.space.deferred_frees.add("stream", self._handle)


class BaseEvent(CupyNames):
    """Abstract event: a point in the order of a stream's work. Recorded by `Stream.record` and `record`."""

    _cupy = "Event"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._attachment: Attachment | None = None
        self._handle = 0
        self._capture: StreamCapture | None = None
        """The capture in which the event was recorded last; None if it was recorded outside a capture."""
        self._published = False
        """True once other sessions may have attached the event."""
        self._attached = ""
        """Name under which another session published the event; empty for an event of this session."""

    def record(self, stream: BaseStream | None = None) -> None:
        """Records the event after the work submitted so far to a stream: ``stream.record(event)``.

        Does not block, unless the event is published; see `hearth.Event.publish`.

        Args:
            stream: Stream of the same device; None: the current one.

        Raises:
            ArgumentError: The stream belongs to another device, or the event was attached: only the session that
                published it records it.
        """
        if stream is None:
            stream = current(self._connection) or BaseStream(self._connection, default=True)
        check_stream(stream)
        stream._record(self)

    def _record_on(self, attachment: Attachment, connection: Connection) -> int:
        self._check(connection)
        self._check_owned()
        if self._attachment is not attachment:
            self._handle, self._attachment, self._published = self._connection.mint(), attachment, False
        return self._handle

    def _check_owned(self) -> None:
        if self._attached:
            raise ArgumentError(
                f"the event was attached as {self._attached!r}; only the session that published it records it.",
                reason="READ_ONLY",
                fix="record an event of this session, and publish that one.",
            )

    def _submit_record(self, command: commands_pb2.Command, attachment: Attachment) -> None:
        """Submits a record of the event. For a published one, other sessions then wait for the new record."""
        attachment.submit(command)

    def _request_publish(self, name: str, replace: bool) -> PendingResult[None]:
        check_published(self._connection)
        attachment = self._connection.attachment()
        self._check_owned()
        if not name:
            raise ArgumentError("the name is empty.", fix="pass 1 to 200 characters.")
        command = commands_pb2.Command()
        command.publish_event.event = self._recorded_on(attachment, self._connection)
        command.publish_event.name, command.publish_event.replace = name, replace
        self._published = True
        return self._connection.request(command, lambda result: None, attachment)

    def _request_attach(self, name: str) -> PendingResult[None]:
        check_published(self._connection)
        attachment, handle = self._connection.attachment(), self._connection.mint()
        command = commands_pb2.Command()
        command.attach_event.event, command.attach_event.name = handle, name

        def attached(_result: commands_pb2.Result) -> None:
            self._handle, self._attachment, self._attached = handle, attachment, name

        return self._connection.request(command, attached, attachment)

    @property
    def _was_recorded(self) -> bool:
        """False for an event that was never recorded, which is done as in CUDA; the daemon does not know it."""
        return self._attachment is not None

    def _recorded_on(self, attachment: Attachment, connection: Connection) -> int:
        self._check(connection)
        if not self._was_recorded:
            raise ArgumentError(
                "the event has not been recorded.",
                fix="record it first: stream.record(event).",
            )
        if self._attachment is not attachment:
            raise InvalidHandleError(
                "the event was lost with the connection or device process on which it was recorded.",
                fix="record it again.",
            )
        return self._handle

    def _check(self, connection: Connection) -> None:
        if connection is not self._connection:
            raise ArgumentError(
                f"the event belongs to device {self._connection.ordinal} of its session, not to device "
                f"{connection.ordinal}.",
                fix="record an event on a stream of the same device.",
            )

    def _request_elapsed(self, start: BaseEvent) -> PendingResult[float]:
        check_event(start)
        attachment = self._connection.attachment()
        command = commands_pb2.Command()
        command.elapsed_time.start = start._recorded_on(attachment, self._connection)
        command.elapsed_time.end = self._recorded_on(attachment, self._connection)
        return self._connection.request(command, lambda result: result.event.elapsed_ns / 1e6, attachment)

    def add_done_callback(self, fn: Callable[[Self], object]) -> None:
        """Has ``fn(event)`` called when the work before the last record is done. Does not block.

        An event that was never recorded is done.

        With `hearth`, a thread of the client calls it, one function of a device after another, and an exception is
        logged, as by `concurrent.futures.Future.add_done_callback`. With `hearth.aio`, the event loop calls it, as by
        `asyncio.Future.add_done_callback`, and an exception goes to the loop's exception handler.

        The function is not called if the device is lost or the node is closed before that. Several functions are called
        in the order in which they were added.

        Args:
            fn: The function, which may use the device.

        Raises:
            InvalidHandleError: The event was lost with its connection or device process.
        """
        self._call_when_done(partial(fn, self))

    def _call_when_done(self, call: Callable[[], object]) -> None:
        """Has `call` called when the work before the record is done; see `DoneCallback`."""
        from hearth.session.reply import DoneCallback

        deliver = self._connection.callback_queue()
        DoneCallback(self._request_query(True).reply, deliver, call, self)

    def _request_query(self, wait: bool) -> PendingResult[bool]:
        attachment = self._connection.attachment()
        if not self._was_recorded:
            from hearth.session.reply import PendingResult, Reply

            reply = Reply(attachment.waiters)
            reply.set_result(DONE)
            return PendingResult(reply, lambda _result: True)
        command = commands_pb2.Command()
        command.query_event.event = self._recorded_on(attachment, self._connection)
        command.query_event.wait = wait
        return self._connection.request(command, lambda result: result.event.done, attachment)

    def __del__(self) -> None:
        attachment = getattr(self, "_attachment", None)
        if attachment is not None and attachment.alive and attachment.space is not None:
            attachment.space.deferred_frees.add("event", self._handle)


def check_published(connection: Connection) -> None:
    """Checks that the daemon shares events between sessions.

    Args:
        connection: The connection to the device.

    Raises:
        UnsupportedError: The daemon is of an older version.
    """
    if not connection.limits.publishes_events:
        raise UnsupportedError(
            "the daemon is of an older version, which shares no events between sessions.",
            fix="wait for the event, event.synchronize(), before the other session continues; or update the daemon.",
        )


def check_composition(connection: Connection, lacks: str) -> None:
    """Checks that the daemon captures events and launches of graphs, and changes copies and fills of graphs.

    Args:
        connection: The connection to the device.
        lacks: What an older daemon does not do, for the message: a verb and its object.

    Raises:
        UnsupportedError: The daemon is older than that.
    """
    if not connection.limits.composes_graphs:
        raise UnsupportedError(
            f"the daemon is of an older version, which {lacks}.",
            fix="record the work of the graph again, on one stream, or update the daemon.",
        )
