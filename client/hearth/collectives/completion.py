"""Completion of a group's last operations, for which the end of the group waits.

Operations are sent one way, and a daemon that leaves a group aborts those that are in progress. A rank executes its
operations on one stream in order, so they are all done when the last operation on each stream is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from hearth.errors import HearthError
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.base_stream import BaseStream
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.reply import Reply

KEPT = 4
"""Number of streams of one rank, those used last, whose operations are kept without a check whether they are done."""
CAPTURE_POLL_S = 0.05
"""Seconds after which it is checked again whether the capture of a stream has ended."""


class LastOperation:
    """The last operation of one rank on one stream."""

    def __init__(self, connection: Connection, attachment: Attachment, stream: BaseStream | None, handle: int) -> None:
        """Refers to `stream`, so that it is not destroyed; None: the default stream, whose `handle` is 0.

        `attachment` is the one over which the operation was submitted.
        """
        self._connection = connection
        self.attachment = attachment
        self._stream = stream
        self.handle = handle
        self._replies: tuple[Reply, ...] = ()
        """The requests, of which the last is answered when the operation is done; empty: none were sent."""
        self._lost = False

    @property
    def done(self) -> bool:
        """True if the operation is known to be done, or to be lost with its attachment."""
        return self._lost or (bool(self._replies) and self._replies[-1].answered and not self._refused)

    @property
    def _refused(self) -> bool:
        """True if the stream recorded a graph when the requests arrived, so that they were refused."""
        errors = [reply.error for reply in self._replies]
        return any(error is not None and error.reason == "CAPTURE_INVALID" for error in errors)

    def request(self) -> None:
        """Requests an answer as soon as the stream's collectives are done, unless the stream is being captured.

        Does nothing if an answer is pending. Each command is a request, whose error is answered; the error of another
        command would be reported to the program.
        """
        if (self._replies and not self._refused) or (self._stream is not None and self._stream.is_capturing()):
            return
        handle, event, request = self.handle, self._connection.mint(), self.attachment.request
        record, query = commands_pb2.RecordEvent(event=event), commands_pb2.QueryEvent(event=event, wait=True)
        try:
            self._replies = (
                request(commands_pb2.Command(stream=handle, sync_collective=commands_pb2.SyncCollective())),
                request(commands_pb2.Command(stream=handle, record_event=record)),
                request(commands_pb2.Command(query_event=query)),
            )
            request(commands_pb2.Command(destroy_event=commands_pb2.DestroyEvent(event=event)))
        except HearthError:
            self._lost = True

    def wait(self, seconds: float) -> None:
        """Waits for the answer to `request`.

        Args:
            seconds: Longest wait in seconds.
        """
        if self._replies:
            self._replies[-1].wait_answered(seconds)


class LastOperations:
    """The last operations of the ranks of groups over daemons. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operations: dict[tuple[bytes, int, Attachment, int], LastOperation] = {}
        """By group, rank and stream, the one that was used last at the end."""

    def __len__(self) -> int:
        """Returns the number of streams whose operations may be in progress."""
        return len(self._operations)

    def record(self, group: bytes, rank: int, operation: LastOperation) -> None:
        """Records an operation that was submitted.

        A stream that is used for the first time has older ones dropped whose operations are done.

        Args:
            group: The group's id.
            rank: The rank in the caller's group.
            operation: The operation.
        """
        key = (group, rank, operation.attachment, operation.handle)
        with self._lock:
            is_known = self._operations.pop(key, None) is not None
            self._operations[key] = operation
            if is_known:
                return
            others = [(key, other) for key, other in self._operations.items() if key[:2] == (group, rank)][:-KEPT]
        for key, other in others:
            other.request()
            if other.done:
                with self._lock:
                    if self._operations.get(key) is other:
                        del self._operations[key]

    def take(self, group: bytes, without: Collection[int] = ()) -> list[LastOperation]:
        """Removes the operations of a group that ends, and returns them.

        Args:
            group: The group's id.
            without: Ranks whose operations are not returned.
        """
        with self._lock:
            taken = [(key, self._operations.pop(key)) for key in list(self._operations) if key[0] == group]
        return [operation for key, operation in taken if key[1] not in without]


def wait_until_done(operations: Iterable[LastOperation], seconds: float) -> None:
    """Blocks until the operations are done or have failed, and reports no error.

    Args:
        operations: The operations.
        seconds: Longest wait in seconds.
    """
    deadline = time.monotonic() + seconds
    pending = list(operations)
    while pending:
        for operation in pending:
            operation.request()
        for operation in pending:
            operation.wait(max(0.0, deadline - time.monotonic()))
        pending = [operation for operation in pending if not operation.done]
        if time.monotonic() >= deadline:
            return
        if pending:  # their streams are being captured
            time.sleep(CAPTURE_POLL_S)
