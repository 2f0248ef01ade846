"""A dispatch that has been sent: its state, its outputs and its times.

The bytes of a dispatch are sent inside the command and its answer, or in separate transfers. In the latter case a
thread carries out the transfers, so that the dispatch completes whether or not a thread waits for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from hearth.errors import ArgumentError, HearthError, TimeoutError
from hearth.kernels.dispatch_transfers import DispatchBytes, Output
from hearth.session.reply import offer_cancel
from hearth.transfer import plan
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.cancelling import Cancelling
    from hearth.session.connection import Connection
    from hearth.session.reply import Reply

State = Literal["pending", "done", "failed"]


class Carrier(Protocol):
    """Carries out the transfers of a dispatch: a thread, or an object with the same methods."""

    def is_alive(self) -> bool:
        """Returns True until the transfers have ended."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Blocks until the transfers have ended.

        Args:
            timeout: Seconds to wait at most; None: no limit.
        """
        ...


@dataclass(frozen=True)
class DispatchTiming:
    """Times of a dispatch in nanoseconds.

    Device times are measured between events on the device's stream, and are None unless requested by `timed=`.

    `kernel_ns` includes neither the compile nor any copy. `enqueue_ns` + `wait_ns` is at most `wall_ns`.
    """

    upload_ns: int | None
    """Time for copying inputs and clearing outputs."""
    kernel_ns: int | None
    """Time of all launches of the kernel."""
    download_ns: int | None
    wall_ns: int
    """Time in the daemon from the command's arrival to its answer."""
    enqueue_ns: int
    """Part of `wall_ns` until all work was handed to the device; includes the transfer of inputs and outputs."""
    wait_ns: int
    """Part of `wall_ns` spent waiting for the device after that."""


class Job:
    """A dispatch with its transfers.

    `uploads` are pairs of transfer and bytes; the bytes must not change before they are sent.

    A job does not refer to the `PendingDispatch`, so it continues if that object is gone.
    """

    def __init__(
        self,
        connection: Connection,
        attachment: Attachment,
        command: commands_pb2.Command,
        uploads: Sequence[tuple[int, memoryview]],
        outputs: Sequence[Output],
    ) -> None:
        self.outputs = list(outputs)
        self.result: commands_pb2.DispatchResult | None = None
        """The daemon's answer, set after all outputs have been stored."""
        self._error: HearthError | None = None
        self.connection = connection
        self.attachment = attachment
        self._finishing = threading.Lock()
        self._dropped = False
        self.reply: Reply = attachment.request(command)
        self.transfers = DispatchBytes(connection, attachment, self.reply, uploads, outputs)
        """The transfers in addition to the command."""

    @property
    def answered(self) -> bool:
        """True if the daemon has answered."""
        return self.reply.done

    @property
    def error(self) -> HearthError | None:
        """The error of the dispatch; None if no error is known."""
        return self._error or self.reply.error

    def run(self) -> None:
        """Carries out the transfers, waits for the answer and stores the outputs.

        Blocks. Raises the error of the dispatch.
        """
        try:
            self.transfers.transfer()
            self.finish(None)
        except HearthError as error:
            self._error = error
            self.transfers.cancel()
            raise
        except BaseException as error:
            self._error = HearthError(f"the dispatch was aborted: {error!r}.", reason="CANCELLED", fix="try again.")
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancels the transfers and abandons the answer."""
        self.transfers.cancel()
        self.reply.abandon()

    def drop(self) -> None:
        """Stops all further writes to the arrays for the outputs; the dispatch continues."""
        with self._finishing:
            self._dropped = True

    def finish(self, timeout: float | None) -> None:
        """Waits for the answer and stores the outputs, once.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            TimeoutError: The answer has not arrived in time.
            HearthError: The dispatch failed.
        """
        answer = self.reply.wait(timeout).dispatch
        with self._finishing:
            if self.result is not None:
                return
            if self._dropped:
                self.result = answer
                return
            if len(answer.outputs) != len(self.outputs):
                raise self.fail(plan.short(len(answer.outputs), len(self.outputs)))
            pairs = zip(self.outputs, answer.outputs, strict=True)
            inline = [(output.into, data) for output, data in pairs if not output.download]
            for into, data in inline:  # checks the sizes of all outputs before writing any of them
                if len(data) != len(into):
                    raise self.fail(plan.short(len(data), len(into)))
            for into, data in inline:
                if data:
                    into[:] = data
            for output in self.outputs:
                output.settle()
            self.result = answer

    def fail(self, error: HearthError) -> HearthError:
        """Marks the dispatch as failed.

        Args:
            error: The error, which `PendingDispatch.result` raises.

        Returns:
            `error`.
        """
        self._error = error
        return error


class BasePendingDispatch(ABC):
    """Abstract dispatch that has been sent: its state and times."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._carrier: Carrier | None = self._start_transfers() if job.transfers.any else None

    @abstractmethod
    def _start_transfers(self) -> Carrier:
        """Starts to carry out the transfers in another thread."""

    @property
    def state(self) -> State:
        """``"pending"``, ``"done"`` or ``"failed"``; does not block.

        A loss of the device makes its pending dispatches fail.
        """
        job = self._job
        if self._carrier is not None and self._carrier.is_alive():
            return "pending"
        if self._carrier is None and not job.answered:
            return "pending"
        return "failed" if job.error is not None else "done"

    def done(self) -> bool:
        """Returns True once the dispatch has ended, with or without an error. Does not block."""
        return self.state != "pending"

    def _queue_cancel(self) -> Cancelling | None:
        """Queues the cancelling of the dispatch; returns None if it has been answered."""
        from hearth.session.cancelling import Cancelling

        job = self._job
        if job.answered or not job.attachment.alive:
            return None
        return Cancelling(job.attachment, commands_pb2.Cancel(of_request=job.reply.request))

    @property
    def timing(self) -> DispatchTiming:
        """Times of the dispatch, after it is done.

        Raises the error of a failed dispatch, and `ArgumentError` while it is pending.
        """
        if not self.done():
            raise ArgumentError("the dispatch is still pending.", fix="call result() first, or check done().")
        self._finish(None)
        answer = self._job.result
        assert answer is not None
        return DispatchTiming(
            answer.upload_ns if answer.HasField("upload_ns") else None,
            answer.kernel_ns if answer.HasField("kernel_ns") else None,
            answer.download_ns if answer.HasField("download_ns") else None,
            answer.wall_ns,
            answer.enqueue_ns,
            answer.wait_ns,
        )

    def __repr__(self) -> str:
        return f"<hearth.PendingDispatch {self.state}>"

    def _finish(self, timeout: float | None) -> list[np.ndarray[Any, Any]]:
        """Waits until the dispatch is done, and returns its outputs. Raises the error of a failed dispatch."""
        job = self._job
        if self._carrier is not None:
            started = time.monotonic()
            try:
                self._carrier.join(timeout)
            except BaseException as error:
                offer_cancel(error)
                raise
            if self._carrier.is_alive():
                raise TimeoutError(
                    f"the dispatch did not complete within {time.monotonic() - started:.3g} s; it continues.",
                    fix="wait again, or with a longer timeout.",
                )
        elif job.result is None:
            job.finish(timeout)
        if job.error is not None:
            raise job.error.again()
        if job.result is None and job.connection.refusal is not None:  # forked: the thread of the transfers is gone
            raise job.connection.refusal.again()
        return [output.host for output in job.outputs]


def run_job(job: Job) -> None:
    """Carries out a job until it has ended; an error is kept in the job."""
    with contextlib.suppress(HearthError):  # kept in the job, for the call that waits for it
        job.run()
