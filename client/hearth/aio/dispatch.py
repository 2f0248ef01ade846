"""A dispatch in progress, for asyncio."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

from hearth import telemetry
from hearth.aio.thread_pool import Work
from hearth.codec import timeouts
from hearth.errors import HearthError, TimeoutError
from hearth.kernels.base_pending_dispatch import BasePendingDispatch, Job, run_job

if TYPE_CHECKING:
    import numpy as np

    from hearth.aio.connection import LoopAttachment, LoopConnection
    from hearth.aio.event_loop import Home


class PendingDispatch(BasePendingDispatch):
    """The asyncio counterpart of `hearth.PendingDispatch`: any number of tasks may await `result`.

    Cancelling such an await does not cancel the dispatch.
    """

    def __init__(self, job: Job, *, copies_inputs: bool = False) -> None:
        """Starts the transfers of the dispatch.

        `copies_inputs`: its large inputs still lie in the caller's memory, and a thread copies them.
        """
        self._home = cast("LoopConnection", job.connection).home
        self._end_task: asyncio.Task[None] | None = None
        self._copies_inputs = copies_inputs
        self._input_copy: Work[None] | None = None
        super().__init__(job)

    def _start_transfers(self) -> Work[None]:
        if self._copies_inputs:
            self._input_copy = self._home.dispatches.run(self._job.transfers.copy_inputs)
        task = _DispatchTask(self._home, self._job, self._input_copy)
        self._home.dispatches.run(task.begin)
        return task.completion

    @telemetry.traced("hearth.dispatch.result", telemetry.of_result)
    async def result(self, timeout: float | None = None) -> list[np.ndarray[Any, Any]]:
        """Returns the outputs, in the order of the arguments; every call returns the same arrays.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Returns:
            The outputs as host arrays.

        Raises:
            HearthError: The dispatch failed; raised by every call.
            TimeoutError: The dispatch is still pending; it continues.
            ArgumentError: `timeout` is not a number of seconds.
        """
        await self._wait_ended(timeouts.check_wait(timeout))
        return self._finish(0)

    async def cancel(self) -> bool:
        """Cancels the dispatch if the device has not begun it. Returns when the device has answered.

        Returns:
            True if the dispatch is cancelled, so that `result` raises `CancelledError`. False if it has ended or has
            begun; it then completes.

        Raises:
            UnsupportedError: The daemon is of an earlier version.
        """
        cancelling = self._queue_cancel()
        return cancelling is not None and await cast("LoopConnection", self._job.connection).cancelled(cancelling) > 0

    async def _wait_ended(self, timeout: float | None) -> None:
        """Returns when the dispatch has ended. Raises `TimeoutError` after `timeout` seconds."""
        self._home.check()
        if self._end_task is None:
            ending = self._home.wait_done(self._carrier) if isinstance(self._carrier, Work) else None
            self._end_task = self._home.loop.create_task(ending or self._home.wait_answered(self._job.reply))
        await asyncio.wait([self._end_task], timeout=timeout)
        if not self._end_task.done():
            raise TimeoutError(
                f"the dispatch did not complete within {timeout:g} s; it continues.",
                fix="wait again, or with a longer timeout.",
            )

    async def _run(self) -> list[np.ndarray[Any, Any]]:
        """Returns the result.

        If the await is cancelled, the dispatch continues, but no longer reads or writes the caller's arrays.
        """
        try:
            return await self.result()
        except BaseException as error:
            self._job.drop()
            if self._input_copy is not None:
                await self._home.wait_uncancelled(self._input_copy, error)
            raise


class _DispatchTask:
    """Transfers the bytes of one dispatch.

    If memory is shared, a thread sends the device the location of the bytes, and another copies the outputs after the
    dispatch is answered; no thread waits in between. Otherwise one thread carries out all transfers.
    """

    def __init__(self, home: Home, job: Job, input_copy: Work[None] | None) -> None:
        """Prepares the transfer.

        `input_copy` is the task that copies the inputs in another thread; None: no copy is needed.
        """
        self.completion: Work[None] = Work(lambda: None)
        self._home = home
        self._job = job
        self._input_copy = input_copy
        self._lock = threading.Lock()
        self._listens = False

    def begin(self) -> None:
        """Starts the transfer; called in a thread of the pool, which may block."""
        job = self._job
        try:
            if self._input_copy is not None:
                self._input_copy.result()
            cast("LoopAttachment", job.attachment).wait_opened()
            if job.transfers.offer_memory():
                self._listens = True
                job.reply.listen(self._answered)
                return
        except BaseException as error:  # e.g. MemoryError of a copy
            if not isinstance(error, HearthError):
                error = HearthError(f"the dispatch was aborted: {error!r}.", reason="CANCELLED", fix="try again.")
            job.fail(error)
            job.cancel()
            self.completion.set_result(None)
            return
        self._start_transfers()

    def _answered(self) -> None:
        """Has a thread finish the transfer. Called by the receiving thread, possibly twice."""
        with self._lock:
            is_first, self._listens = self._listens, False
        if is_first:
            self._home.dispatches.run(self._copy_out)

    def _copy_out(self) -> None:
        self._job.reply.unlisten()
        self._start_transfers()

    def _start_transfers(self) -> None:
        try:
            run_job(self._job)
        finally:
            self.completion.set_result(None)
