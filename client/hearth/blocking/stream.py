"""Streams and events whose completion the calling thread waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hearth import telemetry
from hearth.arrays.published import until_published
from hearth.base_stream import BaseEvent, BaseStream, check_event

if TYPE_CHECKING:
    from hearth.blocking.connection import BlockingConnection
    from hearth.blocking.graph import Graph
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth_proto.v1 import commands_pb2


class Stream(BaseStream):
    """A sequence of commands that run in order on a device. Made by `Device.stream`.

    ``with stream:`` makes it the current stream of the thread, or task, for its device. Work submitted to the stream
    continues even if the program keeps no reference to the stream.
    """

    _connection: BlockingConnection

    @telemetry.traced("hearth.stream.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """Blocks until everything submitted to the stream so far is done.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            HearthError: The first failure on the stream since errors were last reported; `HearthError.failures` lists
                all of them.
            DeviceLostError: The device was lost; raised once for each loss.
            TimeoutError: The work is not done in time; it continues.
        """
        remaining = self._connection.opened(timeout, reports=True)
        self._request_sync().wait(remaining)

    def cancel(self) -> int:
        """Cancels the stream's commands that the device has not begun: launches, copies, fills and dispatches.

        Blocks for one request to the device, not for its work.

        Work that has begun completes, and the arrays keep the contents that it gives them. Streams and arrays remain
        usable. Cancelled commands fail with `CancelledError`: those that return a result raise it there, all others at
        the next `synchronize`.

        Returns:
            Number of commands and launches that were cancelled.

        Raises:
            UnsupportedError: The daemon is of an earlier version.
        """
        cancelling = self._queue_cancel()
        return 0 if cancelling is None else cancelling.wait()

    def record(self, event: Event | None = None) -> Event:
        """Records an event after the work submitted so far. Does not block, unless the event is published.

        Args:
            event: An event of the same device, whose earlier record is replaced; None: a new one.

        Returns:
            The event.

        Raises:
            ArgumentError: The event belongs to another device, or was attached.
        """
        return self._record(Event(self._connection) if event is None else event)

    def begin_capture(self, mode: str | int | None = None) -> None:
        """Begins to record the work of this stream as a graph instead of running it. Does not block.

        Launches, copies and fills are recorded until `end_capture`. Another stream joins the capture when it waits for
        an event of a captured stream; this stream must wait for an event after its work before `end_capture`.

        Args:
            mode: ``"thread_local"`` (also ``"global"``, and None): launches, copies and fills of this thread on streams
                outside the capture raise an error. ``"relaxed"``: they run immediately. CUDA's numbers 0 (global), 1
                (thread-local) and 2 (relaxed) are accepted as well.

        Raises:
            LaunchError: The stream is in a capture already, or is the default stream.
            ArgumentError: `mode` is unknown.
        """
        from hearth.blocking.graph import Graph

        graph = Graph(self._connection, Stream, mode)
        graph._capture(self)
        self._graph = graph

    def end_capture(self) -> Graph:
        """Ends the recording that `begin_capture` began. Blocks until the daemon has made the graph.

        Returns:
            The graph, which `Graph.launch` runs.

        Raises:
            LaunchError: `begin_capture` was not called on this stream; or part of the work cannot be recorded, or a
                stream that joined the capture has work that this stream does not wait for. The capture has ended in
                the last two cases.
        """
        from hearth.graphs.base_graph import capture_of

        graph = cast("Graph", capture_of(self))
        graph._finish()
        return graph

    @property
    def done(self) -> bool:
        """True if everything submitted to the stream so far is done; during a capture, everything before the capture.

        Blocks for one request to the device; reports no errors.
        """
        return self._probe_event()._request_query(False).wait()


class Event(BaseEvent):
    """A point in a stream. Made by `Device.event`, recorded by `Stream.record` or `record`."""

    _connection: BlockingConnection

    @property
    def done(self) -> bool:
        """True if the work before the record is done, or the event was never recorded.

        Blocks for one request to the device. Raises `LaunchError` if the event was recorded in a capture, which
        continues.
        """
        return self._request_query(False).wait()

    @telemetry.traced("hearth.event.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """Blocks until the work before the record is done; returns immediately if the event was never recorded.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            InvalidHandleError: The event was lost with its connection or device process.
            TimeoutError: The work is not done in time; it continues.
        """
        remaining = self._connection.opened(timeout)
        self._request_query(True).wait(remaining)

    @telemetry.traced("hearth.event.publish")
    def publish(self, name: str, *, replace: bool = False) -> None:
        """Lets other sessions of this tenant attach the event under a name: ``gpu.attach_event(name)``.

        Blocks until the last record has been submitted to the device, not until the work before it is done. A session
        that attaches the event afterwards waits for that record. `Stream.record` blocks in the same way for a published
        event, so that a session that is notified after the record waits for the new record.

        The name ends with the event and with this session; events that are attached already keep the last record.

        Args:
            name: Name among the events of the tenant on the device, of 1 to 200 characters. An event has one name.
            replace: Takes the name from another event.

        Raises:
            ArgumentError: The event was never recorded, was attached, or was recorded in a capture, or the name is not
                valid.
            InvalidHandleError: Another event has the name (``NAME_IN_USE``), or the event was lost.
            UnsupportedError: The daemon is of an older version.
        """
        self._request_publish(name, replace).wait()

    def _submit_record(self, command: commands_pb2.Command, attachment: Attachment) -> None:
        if self._published:
            self._connection.request(command, lambda result: None, attachment).wait()
        else:
            super()._submit_record(command, attachment)

    @telemetry.traced("hearth.event.elapsed")
    def elapsed(self, start: Event) -> float:
        """Measures the device time between two events. Blocks until both are done.

        Args:
            start: The earlier event, of the same device.

        Returns:
            Milliseconds from `start` to this event.

        Raises:
            ArgumentError: One of the events was never recorded, or they belong to different devices.
            InvalidHandleError: An event was lost with its connection or device process.
        """
        return self._request_elapsed(start).wait()


def attach_event(connection: Connection, name: str, wait: float) -> Event:
    """Attaches a published event; see `Device.attach_event`.

    Args:
        connection: Connection to the device.
        name: The published name.
        wait: Seconds to wait until the name is published.

    Returns:
        The event.

    Raises:
        InvalidHandleError: The name is not published in time.
        ArgumentError: `wait` is negative.
        UnsupportedError: The daemon is of an older version.
    """

    def attach() -> Event:
        event = Event(connection)
        event._request_attach(name).wait()
        return event

    return until_published(wait, attach)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Measures the device time between two recorded events, by CuPy's name. Blocks until both are done.

    Args:
        start_event: The earlier event.
        end_event: The later event, of the same device.

    Returns:
        Milliseconds.

    Raises:
        ArgumentError: One of the events was never recorded, or they belong to different devices.
        InvalidHandleError: An event was lost with its connection or device process.
    """
    check_event(end_event)
    return end_event.elapsed(start_event)
