"""Late errors: errors that arrived when no thread waited for them, kept until they are raised."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from hearth.errors import HearthError

_MAX_ERRORS = 64

NO_STREAM = -1
"""Stream number that stands for no particular stream."""


class ErrorOrigin(NamedTuple):
    """Origin of a failed copy: its stream, the buffer that it was to copy, and the thread that sent it."""

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


def current_origin(stream: int, buffer: int) -> ErrorOrigin:
    """Returns the origin of a copy that the calling thread sends.

    Args:
        stream: Number of the copy's stream.
        buffer: Handle of the buffer that the copy uses.
    """
    return ErrorOrigin(stream, buffer, threading.get_ident())


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
        """Queues `error`. Evicts the oldest error if the queue is full.

        Args:
            error: Error that a later wait raises.
            origin: Copy that failed; None: any caller may receive the error.
        """
        self.append((error, origin))

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
