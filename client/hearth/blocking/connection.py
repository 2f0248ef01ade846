"""The connection to one device whose attaching blocks the calling thread.

`hearth.aio.connection` has the connection that attaches without blocking the event loop.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hearth.blocking.attachment import BlockingAttachment
from hearth.errors import HearthError, closed
from hearth.session.connection import Connection
from hearth.transport.backoff import AttachBackoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.session.attachment import Attachment


LAUNCH_BLOCKING = "HEARTH_LAUNCH_BLOCKING"
"""Environment variable that makes launches wait, unless it is empty or 0; see `hearth.blocking.launch_blocking`."""


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
                    self._use(new_attachment)
                    return new_attachment
                except HearthError as error:
                    pause = backoff.pause(error)
                except BaseException:  # KeyboardInterrupt: the daemon accepts no other stream while this one is open
                    new_attachment.end(closed())
                    raise
                time.sleep(pause)
