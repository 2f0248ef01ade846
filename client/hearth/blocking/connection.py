"""The connection to one device whose attaching blocks the calling thread.

`hearth.aio.connection` has the connection that attaches without blocking the event loop.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

from hearth.blocking.attachment import BlockingAttachment
from hearth.codec import timeouts
from hearth.errors import HearthError, closed, unanswered
from hearth.session.connection import Connection
from hearth.session.late_errors import NO_STREAM
from hearth.transport.backoff import AttachBackoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.session.attachment import Attachment


LAUNCH_BLOCKING = "HEARTH_LAUNCH_BLOCKING"
"""Environment variable that makes launches wait, unless it is empty or 0; see `hearth.blocking.launch_blocking`."""
_POLL_S = 1e-3
_MIN_ATTEMPT_S = 0.1
"""Seconds that an attempt to attach may take at least, whatever the timeout of the call."""


def _attachment_type() -> type[BlockingAttachment]:
    """Returns the class of new attachments, which the environment variable HEARTH_LAUNCH_BLOCKING selects."""
    if os.environ.get(LAUNCH_BLOCKING, "") in ("", "0"):
        return BlockingAttachment
    from hearth.blocking.launch_blocking import LaunchBlockingAttachment

    return LaunchBlockingAttachment


class BlockingConnection(Connection):
    """A connection whose first use, and whose first use after a loss, blocks until the device is attached."""

    def callback_queue(self) -> Callable[[Callable[[], None]], object]:
        """Returns the function that passes a callback on to the connection's thread for callbacks.

        Raises:
            ClosedError: The connection is closed.
        """
        from hearth.blocking.callback_thread import CallbackThread

        return self.part(CallbackThread).deliver

    def opened(self, timeout: float | None, *, reports: bool = False) -> float | None:
        """Blocks until commands can be submitted, for a call with a time limit.

        Args:
            timeout: Seconds to wait at most; None: no limit, and the call itself waits for the device and for room.
            reports: True for a call that reports earlier failures: raises a loss before the device is attached again.

        Returns:
            The seconds that are left for the call; None: no limit.

        Raises:
            ArgumentError: `timeout` is not a number of seconds.
            TimeoutError: No command could be submitted in time.
            HearthError: An error of `attachment`.
        """
        timeout = timeouts.check_wait(timeout)
        if timeout is None:
            return None
        deadline = time.monotonic() + timeout
        attachment = self._attachment
        if attachment is None or not attachment.alive:
            if reports:
                self.raise_deferred(NO_STREAM)
            attachment = self._attach(timeout)
        remaining = max(0.0, deadline - time.monotonic())
        if not attachment.await_room(remaining):
            raise unanswered(self.ordinal, timeout)
        return max(0.0, deadline - time.monotonic())

    def _attach(self, timeout: float = math.inf) -> Attachment:
        """Attaches to the device, within the seconds that the session allows, and at most `timeout` seconds."""
        if self.refusal is not None:
            raise self.refusal.again()
        deadline = time.monotonic() + timeout
        while timeout < math.inf and self._attaching.locked():  # another thread attaches, with its own timeout
            if time.monotonic() >= deadline:
                raise unanswered(self.ordinal, timeout)
            time.sleep(_POLL_S)
        with self._attaching:
            attachment = self._attachment
            if attachment is not None and attachment.alive:
                return attachment
            backoff = AttachBackoff(self.timeout, self.transport.absent)
            while True:
                if self.refusal is not None:
                    raise self.refusal.again()
                new_attachment = _attachment_type()(
                    self.limits, self._ended, self._deferred.add, self.kernel_output, self._requests, self.timing
                )
                seconds = min(backoff.attempt_timeout, max(_MIN_ATTEMPT_S, deadline - time.monotonic()))
                try:
                    new_attachment.open(self.transport, self.token, self.ordinal, seconds, self.lease)
                    self._use(new_attachment)
                    return new_attachment
                except HearthError as error:
                    pause = backoff.pause(error)
                    if time.monotonic() + pause > deadline:
                        raise unanswered(self.ordinal, timeout) from error
                except BaseException:  # KeyboardInterrupt: the daemon accepts no other stream while this one is open
                    new_attachment.end(closed())
                    raise
                time.sleep(pause)
