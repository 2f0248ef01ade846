"""Graphs and prepared launches, for asyncio: the end of ``async with`` is awaited, launches do not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.aio.awaited import AsyncWith
from hearth.graphs.base_graph import BaseGraph
from hearth.graphs.base_prepared import BasePrepared
from hearth.graphs.program import Program

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self

    from hearth.aio.connection import LoopConnection
    from hearth.session.reply import PendingResult


class _Recording(AsyncWith, Program):
    """The ``async with`` block of graphs and prepared launches, whose end waits until the daemon has answered."""

    _connection: LoopConnection

    async def __aenter__(self) -> Self:
        await self._connection.opened()
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._await(self._end(kind, error, trace))

    async def _await(self, ending: PendingResult[Any] | None) -> None:
        """Waits until the request that ends the recording is answered; closes the handle if that fails."""
        if ending is not None:
            with self._or_closed():
                await self._connection.home.result_of(ending)


class Graph(_Recording, BaseGraph):
    """The asyncio counterpart of `hearth.Graph`, recorded by ``async with gpu.graph() as g:``.

    `Stream.begin_capture` and ``await stream.end_capture()`` record a stream of the program without a block.
    """

    _connection: LoopConnection

    async def _finish(self) -> None:
        await self._await(self._end_capture())


class Prepared(_Recording, BasePrepared):
    """The asyncio counterpart of `hearth.Prepared`, collected by ``async with gpu.prepared() as p:``."""

    _connection: LoopConnection
