"""Operation: a command under way, with its origin, the objects that it uses, its execution and its answer."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol

from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2, device_pb2, status_pb2
from hearthd.device.backend.server import DeviceFault
from hearthd.device.session import failed_handles
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.cancellations import Cancellation, SplitCopy
from hearthd.device.session.session import BatchEntry, DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_errors import StreamFailure, poisoned, skipped


class ReplySink(Protocol):
    """Receives the results, acknowledgements and failures of commands."""

    def result(self, session: DeviceSession, call: int, result: commands_pb2.Result) -> None:
        """Sends the result: as the answer to the single call `call`, or as a stream response if `call` is 0."""
        ...

    def done(self, session: DeviceSession, call: int, request: int) -> None:
        """Sends the result of a command that returns no value, only that it is done."""
        ...

    def acknowledge(self, session: DeviceSession, entry: BatchEntry) -> None:
        """Called when no command of the batch is left to run; acknowledges the oldest batches of which that is true."""
        ...

    def failed(self, origin: Origin, refusal: Refusal) -> None:
        """Counts a command that failed, was skipped, or is answered with an earlier failure."""
        ...

    def waited(self, nanoseconds: int) -> None:
        """Counts how long a command had to wait before it ran."""
        ...


class Announcement(Protocol):
    """Request to the peers of a collective operation, which may be sent before the operation runs."""

    @property
    def presented(self) -> bool:
        """True once the request has been sent."""
        ...

    @property
    def scheduled(self) -> bool:
        """True if the request has been sent, or will be sent without any further call."""
        ...

    def announce(self, predecessors: Iterable[object]) -> None:
        """Requests the operation's peers, or queues the request.

        `predecessors` lists the announcements of all operations that this operation waits for, each of which is
        `scheduled`; the request is ordered after them.
        """
        ...


class Origin:
    """Identity of a command in its session, used to answer the command or to record its failure."""

    __slots__ = (
        "batch",
        "call",
        "capture",
        "index",
        "name",
        "over",
        "record",
        "replies",
        "request",
        "seq",
        "session",
        "started",
        "stream",
    )

    def __init__(
        self,
        replies: ReplySink,
        session: DeviceSession,
        stream: LogicalStream,
        name: str,
        *,
        batch: BatchEntry | None = None,
        index: int = 0,
        request: int = 0,
        call: int = 0,
    ) -> None:
        self.replies = replies
        self.session = session
        self.stream = stream
        self.name = name
        self.over = False
        """True once the command has failed or was skipped, and that failure has been answered or recorded."""
        self.started = False
        """True once a part of a command that must wait was submitted to the device."""
        self.batch = batch
        self.seq = batch.seq if batch is not None else 0
        self.index = index
        self.request = request
        self.call = call
        self.capture = stream.capture
        """The capture that records the command; None if the command is executed. The failure of a recorded command
        fails the capture and marks no buffer as invalid."""
        self.record = session.trace.record(self) if session.trace is not None else None
        """The command's record in the session's trace; None while no trace is active."""

    @property
    def kind(self) -> str:
        """The kind of the command: `name` without the name of its kernel."""
        return self.name.partition(" ")[0]

    @property
    def position(self) -> tuple[int, int] | None:
        """(batch, index) of the command; an earlier command has a smaller value. None for a single call."""
        return (self.seq, self.index) if self.batch is not None else None

    @property
    def answered(self) -> bool:
        """True if the client waits for the command's own result."""
        return bool(self.request or self.call)

    def reply(self, result: commands_pb2.Result | None = None) -> None:
        """Sends `result`, or without `result` the answer that the command is done.

        Has no effect if no answer was requested.
        """
        if not (self.request or self.call):
            return
        if result is None:
            self.replies.done(self.session, self.call, self.request)
            return
        result.request = self.request
        self.replies.result(self.session, self.call, result)

    def reply_error(self, status: status_pb2.Status) -> None:
        """Answers the command with the error and counts the failure. An answer must have been requested."""
        self._count(from_status(status))
        self.replies.result(self.session, self.call, commands_pb2.Result(request=self.request, error=status))

    def fail(self, refusal: Refusal, spoiled: Sequence[Buffer] = ()) -> None:
        """Answers the command with the refusal.

        If no answer was requested, records the refusal on the stream as a late error and marks the buffers in
        `spoiled`, which the command would have written, as invalid.
        """
        failure = StreamFailure(self.name, self.stream.handle, self.seq, self.index, refusal)
        self.over = True
        if self.capture is not None:
            self.capture.failed(failure)
        if self.answered:
            self.reply_error(refusal.to_status())
        elif self.capture is None:
            self.record_failure(failure, spoiled)
        else:
            self._count(refusal)

    def skip(self, input_failure: StreamFailure, spoiled: Sequence[Buffer]) -> None:
        """Fails a command that was not run because its inputs were never produced."""
        failure = skipped(self.name, self.stream.handle, self.seq, self.index, input_failure)
        self.over = True
        if self.answered:
            self.reply_error(failure.refusal.to_status([input_failure.cause.to_message()]))
        else:
            self.record_failure(failure, spoiled)

    def _count(self, refusal: Refusal) -> None:
        self.replies.failed(self, refusal)
        if self.record is not None:
            self.record.failed(refusal.reason)

    def record_failure(self, failure: StreamFailure, spoiled: Sequence[Buffer]) -> None:
        """Counts the failure, records it as a late error of the stream and marks the buffers in `spoiled` as invalid.

        A buffer that is read-only, or that an earlier unreported failure made invalid, is not changed.
        """
        self._count(failure.refusal)
        self.stream.failed(failure)
        for profile in self.stream.profiles:
            profile.stretch.add(failure)
        if spoiled:
            self.session.replay_cache.forget()
        for buffer in spoiled:
            # A read-only buffer cannot be written, so its contents stay valid.
            if poisoned(buffer.failure) is None and buffer.read_only is None:
                buffer.failure = failure


class Operation:
    """A command that may have to wait.

    `run` returns False while the command cannot continue, and is called again later.

    While the operation waits, it is ordered against other operations by the objects in `writes` and `reads` (buffers,
    its stream, modules, events). `needs` lists the buffers whose contents it depends on, `spoils` the buffers that
    become invalid if it fails.
    """

    __slots__ = (
        "_run",
        "after",
        "announcement",
        "barrier",
        "deferred_at_ns",
        "finished",
        "needs",
        "on_failure",
        "origin",
        "reads",
        "split",
        "spoils",
        "writes",
    )

    def __init__(
        self,
        origin: Origin,
        run: Callable[[], bool],
        *,
        writes: Sequence[Hashable] = (),
        reads: Sequence[Hashable] = (),
        needs: Sequence[Buffer] = (),
        spoils: Sequence[Buffer] = (),
        barrier: bool = False,
    ) -> None:
        self.origin = origin
        self._run = run
        self.writes = writes
        self.reads = reads
        if origin.capture is not None:  # a recorded command touches no buffer now
            needs = spoils = ()
            # The nodes are in the order of arrival, also if several streams are captured.
            self.writes = (*writes, origin.capture.entry)
        self.needs = needs
        self.spoils = spoils
        self.barrier = barrier
        self.finished = False
        self.deferred_at_ns = 0
        """Time at which the operation began to wait, in nanoseconds (`time.perf_counter_ns`); 0 if it ran on
        arrival."""
        self.announcement: Announcement | None = None
        """Early request to the peers of a collective operation; None for other operations."""
        self.after: Callable[[], None] | None = None
        """Called after the operation has run without an error."""
        self.on_failure: Callable[[Refusal], None] | None = None
        """Called if the operation will not run because it was refused, skipped or abandoned. Releases resources that
        the operation holds elsewhere."""
        self.split: SplitCopy | None = None
        """The copy of which the command is a piece; None: the command is complete by itself."""

    def step(self) -> bool:
        """Tries to run. Returns True once the operation is finished: done, failed, skipped or abandoned.

        Raises DeviceFault if the device is lost.
        """
        if self.finished:
            return True  # abandoned: the operation stayed in the queue so that later commands stay after it
        record = self.origin.record
        if record is None:
            return self._step()
        record.enter()
        done = self._step()
        record.leave(done)
        return done

    def _step(self) -> bool:
        try:
            input_failure = self._find_input_failure()
            if input_failure is not None and not self.announced:
                self._release(input_failure.cause.refusal)
                self.origin.skip(input_failure, self.spoils)
                return self._finish()
            track = self.origin.stream.track
            submitted = track.returned - track.budget  # `track.submitted`, except for a constant
            if not self._run():
                if track.returned - track.budget != submitted:
                    self.origin.started = True
                    if self.split is not None:
                        self.split.begun = True
                return False
            if input_failure is not None:
                # The operation was announced, so it had to run because its peers depend on it. Its own result is
                # invalid, because an input was never produced.
                self.origin.skip(input_failure, self.spoils)
            elif self.after is not None:
                self.after()
        except Refusal as refusal:
            self._fail(refusal)
        except DeviceFault:
            raise
        except Exception as error:
            self._fail(internal_error(self.origin.name, error))
        return self._finish()

    def _find_input_failure(self) -> StreamFailure | None:
        """Returns the failure that made an input of the operation invalid; None if all inputs are valid."""
        for buffer in self.needs:
            if buffer.failure is not None:
                failure = poisoned(buffer.failure)
                if failure is not None:
                    return failure
                buffer.failure = None
        for buffer in self.spoils:
            if buffer.lost is not None and poisoned(buffer.failure) is not None:
                return buffer.failure  # the buffer's memory is lost, so there is nothing to write to
        return None

    def cancellable(self, call: int) -> bool:
        """True if the operation answers the single call `call`, and may still be cancelled.

        An operation that has started or is announced must run, because the device works on it or its peers depend on
        it; so must one that destroys a handle, because the handle was removed when the call arrived.
        """
        origin = self.origin
        return origin.call == call and not (origin.started or self.announced or failed_handles.destroys(origin.name))

    def droppable(self, cancellation: Cancellation) -> bool:
        """True if the cancellation covers the operation, and no part of it has been executed.

        A command that a graph records is not dropped, because it is not executed. A piece of a copy of which another
        piece has begun is not dropped either.
        """
        origin = self.origin
        return (
            not (self.finished or origin.started)
            and origin.capture is None
            and (self.split is None or not self.split.begun)
            and cancellation.covers(origin.kind, origin.stream.handle, origin.request)
        )

    @property
    def announced(self) -> bool:
        """True if the operation waits only for other collective operations and for the answer to its request.

        Its peers depend on it from then on, so it must run.
        """
        announcement = self.announcement
        return announcement is not None and announcement.presented

    @property
    def scheduled(self) -> bool:
        """True if the operation is announced, or will be announced without any further call."""
        announcement = self.announcement
        return announcement is not None and announcement.scheduled

    def announce(self, predecessors: Sequence[Operation]) -> None:
        """Sends the early request of a collective operation to its peers; no effect for other operations.

        `predecessors` lists the operations that this operation waits for.
        """
        if self.announcement is not None:
            self.announcement.announce([operation.announcement for operation in predecessors])

    def drop(self, cancellation: Cancellation | None) -> None:
        """Fails the operation because it was cancelled, and counts it; a copy in pieces counts once.

        `cancellation` is None for a piece of a copy that was dropped before.
        """
        split = self.split
        if cancellation is not None and (split is None or not split.dropped):
            cancellation.dropped += 1
        if split is not None:
            split.dropped = True
        self.abandon(cancelled(self.origin.name))

    def abandon(self, refusal: Refusal) -> None:
        """Fails a command that will not run any more; no effect on a finished operation."""
        if not self.finished:
            self._fail(refusal)
            self._finish()

    def _fail(self, refusal: Refusal) -> None:
        self._release(refusal)
        self.origin.fail(refusal, self.spoils)

    def _release(self, refusal: Refusal) -> None:
        if self.on_failure is not None:
            self.on_failure(refusal)

    def _finish(self) -> bool:
        self.finished = True
        if self.deferred_at_ns:
            self.origin.replies.waited(time.perf_counter_ns() - self.deferred_at_ns)
        batch = self.origin.batch
        if batch is not None:
            batch.left -= 1
            if not batch.left:
                self.origin.replies.acknowledge(self.origin.session, batch)
        return True


_DONE = device_pb2.ExecuteResponse(result=commands_pb2.Result(done=commands_pb2.Done()))
"""One message that is reused, because most commands are answered with it."""


def done_response(request: int) -> bytes:
    """Returns the encoded ExecuteResponse with the answer that the command `request` is done."""
    _DONE.result.request = request
    return _DONE.SerializeToString()


def internal_error(name: str, error: Exception) -> Refusal:
    """Returns the refusal for an unexpected exception inside the daemon, and prints the traceback to the log.

    Only the command fails; the device process continues.
    """
    traceback.print_exception(error, file=sys.stderr)
    return Refusal(
        Reason.INTERNAL,
        f"{name} met an error inside the daemon: {type(error).__name__}: {error}",
        fix="report it with the daemon's log",
    )


def destruction(
    origin: Origin,
    release: Callable[[], None],
    writes: Sequence[Hashable],
    answer: commands_pb2.Result | None = None,
) -> Operation:
    """Returns the operation that releases an object whose handle has been destroyed, and then answers.

    It runs after earlier commands on the objects in `writes`. If it will not run, because the session ends, the object
    is released nevertheless.
    """

    def run() -> bool:
        release()
        origin.reply(answer)
        return True

    operation = Operation(origin, run, writes=writes)
    operation.on_failure = lambda _refusal: release()
    return operation


def submit(operation: Operation) -> None:
    """Runs the operation now, or defers it until the objects that it waits for are available.

    An operation that a cancellation covers fails instead.
    """
    origin = operation.origin
    session = origin.session
    if origin.batch is not None:
        origin.batch.left += 1
    if (session.dropping or operation.split is not None) and _drop(operation):
        return
    if not session.deferred.submit(operation):
        operation.deferred_at_ns = time.perf_counter_ns()


def _drop(operation: Operation) -> bool:
    """Fails the operation if a cancellation of its session covers it, or covered another piece of the same copy.

    Returns True in that case.
    """
    origin, split = operation.origin, operation.split
    if origin.capture is not None or (split is not None and split.begun):
        return False
    cancellation = origin.session.cancellations.find(origin.kind, origin.stream.handle, origin.request)
    if cancellation is None and (split is None or not split.dropped):
        return False
    operation.drop(cancellation)
    return True


def cancelled(name: str) -> Refusal:
    """Returns the refusal of a command that its client cancelled before it began."""
    return Refusal(
        Reason.CANCELLED, f"{name} was cancelled before it began", fix="submit it again if it is still needed"
    )
