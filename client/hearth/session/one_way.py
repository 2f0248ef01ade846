"""Replies to one-way commands that use client memory: the daemon answers them so that the memory can be released."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hearth.errors import HearthError, TransferError

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth_proto.v1 import commands_pb2


End = Callable[["commands_pb2.Result | None", "HearthError | None"], None]
"""Callback that receives the command's result or its error; the other argument is None."""


class CompletionHandler:
    """Receives the completion of a command, once, in the receiving thread.

    That thread holds the attachment's lock: the callback must not block. The handler refers to the memory that the
    command uses; the session refers to the handler until the answer has arrived.
    """

    __slots__ = ("_end", "abandoned", "keep", "reports")

    expected = None

    def __init__(self, end: End, keep: object = None, *, reports: bool = False) -> None:
        self.reports = reports
        self.abandoned = False
        self.keep = keep
        self._end = end

    def set_result(self, result: commands_pb2.Result) -> None:
        """Passes on the result of the completed command.

        Args:
            result: Result that the daemon sent for the command.
        """
        self._end(result, None)

    def set_error(self, error: HearthError) -> None:
        """Passes on the error of a command that failed or will never be answered.

        Args:
            error: Error of the command, or of the attachment that ended before the answer arrived.
        """
        self._end(None, error)


def reported_elsewhere(attachment: Attachment, error: HearthError) -> bool:
    """True if the error of a one-way command is reported elsewhere.

    A loss of the attachment is reported once for all work in flight, and the cause of a skipped command is kept by its
    stream.

    Args:
        attachment: Attachment over which the command was sent.
        error: Error of the command.
    """
    return attachment.session.error is error or bool(error.failures)


def segment_gone(error: HearthError) -> HearthError:
    """Returns the error of a command whose segment no longer existed when the command arrived.

    The connection over which the memory was shared had ended.
    """
    return TransferError(
        f"a copy was lost with the connection over which its memory was shared ({error.message})",
        reason="TRANSFER_ABORTED",
        fix="copy the array again.",
    )
