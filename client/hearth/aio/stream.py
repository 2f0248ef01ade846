"""Streams and events, for asyncio.

A ``with`` block makes a stream the current one of the task, also across its awaits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from hearth import telemetry
from hearth.aio.awaited import until_published
from hearth.base_stream import BaseEvent, BaseStream, check_event
from hearth.errors import LaunchError

if TYPE_CHECKING:
    from hearth.aio.connection import LoopConnection
    from hearth.aio.graph import Graph
    from hearth.session.attachment import Attachment
    from hearth_proto.v1 import commands_pb2


class Stream(BaseStream):
    """The asyncio counterpart of `hearth.Stream`: `synchronize` and `done` are awaited.

    ``with stream:`` makes it the current stream of the task, also across its awaits.
    """

    _connection: LoopConnection

    @telemetry.traced("hearth.stream.synchronize")
    async def synchronize(self, timeout: float | None = None) -> None:
        """Returns when everything submitted to the stream so far is done.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            HearthError: The first failure on the stream since errors were last reported; `HearthError.failures` lists
                all of them.
            DeviceLostError: The device was lost; raised once for each loss.
            TimeoutError: The work is not done in time; it continues.
        """
        connection = self._connection
        timeout = await connection.opened(timeout)
        reply = self._request_sync()
        reply.raise_failures = connection.raise_failures  # also those of copies on other streams
        await connection.home.answer(reply, timeout)

    async def cancel(self) -> int:
        """Cancels the stream's commands that the device has not begun: launches, copies, fills and dispatches.

        Returns when the device has answered, before its running work is done.

        Work that has begun completes, and the arrays keep the contents that it gives them. Streams and arrays remain
        usable. Cancelled commands fail with `CancelledError`: those that return a result raise it there, all others at
        the next `synchronize`.

        Returns:
            Number of commands and launches that were cancelled.

        Raises:
            UnsupportedError: The daemon is of an earlier version.
        """
        cancelling = self._queue_cancel()
        return 0 if cancelling is None else await self._connection.cancelled(cancelling)

    def record(self, event: Event | None = None) -> Event:
        """Records an event after the work submitted so far. Does not wait.

        Args:
            event: An event of the same device, whose earlier record is replaced; None: a new one.

        Returns:
            The event.

        Raises:
            ArgumentError: The event belongs to another device, or was attached.
            LaunchError: The event is published; see `Event.publish`.
        """
        return self._record(Event(self._connection) if event is None else event)

    def begin_capture(self, mode: str | int | None = None) -> None:
        """Begins to record the work of this stream as a graph; see `hearth.Stream.begin_capture`. Does not wait.

        Args:
            mode: ``"thread_local"`` (also ``"global"``, and None): launches, copies and fills of this task on streams
                outside the capture raise an error. ``"relaxed"``: they run immediately. CUDA's numbers 0 (global), 1
                (thread-local) and 2 (relaxed) are accepted as well.

        Raises:
            LaunchError: The stream is in a capture already, or is the default stream.
            ArgumentError: `mode` is unknown.
        """
        from hearth.aio.graph import Graph

        graph = Graph(self._connection, Stream, mode)
        graph._capture(self)
        self._graph = graph

    async def end_capture(self) -> Graph:
        """Ends the recording that `begin_capture` began, and returns the graph when the daemon has made it.

        Returns:
            The graph, which `Graph.launch` runs.

        Raises:
            LaunchError: `begin_capture` was not called on this stream; or part of the work cannot be recorded, or a
                stream that joined the capture has work that this stream does not wait for. The capture has ended in
                the last two cases.
        """
        from hearth.graphs.base_graph import capture_of

        graph = cast("Graph", capture_of(self))
        await graph._finish()
        return graph

    async def done(self) -> bool:
        """Returns True if everything submitted to the stream so far is done. Reports no errors.

        During a capture, only the work before the capture counts.
        """
        return await self._connection.result_of(lambda: self._probe_event()._request_query(False))


class Event(BaseEvent):
    """The asyncio counterpart of `hearth.Event`: `synchronize`, `elapsed` and `done` are awaited."""

    _connection: LoopConnection

    async def done(self) -> bool:
        """Returns True if the work before the record is done, or the event was never recorded.

        Raises `LaunchError` if the event was recorded in a capture, which continues.
        """
        return await self._connection.result_of(partial(self._request_query, False))

    @telemetry.traced("hearth.event.synchronize")
    async def synchronize(self, timeout: float | None = None) -> None:
        """Returns when the work before the record is done, or immediately if the event was never recorded.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            InvalidHandleError: The event was lost with its connection or device process.
            TimeoutError: The work is not done in time; it continues.
        """
        await self._connection.result_of(partial(self._request_query, True), timeout)

    @telemetry.traced("hearth.event.publish")
    async def publish(self, name: str, *, replace: bool = False) -> None:
        """Lets other sessions of this tenant attach the event under a name; see `hearth.Event.publish`.

        Returns when the last record has been submitted to the device. A published event cannot be recorded again,
        because `Stream.record` does not wait for that: publish a new event under the name, with `replace`.

        Args:
            name: Name among the events of the tenant on the device, of 1 to 200 characters. An event has one name.
            replace: Takes the name from another event.

        Raises:
            ArgumentError: The event was never recorded, was attached, or was recorded in a capture, or the name is not
                valid.
            InvalidHandleError: Another event has the name (``NAME_IN_USE``), or the event was lost.
            UnsupportedError: The daemon is of an older version.
        """
        await self._connection.result_of(partial(self._request_publish, name, replace))

    def _submit_record(self, command: commands_pb2.Command, attachment: Attachment) -> None:
        if self._published:
            raise LaunchError(
                "a published event cannot be recorded again without a wait.",
                reason="UNSUPPORTED",
                fix="record a new event, and publish it under the name: await event.publish(name, replace=True).",
            )
        super()._submit_record(command, attachment)

    async def elapsed(self, start: Event) -> float:
        """Measures the device time between two events. Returns when both are done.

        Args:
            start: The earlier event, of the same device.

        Returns:
            Milliseconds from `start` to this event.

        Raises:
            ArgumentError: One of the events was never recorded, or they belong to different devices.
            InvalidHandleError: An event was lost with its connection or device process.
        """
        return await self._connection.result_of(partial(self._request_elapsed, start))


async def attach_event(connection: LoopConnection, name: str, wait: float) -> Event:
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

    async def attach() -> Event:
        event = Event(connection)
        await connection.result_of(partial(event._request_attach, name))
        return event

    return await until_published(wait, attach)


async def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Measures the device time between two recorded events, by CuPy's name. Returns when both are done.

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
    return await end_event.elapsed(start_event)
