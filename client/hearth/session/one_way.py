"""Replies to one-way commands that use client memory: the daemon answers them so that the memory can be released."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hearth.errors import HearthError, TransferError

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth_proto.v1 import commands_pb2


End = Callable[["commands_pb2.Result | None", "HearthError | None"], None]
"""Takes the result, or the error."""


class CompletionHandler:
    """Takes the completion of a command, once, in the receiving thread (with the attachment's lock: it must not wait).

    It holds the memory that the command uses: until the answer has come the session holds the handler.
    """

    __slots__ = ("_end", "abandoned", "keep", "reports")

    expected = None

    def __init__(self, end: End, keep: object = None, *, reports: bool = False) -> None:
        self.reports = reports
        self.abandoned = False
        self.keep = keep
        self._end = end

    def set_result(self, result: commands_pb2.Result) -> None:
        """The command was done."""
        self._end(result, None)

    def set_error(self, error: HearthError) -> None:
        """The command failed, or will never be answered."""
        self._end(None, error)


def heard_otherwise(attachment: Attachment, error: HearthError) -> bool:
    """True if an error of a one-way command is reported without it: a loss is reported once for all work that was under
    way, and the cause of a skipped command is kept by its stream.
    """
    return attachment.session.error is error or bool(error.failures)


def lost_on_the_way(error: HearthError) -> HearthError:
    """The error of a command whose segment was gone when it arrived: the connection that it was shared on had ended."""
    return TransferError(
        f"a copy was lost with the connection on which its memory was shared ({error.message})",
        reason="TRANSFER_ABORTED",
        fix="copy the array again.",
    )
