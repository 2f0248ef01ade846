"""Late errors: errors that arrived when no thread waited for them, kept until they are raised."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hearth.errors import HearthError

if TYPE_CHECKING:
    from hearth.failure import Failure

_MAX_ERRORS = 64

NO_STREAM = -1
"""Stream number of an error that belongs to no particular stream."""


class ErrorOrigin(NamedTuple):
    """Origin of a failed command: its kind, its stream, the buffer or graph that it uses, and the thread that sent it.

    The command is a copy (``write`` or ``read``) or an update of a graph (``update_graph``).
    """

    command: str
    stream: int
    buffer: int
    thread: int

    def is_reported_to(self, stream: int, buffer: int, thread: int) -> bool:
        """True if a failure of this origin is reported to `thread`, which waits for `stream` and `buffer`.

        Args:
            stream: Number of the stream that the thread waits for.
            buffer: Handle of the buffer that the thread waits for; 0: none.
            thread: Identifier of the thread.
        """
        return stream == self.stream or thread == self.thread or buffer == self.buffer

    def as_failure(self, error: HearthError) -> HearthError:
        """Returns a copy of `error` that lists the command as failed.

        Args:
            error: Error with which the daemon answered the command.
        """
        from hearth.failure import Failure  # imported only for failures

        failed, caller = error.again(), error.details.get("caller", "")
        failed.failures = [Failure(self.command, self.stream, error.reason, error.message, caller=caller)]
        return failed


def current_origin(command: str, stream: int, buffer: int) -> ErrorOrigin:
    """Returns the origin of a command that the calling thread sends.

    Args:
        command: Kind of the command: ``write``, ``read`` or ``update_graph``.
        stream: Number of the command's stream.
        buffer: Handle of the buffer or graph that the command uses.
    """
    return ErrorOrigin(command, stream, buffer, threading.get_ident())


class DeferredErrors(deque[tuple[HearthError, "ErrorOrigin | None"]]):
    """Bounded queue of late errors.

    Takes no lock: the receiving thread appends, and any thread takes. It is a subclass of `deque`, so that the check
    for an empty queue is cheap.

    The error of a failed copy is raised by a wait for its stream or its buffer, and in the thread that sent the copy,
    which may use the expected contents on other streams. Other threads receive it only if they wait for all streams.
    """

    def __init__(self) -> None:
        super().__init__(maxlen=_MAX_ERRORS)

    def add(self, error: HearthError, origin: ErrorOrigin | None = None) -> None:
        """Queues `error`.

        If the queue is full, the error of a copy replaces the newest one of the same stream and thread, and counts it.
        Without such an error, the oldest of all is lost.

        Args:
            error: Error that a later wait raises.
            origin: Copy that failed, which the error will list; None: any caller may receive the error.
        """
        if origin is not None:
            if not error.failures:
                error = origin.as_failure(error)
            if len(self) == self.maxlen:
                error = self._replacing(error, origin)
        self.append((error, origin))

    def _replacing(self, error: HearthError, origin: ErrorOrigin) -> HearthError:
        """Removes the newest error of the same stream and thread, and returns `error` with the failures of both."""
        for entry in reversed(tuple(self)):
            if entry[1] is not None and (entry[1].stream, entry[1].thread) == (origin.stream, origin.thread):
                try:
                    self.remove(entry)
                except ValueError:  # another thread took it
                    break
                return _counting(error, entry[0].failures)
        return error

    def pop_all(self, stream: int | None = None) -> list[HearthError]:
        """Removes and returns all errors that concern the calling thread or `stream`, oldest first.

        Args:
            stream: Number of the stream that the caller waits for; None: any.
        """
        return list(iter(partial(self.pop_matching, stream), None))

    def pop_matching(self, stream: int | None = None, buffer: int = 0) -> HearthError | None:
        """Removes and returns the oldest error that concerns the calling thread, `stream` or `buffer`.

        Args:
            stream: Number of the stream that the caller waits for; None: any.
            buffer: Handle of the buffer that the caller waits for; 0: none.

        Returns:
            The error, or None if there is none.
        """
        thread = threading.get_ident()
        for entry in tuple(self):
            origin = entry[1]
            if stream is None or origin is None or origin.is_reported_to(stream, buffer, thread):
                try:
                    self.remove(entry)
                except ValueError:  # another thread took it first
                    continue
                return entry[0]
        return None


def _counting(error: HearthError, older: list[Failure]) -> HearthError:
    """Returns a copy of `error` whose first failure also counts those of `older`."""
    from dataclasses import replace

    counted, (first, *others) = error.again(), error.failures
    number = first.merged + sum(1 + failure.merged for failure in older)
    counted.failures = [replace(first, merged=number), *others]
    return counted
