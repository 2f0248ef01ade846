"""Attachments to a device that the calling thread opens, blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.errors import unanswered
from hearth.session.attachment import Attachment
from hearth.session.execute_stream import ExecuteStream

if TYPE_CHECKING:
    from hearth.transport.base import Transport


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
        execute = ExecuteStream(self, transport, token, device, lease, self._timing)
        self._use_stream(execute)
        execute.open()
        self.waiters.wait_until(lambda: self.session.attached or self.session.error is not None, timeout)
        with self._lock:
            error = self.session.error
            self.alive = self.session.attached and error is None
        if self.alive:
            return
        if error is None:
            error = unanswered(device, timeout)
            self.end(error)
        raise error.again()
