"""The answer to one command, waited for by one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from hearth.errors import HearthError, TimeoutError

if TYPE_CHECKING:
    from hearth_proto.v1 import commands_pb2


class ReplyLike(Protocol):
    """What a session completes: a thread's `Reply`, an event loop's future."""

    @property
    def reports(self) -> bool: ...
    @property
    def abandoned(self) -> bool: ...
    def set_result(self, result: commands_pb2.Result) -> None: ...
    def set_error(self, error: HearthError) -> None: ...


class Reply:
    """Completed exactly once, by `set_result` or `set_error`, from any thread."""

    __slots__ = ("_done", "_mutex", "_result", "abandoned", "before", "error", "on_error", "on_late_error", "reports")

    def __init__(self, *, reports: bool = False) -> None:
        self.reports = reports
        """Whether it takes the errors of what was sent before (sync, read, flush, end of a profile)."""
        self.error: HearthError | None = None
        self.abandoned = False
        self.on_error: Callable[[], None] | None = None
        """Called when it fails, so that a transfer waiting beside it ends."""
        self.on_late_error: Callable[[HearthError], None] | None = None
        """Takes the error if nobody waits any more."""
        self.before: Callable[[], None] | None = None
        """Called by the waiting thread before it returns with the answer."""
        self._result: commands_pb2.Result | None = None
        self._done = threading.Lock()  # held until there is an answer: the cheapest thing a thread can wait on
        self._done.acquire()
        self._mutex = threading.Lock()

    @property
    def done(self) -> bool:
        """Whether the answer is there."""
        return self._result is not None or self.error is not None

    def set_result(self, result: commands_pb2.Result) -> None:
        """The command was done."""
        self._result = result
        self._done.release()

    def set_error(self, error: HearthError) -> None:
        """The command failed, or will never be answered."""
        with self._mutex:
            self.error = error
            abandoned = self.abandoned
        self._done.release()
        if abandoned and self.on_late_error is not None:
            self.on_late_error(error)
        if self.on_error is not None:
            self.on_error()

    def wait(self, timeout: float | None = None) -> commands_pb2.Result:
        """The result. Raises what the command failed with, or `TimeoutError` after `timeout` seconds."""
        try:
            answered = self._done.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        except BaseException:  # KeyboardInterrupt: nobody will take the answer
            self.abandon()
            raise
        if not answered:
            self.abandon()
            raise TimeoutError(
                f"no answer within {timeout:g} s; the work goes on.",
                reason="DEADLINE_EXCEEDED",
                fix="wait again, or with a longer timeout.",
            )
        self._done.release()
        if self.before is not None:
            self.before()
        if self.error is not None:
            raise self.error.again()
        assert self._result is not None
        return self._result

    def outlast(self, timeout: float | None) -> None:
        """Waits as `wait` does, and leaves an error to `on_late_error`."""
        if self._done.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            self._done.release()
        self.abandon()

    def abandon(self) -> None:
        """Nobody waits any more; an error that comes, or came meanwhile, goes to `on_late_error`."""
        with self._mutex:
            self.abandoned = True
            error = self.error
        if error is not None and self.on_late_error is not None:
            self.on_late_error(error)


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
