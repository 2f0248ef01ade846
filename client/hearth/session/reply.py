"""The answer to one command, waited for by threads.

A thread waits with its attachment (`ReplyWaiters`), which may have it receive; else it sleeps, and the receiving thread
wakes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from hearth.errors import HearthError, TimeoutError

if TYPE_CHECKING:
    from hearth_proto.v1 import commands_pb2

T = TypeVar("T")
Expected: TypeAlias = "tuple[bytes, commands_pb2.Result]"
"""A `Result` without its request, serialized and as what it is passed on as: it need not be read then."""


class ReplyLike(Protocol):
    """Completion target of a session: a thread's `Reply` or an event loop's future. Completing it again changes
    nothing."""

    @property
    def reports(self) -> bool: ...
    @property
    def abandoned(self) -> bool: ...
    @property
    def expected(self) -> Expected | None: ...
    def set_result(self, result: commands_pb2.Result) -> None: ...
    def set_error(self, error: HearthError) -> None: ...


class ReplyWaiters(Protocol):
    """The threads and event loops that wait for replies: `hearth.session.waiters.Waiters`."""

    def attend(self, reply: Reply, timeout: float | None) -> bool:
        """Waits `timeout` seconds at most; True if the reply is answered."""

    def expect(self) -> None:
        """Called by a thread that polls for an answer instead of waiting for it."""

    def listen(self, more: int) -> None:
        """Expects `more` answers (fewer, where negative) for event loops, which have no thread here."""


class Reply:
    """Completed once, by `set_result` or `set_error`, from any thread."""

    # Most of what a reply has never differs from this, so that the class has it.
    answered = False
    """True once the answer is there."""
    error: HearthError | None = None
    abandoned = False
    expected: Expected | None = None
    """The most likely answer."""
    request = 0
    """Number of the request; 0: not needed."""
    foretold: commands_pb2.Result | None = None
    """The result that a signal stands for (`hearth.transport.copy_signals`); None: no signal completes it."""
    on_error: Callable[[], None] | None = None
    """Called when it fails, so that a transfer waiting beside it ends."""
    on_late_error: Callable[[HearthError], None] | None = None
    """Takes the error of an abandoned reply."""
    before: Callable[[], None] | None = None
    """Called by the waiting thread before it returns with the answer."""
    on_answer: Callable[[], None] | None = None
    """Called when it is answered, perhaps twice, by the receiving thread: it must not wait. See `listen`."""
    _result: commands_pb2.Result | None = None
    _gate: SimpleQueue[None] | None = None
    """Queue that threads sleep on; most replies need none."""
    _told = False

    def __init__(self, *, reports: bool = False, waiting: ReplyWaiters | None = None) -> None:
        self.reports = reports
        """True if it reports the errors of commands that were sent before (sync, read, flush, end of a profile)."""
        self._waiting = waiting
        self._mutex = threading.Lock()

    @property
    def done(self) -> bool:
        """`answered`, for a thread that polls instead of waiting."""
        if not self.answered and self._waiting is not None:
            self._waiting.expect()
        return self.answered

    def set_result(self, result: commands_pb2.Result) -> None:
        """The command was done."""
        self._result = result
        self.answered = True
        if self._gate is not None:
            self._gate.put(None)
        if self.on_answer is not None:
            self.on_answer()

    def signalled(self) -> None:
        """Completes the reply, as the device has signalled, before its answer has come; no thread waits for that."""
        result = self.foretold
        if not self.answered and result is not None:
            self.set_result(result)
            self.abandon()

    def set_error(self, error: HearthError) -> None:
        """The command failed, or will never be answered."""
        if self._told:
            return
        with self._mutex:
            self.error = error
            self.answered = True
            abandoned = self.abandoned
        if self._gate is not None:
            self._gate.put(None)
        if abandoned and self.on_late_error is not None:
            self.on_late_error(error)
        if self.on_error is not None:
            self.on_error()
        if self.on_answer is not None:
            self.on_answer()
        self._told = True

    def wait(self, timeout: float | None = None) -> commands_pb2.Result:
        """Returns the result. Raises the error of the command, or `TimeoutError` after `timeout` seconds."""
        if not self.answered:
            waiting = self._waiting
            try:
                answered = self._wait(timeout) if waiting is None else waiting.attend(self, timeout)
            except BaseException:  # KeyboardInterrupt: the answer is not taken
                self.abandon()
                raise
            if not answered:
                raise self.given_up(timeout)
        if self.before is not None:
            self.before()
        if self.error is not None:
            raise self.error.again()
        assert self._result is not None
        return self._result

    def given_up(self, timeout: float | None) -> TimeoutError:
        """Abandons the reply, `timeout` seconds having passed; returns the error to raise."""
        self.abandon()
        return TimeoutError(
            f"no answer within {timeout:g} s; the work continues.",
            reason="DEADLINE_EXCEEDED",
            fix="wait again, or with a longer timeout.",
        )

    def listen(self, tell: Callable[[], None]) -> None:
        """Has `on_answer` call an event loop, which cannot sleep here. Until `unlisten`, a thread receives."""
        if self._waiting is not None:
            self._waiting.listen(1)
        self.on_answer = tell
        if self.answered:
            tell()

    def unlisten(self) -> None:
        """Called once for each `listen`."""
        self.on_answer = None
        if self._waiting is not None:
            self._waiting.listen(-1)

    def answers_within(self, seconds: float) -> bool:
        """Waits `seconds` at most; True if the answer is there. The reply can still be waited for."""
        return self.answered or self._wait(seconds)

    def outlast(self, timeout: float | None) -> None:
        """Waits like `wait`, and leaves an error to `on_late_error`."""
        if not self.answered:
            self._wait(timeout)
        self.abandon()

    def _wait(self, timeout: float | None) -> bool:
        if self._waiting is not None:
            return self._waiting.attend(self, timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        left = timeout
        while not self.answered and (left is None or left > 0):
            self.sleep(left)
            left = None if deadline is None else deadline - time.monotonic()
        return self.answered

    def sleep(self, seconds: float | None) -> None:
        """Waits for the answer or a `call`; may return without either."""
        gate = self._gate
        if gate is None:
            with self._mutex:
                gate = self._gate = self._gate or SimpleQueue()
        if self.answered:  # before the sleep could be seen
            return
        try:
            gate.get(timeout=None if seconds is None else max(0.0, seconds))
        except Empty:
            return
        if self.answered:
            gate.put(None)  # another may wait for the same

    def call(self) -> None:
        """Wakes the thread that sleeps, or sleeps next."""
        if self._gate is not None:
            self._gate.put(None)

    def abandon(self) -> None:
        """Marks the reply as waited for by no thread; its error, now or later, goes to `on_late_error`."""
        with self._mutex:
            self.abandoned = True
            error = self.error
        if error is not None and self.on_late_error is not None:
            self.on_late_error(error)


class PendingResult(Generic[T]):
    """A request that was sent, and the function that reads its answer: for a thread, which waits, or an event loop."""

    __slots__ = ("_read", "reply")

    def __init__(self, reply: Reply, read: Callable[[commands_pb2.Result], T]) -> None:
        self.reply = reply
        self._read = read

    def wait(self, timeout: float | None = None) -> T:
        """Returns the result. Raises like `Reply.wait`."""
        return self._read(self.reply.wait(timeout))


def wait_for_all(replies: Sequence[Reply], timeout: float | None = None) -> None:
    """Waits for all, `timeout` seconds together. Raises the first error; others are left to `on_late_error`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    first: HearthError | None = None
    for reply in replies:
        left = None if deadline is None else deadline - time.monotonic()
        if first is not None:
            reply.outlast(left)
            continue
        try:
            reply.wait(left)
        except HearthError as error:
            first = error
        except BaseException:
            for other in replies:
                other.abandon()
            raise
    if first is not None:
        raise first
