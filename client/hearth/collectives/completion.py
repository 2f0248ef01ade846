"""Completion of a group's last operations, for which the end of the group waits.

Operations are sent one way, and a daemon that leaves a group aborts those that are under way. The ranks execute the
operations of one group in order, so the last operation of each rank stands for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hearth.errors import HearthError
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.reply import Reply


class LastOperation(NamedTuple):
    """The last operation of one rank."""

    connection: Connection
    attachment: Attachment
    """Attachment over which the operation was submitted."""
    stream: BaseStream | None
    """Stream of the operation, which is referred to here so that it is not destroyed; None: the default stream."""
    handle: int
    """Handle of the stream."""


def wait_until_done(operations: Iterable[LastOperation], seconds: float) -> None:
    """Blocks until the operations are done or have failed, and reports no error.

    Args:
        operations: The operations.
        seconds: Longest wait in seconds.
    """
    deadline = time.monotonic() + seconds
    replies: list[Reply] = []
    for operation in operations:
        with suppress(HearthError):  # the attachment is lost, and the operation with it
            replies.append(_request_completion(operation))
    for reply in replies:
        reply.wait_answered(max(0.0, deadline - time.monotonic()))


def _request_completion(operation: LastOperation) -> Reply:
    """Requests an answer as soon as the stream's collectives are done.

    Each command is a request, whose error is answered; the error of another command would be reported to the program.
    """
    stream, attachment = operation.handle, operation.attachment
    event = operation.connection.mint()
    attachment.request(commands_pb2.Command(stream=stream, sync_collective=commands_pb2.SyncCollective()))
    attachment.request(commands_pb2.Command(stream=stream, record_event=commands_pb2.RecordEvent(event=event)))
    reply = attachment.request(commands_pb2.Command(query_event=commands_pb2.QueryEvent(event=event, wait=True)))
    attachment.request(commands_pb2.Command(destroy_event=commands_pb2.DestroyEvent(event=event)))
    return reply
