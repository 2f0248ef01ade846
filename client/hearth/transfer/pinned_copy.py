"""A prepared copy between an array and memory that is shared with its device, for loops that repeat the same copy.

Keeps everything that depends only on the two, the stream and the shared memory: the command without its number, and the
expected answer. A repetition only checks that nothing has changed.
"""

from __future__ import annotations

import weakref
from functools import partial
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any

from hearth.codec.decode import DONE
from hearth.errors import HearthError
from hearth.session.late_errors import ErrorOrigin
from hearth.session.reply import reported_elsewhere, segment_gone
from hearth.transfer.plan import short
from hearth.transport.spin_wait import DOWN, UP
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from typing import Protocol

    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.memory import Memory
    from hearth.transfer.plan import BufferRegion
    from hearth.transfer.shared_memory import Shared
    from hearth.transport.memory_segments import Segment, SegmentPosition

    class StreamLike(Protocol):
        """The stream of a copy: `hearth.base_stream.BaseStream`."""

        _connection: Connection

        @property
        def _recorder(self) -> object | None: ...

        def _handle_on(self, attachment: Attachment) -> int: ...


class PinnedCopy:
    """A write (`UP`) or a read (`DOWN`) of `size` bytes at `place`, which commands name by `number`.

    It holds no reference to the memory; its user and each copy in flight do.
    """

    __slots__ = (
        "_attachment",
        "_buffer",
        "_command",
        "_connection",
        "_direction",
        "_expected",
        "_segment",
        "_shared",
        "size",
        "stream",
    )  # fmt: skip

    def __init__(
        self,
        direction: int,
        connection: Connection,
        shared: Shared,
        region: BufferRegion,
        position: SegmentPosition,
        number: int,
        size: int,
    ) -> None:
        self.size = size
        self._direction = direction
        self._connection = connection
        self._shared = shared
        self._attachment = shared.attachment
        self.stream, self._buffer = region.stream, region.buffer
        self._segment = weakref.ref(position.segment)
        self._expected: tuple[bytes, commands_pb2.Result] | None = None
        if direction == DOWN:
            result = commands_pb2.Result(read=commands_pb2.ReadResult(size=size))
            self._expected = result.SerializeToString(), result
        self._command = region.shared(direction, size, number, position.offset).SerializeToString()
        shared.enable_signals()

    def repeatable(self, memory: Memory, stream: StreamLike | None, blocking: bool) -> bool:
        """True if the copy can be repeated unchanged. The caller checks the host memory.

        Args:
            memory: Buffer of the device array.
            stream: Stream of the copy; None: the default one.
            blocking: True if the copy is to be waited for.

        Returns:
            False as well if a late error must be raised first.
        """
        connection, attachment, segments = self._connection, self._attachment, self._shared.connection
        return (
            connection._attachment is attachment
            and attachment.alive
            and memory.owner is attachment.space
            and memory.handle == self._buffer
            and connection.refusal is None
            and not connection._deferred
            and (not segments.closed if blocking else segments.recently_alive)
            and (stream is None or (stream._recorder is None and stream._connection is connection))
            and (stream is None or stream._handle_on(attachment) == self.stream)
        )

    def begin(self, keep: object) -> None:
        """Queues the copy in the order of the stream. An error becomes a late error of the connection.

        Args:
            keep: Refers to the host memory; held until the copy has ended.
        """
        requested_at, attachment = monotonic(), self._attachment
        attachment.spin_wait.begin(self._direction, self.size, requested_at)
        attachment.submit_serialized(self._command, _CopyInFlight(self, keep, requested_at), one_way=True)

    def run(self, keep: object, timeout: float | None = None) -> bool:
        """Queues the copy and waits for it.

        Args:
            keep: Refers to the host memory; held until the copy has ended.
            timeout: Longest wait in seconds; None: without a limit.

        Returns:
            False if the shared memory was lost, so that nothing was copied.

        Raises:
            HearthError: The copy failed.
            TimeoutError: The copy has not ended in time.
        """
        requested_at, attachment, direction, size = monotonic(), self._attachment, self._direction, self.size
        # The session refers to the memory until the answer has arrived, even if the wait has ended before.
        mark_spoiled = partial(self._mark_spoiled, self._segment(), keep)
        reply = attachment.request_serialized(self._command, reports=direction == DOWN, on_error=mark_spoiled)
        try:
            reply.expected = self._expected
            reply.signalled_result = self._expected[1] if self._expected is not None else DONE
            attachment.spin_wait.begin(direction, size, requested_at)  # after the command was queued
        except BaseException:  # KeyboardInterrupt: no thread takes the answer
            reply.abandon()
            raise
        try:
            result = reply.wait(timeout)
        except HearthError as error:
            if self._shared.lost(error):
                return False
            raise
        attachment.spin_wait.copy_ended(direction, size, requested_at, monotonic())
        if direction == DOWN and result.read.size != size:
            raise short(result.read.size, size)
        return True

    def _mark_spoiled(self, segment: Segment | None, _: object) -> None:
        """Marks the segment of a failed command as spoiled if the attachment has ended.

        The device process may execute the command nevertheless, and use the memory.
        """
        if segment is not None and self._attachment.session.error is not None:
            segment.spoiled = True

    def ended(
        self, result: commands_pb2.Result | None, error: HearthError | None, requested_at: float, thread: int
    ) -> None:
        """Completes a copy that `begin` queued. Called in the receiving thread, with the attachment's lock held.

        Args:
            result: Result of the command; None: it failed.
            error: Error of the command; None: it succeeded.
            requested_at: Monotonic time in seconds at which the copy was queued.
            thread: Identifier of the thread that queued the copy.
        """
        attachment, shared = self._attachment, self._shared
        if self._direction == DOWN and result is not None and result.read.size != self.size:
            error = short(result.read.size, self.size)
        if error is None:
            attachment.spin_wait.copy_ended(self._direction, self.size, requested_at, monotonic())
            return
        self._mark_spoiled(self._segment(), None)
        # A skipped read reports its cause, like one with a waiting thread; the cause of a skipped write is kept by its
        # stream.
        is_reported = (
            reported_elsewhere(attachment.session.error, error)
            if self._direction == UP
            else attachment.session.error is error
        )
        if not is_reported:
            origin = ErrorOrigin("write" if self._direction == UP else "read", self.stream, self._buffer, thread)
            self._connection.defer(segment_gone(error) if shared.lost(error) else error, origin)


class _CopyInFlight:
    """A copy in flight: a `CompletionHandler` that refers to the memory until then."""

    __slots__ = ("_copy", "_keep", "_requested_at", "_thread_id")

    reports = abandoned = False

    def __init__(self, copy: PinnedCopy, keep: Any, requested_at: float) -> None:
        self._copy = copy
        self._keep = keep
        self._requested_at = requested_at
        self._thread_id = get_ident()

    @property
    def expected(self) -> tuple[bytes, commands_pb2.Result] | None:
        """The most likely answer; None: an empty one."""
        return self._copy._expected

    def set_result(self, result: commands_pb2.Result) -> None:
        """Completes a copy that succeeded.

        Args:
            result: Result of the command.
        """
        self._copy.ended(result, None, self._requested_at, self._thread_id)

    def set_error(self, error: HearthError) -> None:
        """Completes a copy that failed or whose outcome is unknown.

        Args:
            error: Error of the command, or of the attachment.
        """
        self._copy.ended(None, error, self._requested_at, self._thread_id)
