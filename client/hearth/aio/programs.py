"""Graphs and prepared lists, for asyncio: the end of ``async with`` waits for them, their launches do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from hearth import graph as sync_graph
from hearth import prepared as sync_prepared
from hearth.aio.awaited import AsyncWith

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from hearth.aio.road import LoopConnection


class Graph(AsyncWith, sync_graph.Graph):
    """As `hearth.Graph`, recorded by ``async with gpu.graph() as g:``."""

    _connection: LoopConnection

    def __enter__(self) -> NoReturn:
        self._refuse_with()

    async def __aenter__(self) -> Self:
        await self._connection.opened()
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = self._end(kind, error, trace)
        if ending is not None:
            with self._or_closed():
                await self._connection.home.asked(ending)


class Prepared(AsyncWith, sync_prepared.Prepared):
    """As `hearth.Prepared`, collected by ``async with gpu.prepared() as p:``."""

    _connection: LoopConnection

    def __enter__(self) -> NoReturn:
        self._refuse_with()

    async def __aenter__(self) -> Self:
        await self._connection.opened()
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = self._end(kind, error, trace)
        if ending is not None:
            with self._or_closed():
                await self._connection.home.asked(ending)
