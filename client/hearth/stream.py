"""Streams and events whose completion is waited for by the calling thread."""

from __future__ import annotations

from hearth import telemetry
from hearth.base_stream import BaseEvent, BaseStream


class Stream(BaseStream):
    """A sequence of commands that run in order on a device. Made by `Device.stream`.

    ``with stream:`` makes it the current stream of the thread for its device. Dropping it does not end its work.
    """

    @telemetry.traced("hearth.stream.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """Waits until everything submitted to the stream is done; `timeout` in seconds.

        Raises what failed on the stream since it was last asked, or `TimeoutError`; the work goes on after that.
        """
        self._synchronizing().wait(timeout)
        self._connection.raise_deferred(self._handle)  # of what was sent before, all answers have come before

    def record(self, event: Event | None = None) -> Event:
        """Records an event after the work submitted so far; a new one unless given."""
        event = event or Event(self._connection)
        self._record(event)
        return event

    @property
    def done(self) -> bool:
        """Whether everything submitted so far is done. Takes no errors."""
        event, fresh = self._probing()
        return event._querying(False).wait() or (fresh and event._querying(False).wait())


class Event(BaseEvent):
    """A point in a stream. Recorded by `Stream.record`."""

    @property
    def done(self) -> bool:
        """Whether the work before the record is done."""
        return self._querying(False).wait()

    @telemetry.traced("hearth.event.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """Waits for the work before the record; `timeout` in seconds. Raises `TimeoutError`."""
        self._querying(True).wait(timeout)

    @telemetry.traced("hearth.event.elapsed")
    def elapsed(self, start: Event) -> float:
        """Milliseconds of device time from `start` to this event; waits for both."""
        return self._measuring(start).wait()


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds of device time between two recorded events; waits for both."""
    return end_event.elapsed(start_event)
