"""A dispatch that has been sent, for asyncio."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from hearth import pending as sync
from hearth import spans
from hearth.aio.threads import Work
from hearth.errors import HearthError, TimeoutError

if TYPE_CHECKING:
    import numpy as np

    from hearth.aio.road import LoopAttachment, LoopConnection


class PendingDispatch(sync.PendingDispatch):
    """As `hearth.PendingDispatch`; `result` is awaited, by as many as like. To cancel that leaves the dispatch be."""

    def __init__(self, job: sync.Job) -> None:
        self._home = cast("LoopConnection", job.connection).home
        self._over: asyncio.Task[None] | None = None
        super().__init__(job)

    def _carry(self) -> Work[None]:
        return self._home.dispatches.run(partial(_carry, self._job))

    @spans.traced("hearth.dispatch.result", spans.of_result)
    async def result(self, timeout: float | None = None) -> list[np.ndarray[Any, Any]]:  # type: ignore[override]
        """As `hearth.PendingDispatch.result`."""
        await self._settled(timeout)
        return super().result(0)

    async def _settled(self, timeout: float | None) -> None:
        """Returns when it has ended. Raises `TimeoutError`."""
        self._home.check()
        if self._over is None:
            ending = self._home.over(self._carrier) if isinstance(self._carrier, Work) else None
            self._over = self._home.loop.create_task(ending or self._home.answered(self._job.reply))
        await asyncio.wait([self._over], timeout=timeout)
        if not self._over.done():
            raise TimeoutError(
                f"the dispatch was not done within {timeout:g} s; it goes on.",
                reason="DEADLINE_EXCEEDED",
                fix="wait again, or with a longer timeout.",
            )

    async def _run(self) -> list[np.ndarray[Any, Any]]:
        """Its result; where this is cancelled it goes on, and leaves the arrays that it was given as they are."""
        try:
            return await self.result()
        except BaseException:
            self._job.drop()
            raise


def _carry(job: sync.Job) -> None:
    try:
        cast("LoopAttachment", job.attachment).wait_opened()
    except HearthError as error:
        job.fail(error)
        return
    sync.carry(job)
