"""The answer to one command: for threads that wait for it, or for the owner of memory that the command uses.

A thread waits through its attachment (`ReplyWaiters`), which may make it the receiver. Otherwise the thread sleeps, and
the receiving thread wakes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from hearth.errors import HearthError, TimeoutError, TransferError, rounded

if TYPE_CHECKING:
    from hearth_proto.v1 import commands_pb2

T = TypeVar("T")

_CANCEL_NOTE = "The work that was submitted continues. gpu.cancel() drops the part that the device has not begun."
Expected: TypeAlias = "tuple[bytes, commands_pb2.Result]"
"""A `Result` without its request number, both serialized and as the object to return: an answer equal to the serialized
form is not decoded."""


class ReplyLike(Protocol):
    """Completion target of a command: a thread's `Reply` or an event loop's future.

    Completing it a second time changes nothing.
    """

    @property
    def reports(self) -> bool:
        """True if the command reports the errors of earlier commands."""
        ...

    @property
    def abandoned(self) -> bool:
        """True if no thread or event loop takes the answer, so that it reports nothing."""
        ...

    @property
    def expected(self) -> Expected | None:
        """The most likely answer, which the receiving thread does not decode; None: there is none."""
        ...

    def set_result(self, result: commands_pb2.Result) -> None:
        """Completes the reply with `result`. Called by the receiving thread, with the attachment's lock held.

        Must not block.

        Args:
            result: Result that the daemon sent for the command.
        """
        ...

    def set_error(self, error: HearthError) -> None:
        """Completes the command with `error`. Called with the attachment's lock held; must not block.

        Args:
            error: Error of the command, or of the attachment that ended before the answer arrived.
        """
        ...


class ReplyWaiters(Protocol):
    """The threads and event loops that wait for replies: `hearth.session.waiters.Waiters`."""

    def wait_for(self, reply: Reply, timeout: float | None) -> bool:
        """Waits up to `timeout` seconds; returns True if the reply is answered.

        Args:
            reply: Reply for which the calling thread waits.
            timeout: Longest wait in seconds; None: without a limit.
        """

    def expect(self) -> None:
        """Called by a thread that polls for an answer instead of waiting for it."""

    def listen(self, change: int) -> None:
        """Adds `change`, which may be negative, to the number of answers that event loops expect.

        No thread waits for those.

        Args:
            change: Number of further answers; negative if event loops no longer expect them.
        """


class Reply:
    """Answer to one command. `set_result` or `set_error` completes it once, from any thread."""

    # Most attributes of a reply keep these defaults, so they are class attributes.
    answered = False
    """True once the answer has arrived."""
    error: HearthError | None = None
    abandoned = False
    expected: Expected | None = None
    """The most likely answer, which need not be decoded; None: there is none."""
    request = 0
    """Number of the request; 0: no number is needed."""
    signalled_result: commands_pb2.Result | None = None
    """The result that a completion signal implies (`memory_segments.Signals`); None: no signal completes the reply."""
    on_error: Callable[[], None] | None = None
    """Called when the command fails, so that a transfer waiting for the same command ends."""
    on_late_error: Callable[[HearthError], None] | None = None
    """Receives the error of an abandoned reply."""
    before_return: Callable[[], None] | None = None
    """Called by the waiting thread before its wait returns the answer."""
    raise_failures: Callable[[HearthError | None], None] | None = None
    """Called by the waiting thread with the error of a synchronization, or None, before its wait raises the error or
    returns the answer: raises late errors, together with that error."""
    on_answer: Callable[[], None] | None = None
    """Called by the receiving thread when the reply is answered, perhaps twice; it must not block. See `listen`."""
    _result: commands_pb2.Result | None = None
    _wakeups: SimpleQueue[None] | None = None
    """Queue on which waiting threads sleep; most replies need none."""
    _answer_handled = False

    def __init__(self, waiters: ReplyWaiters, *, reports: bool = False) -> None:
        self.reports = reports
        """True if the command reports the errors of earlier commands (sync, read, flush, end of a profile)."""
        self._waiters = waiters
        self._mutex = threading.Lock()

    @property
    def done(self) -> bool:
        """True once the reply is answered. For a thread that polls instead of waiting."""
        if not self.answered:
            self._waiters.expect()
        return self.answered

    def set_result(self, result: commands_pb2.Result) -> None:
        """Completes the reply with the result of the command.

        Args:
            result: Result that the daemon sent for the command.
        """
        self._result = result
        self.answered = True
        if self._wakeups is not None:
            self._wakeups.put(None)
        if self.on_answer is not None:
            self.on_answer()

    def signalled(self) -> None:
        """Completes the reply with `signalled_result`, because the device signalled success before the answer arrived.

        No thread waits for that answer.
        """
        result = self.signalled_result
        if not self.answered and result is not None:
            self.set_result(result)
            self.abandon()

    def set_error(self, error: HearthError) -> None:
        """Completes the reply with the error of a command that failed or will never be answered.

        Args:
            error: Error that `wait` raises. The error of an abandoned reply goes to `on_late_error`.
        """
        if self._answer_handled:
            return
        with self._mutex:
            self.error = error
            self.answered = True
            abandoned = self.abandoned
        if self._wakeups is not None:
            self._wakeups.put(None)
        if abandoned and self.on_late_error is not None:
            self.on_late_error(error)
        if self.on_error is not None:
            self.on_error()
        if self.on_answer is not None:
            self.on_answer()
        self._answer_handled = True

    def forked(self, error: HearthError) -> None:
        """Completes an unanswered reply in the child process of a fork, without callbacks. Takes no lock.

        Args:
            error: Error that `wait` raises.
        """
        if not self.answered:
            self.error = error
            self.answered = True

    def wait(self, timeout: float | None = None) -> commands_pb2.Result:
        """Returns the result of the command, once it has arrived.

        Args:
            timeout: Longest wait in seconds; None: without a limit.

        Raises:
            HearthError: The command failed, or will never be answered.
            TimeoutError: The answer has not arrived in time. The reply is abandoned; the work continues.
        """
        if not self.answered:
            try:
                answered = self._waiters.wait_for(self, timeout)
            except BaseException as error:  # KeyboardInterrupt: no thread takes the answer
                self.abandon()
                offer_cancel(error)
                raise
            if not answered:
                raise self.given_up(timeout)
        try:
            if self.before_return is not None:
                self.before_return()
            if self.raise_failures is not None:
                self.raise_failures(self.error)
            if self.error is not None:
                raise self.error.again()
        except HearthError:
            raise
        except BaseException:  # of the callback: a warning that is an error, or KeyboardInterrupt
            self.abandon()
            raise
        assert self._result is not None
        return self._result

    def given_up(self, timeout: float | None) -> TimeoutError:
        """Abandons the reply after `timeout` seconds, and returns the error to raise.

        Args:
            timeout: Length of the wait in seconds, for the error's message; not None.
        """
        self.abandon()
        return TimeoutError(
            f"no answer within {rounded(timeout or 0.0)} s; the work continues.",
            fix="wait again, or with a longer timeout.",
        )

    def listen(self, notify: Callable[[], None]) -> None:
        """Makes `on_answer` call `notify`, for an event loop, which cannot block here.

        Until `unlisten`, another thread receives.

        Args:
            notify: Called by the receiving thread when the reply is answered, or immediately if it is; must not block.
        """
        self._waiters.listen(1)
        self.on_answer = notify
        if self.answered:
            notify()

    def unlisten(self) -> None:
        """Ends the effect of one `listen` call."""
        self.on_answer = None
        self._waiters.listen(-1)

    def wait_answered(self, seconds: float) -> bool:
        """Waits up to `seconds`; returns True if the answer has arrived.

        The caller can still wait for the reply afterwards.

        Args:
            seconds: Longest wait in seconds.
        """
        return self.answered or self._waiters.wait_for(self, seconds)

    def wait_quietly(self, timeout: float | None) -> None:
        """Waits like `wait`, but leaves an error to `on_late_error`.

        Args:
            timeout: Longest wait in seconds; None: without a limit.
        """
        if not self.answered:
            self._waiters.wait_for(self, timeout)
        self.abandon()

    def sleep(self, seconds: float | None) -> None:
        """Blocks up to `seconds` for the answer or a `wake`; may return earlier.

        Args:
            seconds: Longest wait in seconds; None: without a limit.
        """
        wakeups = self._wakeup_queue()
        if self.answered:  # answered before `_wakeups` was visible to the receiving thread
            return
        try:
            wakeups.get(timeout=None if seconds is None else max(0.0, seconds))
        except Empty:
            return
        if self.answered:
            wakeups.put(None)  # another thread may wait for the same reply

    def wake(self) -> None:
        """Wakes the thread that sleeps on this reply; if none does, the next thread to sleep returns immediately."""
        self._wakeup_queue().put(None)

    def _wakeup_queue(self) -> SimpleQueue[None]:
        wakeups = self._wakeups
        if wakeups is None:
            with self._mutex:
                wakeups = self._wakeups = self._wakeups or SimpleQueue()
        return wakeups

    def abandon(self) -> None:
        """Marks the reply as one for which no thread waits. Its error, present or future, goes to `on_late_error`.

        A second call does nothing.
        """
        with self._mutex:
            error = None if self.abandoned else self.error
            self.abandoned = True
        if error is not None and self.on_late_error is not None:
            self.on_late_error(error)


class PendingResult(Generic[T]):
    """A request that was sent, together with the function that reads its answer.

    For a thread, which waits, or an event loop.
    """

    __slots__ = ("_read", "reply")

    def __init__(self, reply: Reply, read: Callable[[commands_pb2.Result], T]) -> None:
        self.reply = reply
        self._read = read

    def wait(self, timeout: float | None = None) -> T:
        """Returns the converted result, once the answer has arrived. Raises like `Reply.wait`.

        Args:
            timeout: Longest wait in seconds; None: without a limit.
        """
        return self._read(self.reply.wait(timeout))


class DoneCallback:
    """A callback for the answer to one request. It is not called if the request fails."""

    def __init__(
        self,
        reply: Reply,
        deliver: Callable[[Callable[[], None]], object],
        call: Callable[[], object],
        subject: object,
    ) -> None:
        """Registers the callback.

        Args:
            reply: Reply to the request, for which no other thread waits.
            deliver: Passes a function on to the thread or event loop that calls it; must not block. Called once, by
                the receiving thread, or immediately if the answer has arrived.
            call: The callback.
            subject: The event that the request names, which is kept until the answer has arrived.
        """
        self._reply = reply
        self._deliver: Callable[[Callable[[], None]], object] | None = deliver
        self._call = call
        self._subject = subject
        self._lock = threading.Lock()
        reply.listen(self._answered)

    def _answered(self) -> None:
        with self._lock:
            deliver, self._deliver = self._deliver, None
        if deliver is not None:
            deliver(self._run)

    def _run(self) -> None:
        self._reply.unlisten()
        if self._reply.error is None:
            self._call()


def offer_cancel(error: BaseException) -> None:
    """Adds a note to a Ctrl-C that interrupted a wait: the work continues, and can be cancelled.

    Args:
        error: Exception that ended the wait; any other than `KeyboardInterrupt` gets no note.
    """
    if isinstance(error, KeyboardInterrupt) and _CANCEL_NOTE not in getattr(error, "__notes__", ()):
        error.add_note(_CANCEL_NOTE)


def wait_for_all(replies: Sequence[Reply], timeout: float | None = None) -> None:
    """Waits for all replies, at most `timeout` seconds in total.

    Raises the first error; later errors go to `on_late_error`.

    Args:
        replies: Replies, in the order in which they are waited for.
        timeout: Longest wait in seconds for all replies together; None: without a limit.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    first: HearthError | None = None
    failed: Reply | None = None
    try:
        for reply in replies:
            remaining = None if deadline is None else deadline - time.monotonic()
            if first is not None:
                reply.wait_quietly(remaining)
                continue
            try:
                reply.wait(remaining)
            except HearthError as error:
                first, failed = error, reply
    except BaseException:  # KeyboardInterrupt: a later wait reports all errors
        for reply in replies:
            if reply is not failed:
                reply.abandon()
            elif not reply.abandoned and reply.on_late_error is not None and first is not None:
                reply.on_late_error(first)  # it may include late errors, unlike `reply.error`
        raise
    if first is not None:
        raise first


OnCompletion = Callable[["commands_pb2.Result | None", "HearthError | None"], None]
"""Callback that receives the command's result or its error; the other argument is None."""


class CompletionHandler:
    """Receives the completion of a one-way command that uses client memory, once, in the receiving thread.

    That thread holds the attachment's lock: the callback must not block. The session refers to the handler, and so to
    what the callback refers to, until the answer has arrived.
    """

    __slots__ = ("_end", "abandoned", "reports")

    expected = None

    def __init__(self, end: OnCompletion, *, reports: bool = False) -> None:
        self.reports = reports
        self.abandoned = False
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


def reported_elsewhere(loss: HearthError | None, error: HearthError) -> bool:
    """True if the error of a one-way command is reported elsewhere.

    A loss of the attachment is reported once for all work in flight, and the cause of a skipped command is kept by its
    stream.

    Args:
        loss: Error with which the attachment ended; None while it is open.
        error: Error of the command.
    """
    return loss is error or bool(error.failures)


def segment_gone(error: HearthError) -> HearthError:
    """Returns the error of a command whose segment no longer existed when the command arrived.

    The connection over which the memory was shared had ended.
    """
    return TransferError(
        f"a copy was lost with the connection over which its memory was shared ({error.message})",
        fix="copy the array again.",
    )
