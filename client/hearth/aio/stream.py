"""Streams and events, for asyncio. ``with`` makes a stream the current one of the task, also across its awaits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth import stream as sync
from hearth import telemetry

if TYPE_CHECKING:
    from typing import Self

    from hearth.aio.connection import LoopConnection


class Stream(sync.Stream):
    """As `hearth.Stream`; `synchronize` and `done` are awaited."""

    _connection: LoopConnection

    @telemetry.traced("hearth.stream.synchronize")
    async def synchronize(self, timeout: float | None = None) -> None:  # type: ignore[override]
        """As `hearth.Stream.synchronize`."""
        connection = self._connection
        await connection.opened()
        await connection.home.answer(self._synchronizing(), timeout)
        connection.raise_deferred()

    async def done(self) -> bool:  # type: ignore[override]
        """Whether everything submitted so far is done. Takes no errors."""
        await self._connection.opened()
        event, fresh = self._probing()
        asked = Event.done
        return await asked(event) or (fresh and await asked(event))  # type: ignore[arg-type]

    def record(self, event: sync.Event | None = None) -> Event:
        """As `hearth.Stream.record`."""
        recorded = super().record(event or Event(self._connection))
        assert isinstance(recorded, Event)
        return recorded

    if TYPE_CHECKING:

        def __enter__(self) -> Self: ...


class Event(sync.Event):
    """As `hearth.Event`; `synchronize`, `elapsed` and `done` are awaited."""

    _connection: LoopConnection

    async def done(self) -> bool:  # type: ignore[override]
        """Whether the work before the record is done."""
        await self._connection.opened()
        return await self._connection.home.asked(self._querying(False))

    @telemetry.traced("hearth.event.synchronize")
    async def synchronize(self, timeout: float | None = None) -> None:  # type: ignore[override]
        """As `hearth.Event.synchronize`."""
        await self._connection.opened()
        await self._connection.home.asked(self._querying(True), timeout)

    async def elapsed(self, start: sync.Event) -> float:  # type: ignore[override]
        """Milliseconds of device time from `start` to this event; waits for both."""
        await self._connection.opened()
        return await self._connection.home.asked(self._measuring(start))


async def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds of device time between two recorded events; waits for both."""
    return await end_event.elapsed(start_event)
