"""Graphs and prepared launches, for asyncio: the end of ``async with`` is awaited, launches do not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.aio.awaited import AsyncWith
from hearth.aio.stream import Stream
from hearth.kernels.base_graph import BaseGraph
from hearth.kernels.base_prepared import BasePrepared
from hearth.kernels.graph_program import Program

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from hearth.aio.connection import LoopConnection


class _Recording(AsyncWith, Program):
    """The ``async with`` block of graphs and prepared launches, whose end waits until the daemon has answered."""

    _connection: LoopConnection
    _stream_type = Stream

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


class Graph(_Recording, BaseGraph):
    """The asyncio counterpart of `hearth.Graph`, recorded by ``async with gpu.graph() as g:``."""

    _connection: LoopConnection


class Prepared(_Recording, BasePrepared):
    """The asyncio counterpart of `hearth.Prepared`, collected by ``async with gpu.prepared() as p:``."""

    _connection: LoopConnection
