"""Profiles and traces of an ``async with`` block: the end of the block waits until the work is done."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from hearth.aio.awaited import AsyncWith
from hearth.errors import HearthError
from hearth.profiling.base_profile import BaseProfile
from hearth.profiling.base_trace import BaseTrace

if TYPE_CHECKING:
    from typing import Self

    from hearth.aio.connection import LoopConnection
    from hearth.session.reply import PendingResult


class Profile(AsyncWith, BaseProfile):
    """The asyncio counterpart of `hearth.Profile`: ``async with gpu.profile() as p:``."""

    _connection: LoopConnection

    async def __aenter__(self) -> Self:
        await self._connection.opened()
        self._begin()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ending = self._end(error)
        if ending is not None:
            await self._connection.home.result_of(ending)


class Trace(AsyncWith, BaseTrace):
    """The asyncio counterpart of `hearth.Trace`: ``async with gpu.trace() as t:``.

    If the block is cancelled, it ends without waiting, and the trace is lost.
    """

    _connection: LoopConnection

    async def __aenter__(self) -> Self:
        await self._connection.opened()
        if self._connection.recorder is not None:
            await self._connection.home.call(self._pause)
        request = self._begin()
        try:
            await self._connection.home.result_of(request)
        except asyncio.CancelledError:
            self._connection.home.calls.run(partial(self._undo, request))
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._drop()
            return
        ending = self._end(error)
        if ending is not None:
            try:
                await self._connection.home.result_of(ending)
            finally:
                self._resume()

    def _undo(self, request: PendingResult[None]) -> None:
        with contextlib.suppress(HearthError):  # the trace did not start, e.g. because another trace is running
            request.wait()
            self._drop()
