"""Cancelling of commands that the device has not begun.

A Cancel command is queued after the commands that it covers. A separate call makes it take effect immediately, before
everything that is queued between the client and the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.session.reply import PendingResult
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment


class Cancelling:
    """A Cancel command that is queued."""

    def __init__(self, attachment: Attachment, scope: commands_pb2.Cancel, stream: int = 0) -> None:
        """Queues the command. Does not block.

        Args:
            attachment: Attachment whose commands are cancelled.
            scope: Commands that are cancelled.
            stream: Handle of the stream that the command names; 0: the default stream.
        """
        self._attachment = attachment
        self._command = commands_pb2.Command(stream=stream, cancel=scope)
        self.dropped: PendingResult[int] = PendingResult(
            attachment.ask_in_order(self._command), lambda result: result.cancel.dropped
        )
        """The number of commands and launches that were dropped."""

    def put_into_effect(self) -> None:
        """Has the daemon drop the commands. Blocks for one call. The caller must still wait for `dropped`.

        Raises:
            UnsupportedError: The daemon is of an earlier version.
            HearthError: The call failed; the commands that have not begun when the Cancel command arrives are dropped.
        """
        execute = self._attachment.execute
        try:
            if execute is not None:
                execute.put_into_effect(self._command)
        except BaseException:
            self.dropped.reply.abandon()
            raise

    def wait(self) -> int:
        """Puts the command into effect, and blocks until the device has answered.

        Returns:
            Number of commands and launches that were dropped.

        Raises:
            UnsupportedError: The daemon is of an earlier version.
        """
        self.put_into_effect()
        return self.dropped.wait()


def all_work(attachment: Attachment | None) -> Cancelling | None:
    """Queues the cancelling of all commands of an attachment.

    Args:
        attachment: Attachment to the device; None: there is none.

    Returns:
        The queued command; None if there is nothing to cancel.
    """
    if attachment is None or not attachment.alive:
        return None
    return Cancelling(attachment, commands_pb2.Cancel(all_streams=True))
