"""The connection to one device for an event loop: its calls never block in the event loop.

Commands may be submitted before the device is attached: a thread attaches it, and they are sent afterwards. During that
time, the use of a durable array that is being restored after a loss raises an error that names the coroutine to await.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hearth.aio.event_loop import Home, in_loop
from hearth.aio.thread_pool import Work
from hearth.codec import timeouts
from hearth.errors import ClosedError, HearthError, QuotaExceededError, UnavailableError, unanswered
from hearth.session.attachment import Attachment
from hearth.session.connection import Connection
from hearth.session.execute_stream import ExecuteStream
from hearth.session.memory import Space
from hearth.session.timing import TIMING, Timing
from hearth.transport.backoff import AttachBackoff

if TYPE_CHECKING:
    from hearth.session.cancelling import Cancelling
    from hearth.session.kernel_output import KernelOutput
    from hearth.session.reply import PendingResult
    from hearth.session.send_queue import Limits
    from hearth.transport.base import Transport

T = TypeVar("T")

TIMES = 4
"""Factor by which an event loop may fill the queue beyond the limit at which a thread must wait."""
UPLOADS_SOFT = 256 << 20
UPLOADS_HARD = 1 << 30
"""Limits on the bytes of large arrays being uploaded: above `UPLOADS_SOFT`, `LoopConnection` waits; above
`UPLOADS_HARD`, a call raises `QuotaExceededError`."""
_POLL_S = 1e-3
_RESTORED_S = 0.05
"""Seconds after which a durable array that is being restored may be usable."""


class LoopAttachment(Attachment):
    """An attachment that accepts commands from the event loop without blocking, even before it is open."""

    _trying = False
    _failed: HearthError | None = None
    """The error of the last attempt to open the attachment."""

    def __init__(
        self,
        limits: Limits,
        on_end: Callable[[Attachment, HearthError, bool], None],
        on_late_error: Callable[[HearthError], None],
        kernel_output: KernelOutput,
        requests: Iterator[int],
        timing: Timing = TIMING,
    ) -> None:
        super().__init__(limits, on_end, on_late_error, kernel_output, requests, timing)
        self._opened = threading.Event()

    def wait_opened(self) -> None:
        """Blocks until the device is attached; not for the event loop's thread.

        Raises the error for which the device cannot be attached.
        """
        self._opened.wait()
        if self.session.error is not None:
            raise self.session.error.again()

    def open_with_retries(
        self, transport: Transport, token: str, device: int, lease: float, backoff: AttachBackoff
    ) -> None:
        """Attaches, with the same retries as `BlockingConnection`; commands queued meanwhile are kept.

        Blocks; called in a thread of the pool.

        Args:
            transport: Transport of the session.
            token: Token of the session.
            device: Ordinal of the device.
            lease: Seconds for which a broken connection may be resumed.
            backoff: Backoff that decides about further attempts.

        Raises:
            HearthError: The error of the last attempt.
        """
        session = self.session
        try:
            while True:
                try:
                    self._try(
                        ExecuteStream(self, transport, token, device, lease, self._timing),
                        device,
                        backoff.attempt_timeout,
                    )
                    return
                except HearthError as error:
                    pause = backoff.pause(error)
                    session.device_lost, session.fail_later = False, None
                self.over.wait(pause)
        except HearthError as error:
            self._trying = False
            self.end(error)
            raise
        finally:
            self._opened.set()

    def _try(self, execute: ExecuteStream, device: int, timeout: float) -> None:
        session = self.session
        if session.error is not None:  # the connection was closed meanwhile
            raise session.error.again()
        self._failed, self._trying = None, True
        self._use_stream(execute)
        execute.open()
        self.waiters.wait_until(lambda: session.attached or bool(session.error or self._failed), timeout)
        with self._lock:
            self._trying = False
            self.alive = self.alive or (session.attached and session.error is None)
        error = session.error or self._failed
        if error is not None:
            raise error.again()
        if not session.attached:
            raise unanswered(device, timeout)

    def end(self, error: HearthError) -> None:
        """Ends the attachment. While it is being opened, only a close ends it, because further attempts may follow.

        Args:
            error: The reason, raised by later calls.
        """
        if self._trying and not isinstance(error, ClosedError):
            with self._lock:
                self._failed = error
                self.waiters.changed()
            return
        super().end(error)

    def _await_room(self) -> None:
        session, queue = self.session, self.queue
        if session.error is not None or not in_loop():
            super()._await_room()
        elif queue.queued >= TIMES * queue.max_commands or queue.queued_bytes >= TIMES * queue.max_bytes:
            raise queue_full(f"{queue.queued} commands ({queue.queued_bytes} bytes) are queued for the device")

    @property
    def has_room(self) -> bool:
        """True if a thread could submit a command without waiting."""
        return not self.queue.full or self.session.error is not None


class LoopConnection(Connection):
    """The connection to one device for the event loop of `home`.

    In threads without an event loop, its calls block like those of `hearth`.
    """

    def __init__(
        self, home: Home, transport: Transport, token: str, ordinal: int, limits: Limits, timeout: float, lease: float
    ) -> None:
        super().__init__(transport, token, ordinal, limits, timeout, lease)
        self.home = home
        self.uploads_soft = UPLOADS_SOFT
        self.uploads_hard = UPLOADS_HARD
        """Bytes of large arrays that may be in transit: beyond the first `ready` waits, beyond the second a call
        raises."""
        self.uploading = 0
        """Bytes of large arrays that are being uploaded."""
        self._opening: Work[None] | None = None
        self._last_attachment: LoopAttachment | None = None
        """The attachment that is being opened, or was opened last."""

    def callback_queue(self) -> Callable[[Callable[[], None]], object]:
        """Returns the function that passes a callback on to the event loop."""
        return self.home.call_soon

    # ---- attachments ----

    def attachment(self) -> Attachment:
        """Returns the current attachment. In the event loop, never blocks: attaching continues in a thread.

        Raises `UnsupportedError` in another event loop, and `UnavailableError` while a broken session is resumed.
        """
        self.home.check()
        return super().attachment()

    def _attach(self) -> Attachment:
        opening = self._begin()
        if not in_loop():
            opening.result()
        attachment = self._attachment
        if attachment is not None and (attachment.alive or attachment is self._last_attachment):
            return attachment  # if it has just failed, its use raises the error
        raise self._unavailable()

    def _restored(self) -> Attachment:
        opening = self._begin()
        if not in_loop():
            opening.result()
        attachment = self._attachment
        if attachment is None or not opening.done():
            raise self._unavailable()
        return attachment

    def _unavailable(self) -> UnavailableError:
        return UnavailableError(
            f"device {self.ordinal} is being reattached, and its arrays are being restored.",
            fix="call await gpu.ready() first.",
            retry_after=_RESTORED_S,
        )

    def _begin(self) -> Work[None]:
        """Starts to attach in a thread of the pool, unless that is in progress. Returns the task."""
        if self.refusal is not None:
            raise self.refusal.again()
        with self._attaching:
            opening, last_attachment, attachment = self._opening, self._last_attachment, self._attachment
            if opening is not None and last_attachment is not None:
                is_opening = not opening.done() and last_attachment.session.error is None
                if is_opening or (attachment is not None and attachment.alive):
                    return opening
            if attachment is not None and attachment.session.device_lost and self._space is not None:
                self._space.lost = True  # `_ended` is about to set this
            self._last_attachment = new_attachment = LoopAttachment(
                self.limits, self._ended, self._deferred.add, self.kernel_output, self._requests, self.timing
            )
            if self._space is None or self._space.lost:
                # its generation may become known later: only durable arrays, which `_restored` checks, move to it
                self._space = space = Space(0)
                new_attachment.session.reverts = self.durables.any
                new_attachment.adopt(space)
                new_attachment.alive = True
                self._attachment = new_attachment
            self._opening = self.home.openings.run(partial(self._open, new_attachment))
            return self._opening

    def _ended(self, attachment: Attachment, error: HearthError, report: bool) -> None:
        if not attachment.session.generation and attachment.space is not None:
            attachment.space.lost = True  # objects submitted in that space were never created
        super()._ended(attachment, error, report)

    def _open(self, attachment: LoopAttachment) -> None:
        backoff = AttachBackoff(self.timeout, self.transport.absent)
        attachment.open_with_retries(self.transport, self.token, self.ordinal, self.lease, backoff)
        space = attachment.space
        if space is None:
            self._use(attachment)
        else:
            self.generation = space.generation = attachment.session.generation
            self.durables.move(attachment.session.durable, space)
            if self.recorder is not None:
                self.recorder.attached(self, attachment)
        if self.refusal is not None:
            attachment.end(self.refusal)

    async def opened(self, timeout: float | None = None) -> float | None:
        """Returns when commands can be submitted, for durable arrays too.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Returns:
            The seconds that are left; None: no limit.

        Raises:
            ArgumentError: `timeout` is not a number of seconds.
            TimeoutError: No command could be submitted in time.
            HearthError: An error of `attachment`.
        """
        self.home.check()
        timeout = timeouts.check_wait(timeout)
        if self._accepts_all():
            return timeout
        opening = self._begin()
        if self._accepts_all():
            return timeout
        began = self.home.loop.time()
        await self.home.wait_done(opening, timeout)
        if timeout is not None and not opening.done():
            raise unanswered(self.ordinal, timeout)
        opening.result()
        return None if timeout is None else max(0.0, timeout - (self.home.loop.time() - began))

    def _accepts_all(self) -> bool:
        """True if commands can be submitted, and no durable array is being restored."""
        attachment, opening = self._attachment, self._opening
        if attachment is None or not attachment.alive:
            return False
        return opening is None or opening.done() or not self.durables.any()

    async def result_of(self, request: Callable[[], PendingResult[T]], timeout: float | None = None) -> T:
        """Sends a request when commands can be submitted, and returns its result; see `Home.result_of`.

        Args:
            request: Sends the request.
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            TimeoutError: The answer has not arrived in time.
            HearthError: The request failed, or an error of `attachment`.
        """
        timeout = await self.opened(timeout)
        return await self.home.result_of(request(), timeout)

    def block_until_attached(self) -> None:
        """Blocks a thread without an event loop until the generation of the device is known.

        Raises the error for which it cannot be attached.
        """
        self._begin().result()

    async def wait_attached(self) -> None:
        """Returns when the device is attached and its generation is known.

        Raises the error for which it cannot be attached.
        """
        self.home.check()
        opening = self._begin()
        await self.home.wait_done(opening)
        opening.result()

    async def ready(self) -> None:
        """Returns when the device is attached, the queue has room and at most `UPLOADS_SOFT` bytes are uploading."""
        await self.wait_attached()
        while self.uploading > self.uploads_soft or not self._has_room():  # noqa: ASYNC110 - there is no notification of room
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(0)  # lets other tasks run even if the calling task only submits work

    async def cancelled(self, cancelling: Cancelling) -> int:
        """Puts a queued Cancel command into effect, and returns the number of commands that were dropped.

        Args:
            cancelling: The command.

        Raises:
            UnsupportedError: The daemon is of an earlier version.
        """
        await self.home.call(cancelling.put_into_effect)
        return await self.home.result_of(cancelling.dropped)

    def _has_room(self) -> bool:
        attachment = self._attachment
        return not isinstance(attachment, LoopAttachment) or attachment.has_room

    # ---- large arrays being uploaded ----

    def add_upload(self, size: int) -> None:
        """Counts bytes that are about to be uploaded.

        Args:
            size: Number of bytes.

        Raises:
            QuotaExceededError: More than `UPLOADS_HARD` bytes would be in transit. A single array of any size is
                accepted.
        """
        if self.uploading and self.uploading + size > self.uploads_hard:
            raise queue_full(f"{self.uploading} bytes of arrays are being uploaded to the device")
        self.uploading += size

    def finish_upload(self, size: int) -> None:
        """Counts bytes as uploaded. Safe from any thread.

        Args:
            size: Number of bytes, as given to `add_upload`.
        """
        self.home.call_soon(partial(self._finish_upload, size))

    def _finish_upload(self, size: int) -> None:
        self.uploading -= size


def queue_full(description: str) -> QuotaExceededError:
    """Builds the error of a call that would block; `description` describes the full queue."""
    return QuotaExceededError(
        f"{description}, and this call cannot wait in an event loop.",
        reason="QUEUE_FULL",
        fix="call await gpu.ready() regularly, as you would await drain() of an asyncio StreamWriter.",
    )
