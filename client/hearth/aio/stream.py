"""Streams and events, for asyncio. ``with`` makes a stream the current one of the task, also across its awaits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth import telemetry
from hearth.base_stream import BaseEvent, BaseStream

if TYPE_CHECKING:
    from hearth.aio.connection import LoopConnection


class Stream(BaseStream):
    """The asyncio counterpart of `hearth.Stream`: `synchronize` and `done` are awaited.

    ``with stream:`` makes it the current stream of the task, also across its awaits.
    """

    _connection: LoopConnection

    @telemetry.traced("hearth.stream.synchronize")
    async def synchronize(self, timeout: float | None = None) -> None:
        """Returns when everything submitted so far is done; arguments and errors of `hearth.Stream.synchronize`."""
        connection = self._connection
        await connection.opened()
        await connection.home.answer(self._synchronizing(), timeout)
        connection.raise_deferred()

    def record(self, event: Event | None = None) -> Event:
        """Records an event after the work submitted so far. Does not wait.

        Args:
            event: An event of the same device, whose earlier record is replaced; None: a new one.

        Returns:
            The event.
        """
        event = event or Event(self._connection)
        self._record(event)
        return event

    async def done(self) -> bool:
        """Returns True if everything submitted so far is done. Reports no errors."""
        connection = self._connection
        await connection.opened()
        event, fresh = self._probing()
        if await connection.home.asked(event._querying(False)):
            return True
        if not fresh:
            return False
        await connection.opened()
        return await connection.home.asked(event._querying(False))


class Event(BaseEvent):
    """The asyncio counterpart of `hearth.Event`: `synchronize`, `elapsed` and `done` are awaited."""

    _connection: LoopConnection

    async def done(self) -> bool:
        """Returns True if the work before the record is done."""
        await self._connection.opened()
        return await self._connection.home.asked(self._querying(False))

    @telemetry.traced("hearth.event.synchronize")
    async def synchronize(self, timeout: float | None = None) -> None:
        """Returns when the work before the record is done; arguments and errors of `hearth.Event.synchronize`."""
        await self._connection.opened()
        await self._connection.home.asked(self._querying(True), timeout)

    async def elapsed(self, start: Event) -> float:
        """Returns the milliseconds of device time from `start` to this event, once both are done."""
        await self._connection.opened()
        return await self._connection.home.asked(self._measuring(start))


async def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Returns the milliseconds of device time between two recorded events, once both are done."""
    return await end_event.elapsed(start_event)
