"""The connection to one device whose attaching blocks the calling thread.

`hearth.aio.connection` has the connection that attaches without blocking the event loop.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hearth.errors import HearthError, TimeoutError
from hearth.session.attachment import Attachment
from hearth.session.connection import Connection
from hearth.session.execute_stream import ExecuteStream
from hearth.session.watchdog import Watchdog
from hearth.transport.backoff import AttachBackoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.transport.base import Transport


LAUNCH_BLOCKING = "HEARTH_LAUNCH_BLOCKING"
"""Environment variable that makes launches wait, unless it is empty or 0; see `hearth.blocking.launch_blocking`."""


class BlockingAttachment(Attachment):
    """An attachment that the thread that needs it opens, blocking."""

    def open(self, transport: Transport, token: str, device: int, timeout: float, lease: float = 30.0) -> None:
        """Attaches to the device. Blocks until the daemon has answered.

        Args:
            transport: Transport of the session.
            token: Token of the session.
            device: Ordinal of the device.
            timeout: Seconds to wait for the answer.
            lease: Seconds for which a broken connection may be resumed.

        Raises:
            TimeoutError: The daemon has not answered in time.
            HearthError: The daemon refused the attachment.
        """
        self.execute = execute = ExecuteStream(self, transport, token, device, lease, self._timing)
        self._watchdog = Watchdog(self._position, execute.status, self._reconnect, timing=self._timing)
        execute.open()
        with self._lock:
            self._await(lambda: self.session.attached or self.session.error is not None, timeout)
            error = self.session.error
            self.alive = self.session.attached and error is None
        if self.alive:
            return
        if error is None:
            error = TimeoutError(
                f"device {device} did not answer within {timeout:g} s.", reason="DEADLINE_EXCEEDED",
                fix="check the daemon with `hearth status`, or connect with a longer timeout.",
            )  # fmt: skip
            self.end(error)
        raise error.again()


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

    def _attach(self) -> Attachment:
        if self.refusal is not None:
            raise self.refusal.again()
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
                try:
                    new_attachment.open(self.transport, self.token, self.ordinal, backoff.attempt_timeout, self.lease)
                    break
                except HearthError as error:
                    time.sleep(backoff.pause(error))
            self._use(new_attachment)
            return new_attachment
