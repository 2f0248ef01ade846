"""Streams and events, for asyncio. ``with`` makes a stream the current one of the task, also across its awaits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth import telemetry
from hearth.base_stream import BaseEvent, BaseStream

if TYPE_CHECKING:
    from hearth.aio.connection import LoopConnection


class Stream(BaseStream):
    """As `hearth.Stream`; `synchronize` and `done` are awaited."""

    _connection: LoopConnection

    @telemetry.traced("hearth.stream.synchronize")
    async def synchronize(self, timeout: float | None = None) -> None:
        """As `hearth.Stream.synchronize`."""
        connection = self._connection
        await connection.opened()
        await connection.home.answer(self._synchronizing(), timeout)
        connection.raise_deferred()

    def record(self, event: Event | None = None) -> Event:
        """As `hearth.Stream.record`."""
        event = event or Event(self._connection)
        self._record(event)
        return event

    async def done(self) -> bool:
        """Whether everything submitted so far is done. Takes no errors."""
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
    """As `hearth.Event`; `synchronize`, `elapsed` and `done` are awaited."""

    _connection: LoopConnection

    async def done(self) -> bool:
        """Whether the work before the record is done."""
        await self._connection.opened()
        return await self._connection.home.asked(self._querying(False))

    @telemetry.traced("hearth.event.synchronize")
    async def synchronize(self, timeout: float | None = None) -> None:
        """As `hearth.Event.synchronize`."""
        await self._connection.opened()
        await self._connection.home.asked(self._querying(True), timeout)

    async def elapsed(self, start: Event) -> float:
        """Milliseconds of device time from `start` to this event; waits for both."""
        await self._connection.opened()
        return await self._connection.home.asked(self._measuring(start))


async def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds of device time between two recorded events; waits for both."""
    return await end_event.elapsed(start_event)
