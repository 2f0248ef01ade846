"""Errors that arrived when no thread waited for them, kept until they are reported."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from hearth.errors import HearthError

_MOST = 64

NO_STREAM = -1
"""Stands for no stream in particular."""


class ErrorOrigin(NamedTuple):
    """A command's stream, the buffer that it was to copy, and the thread that sent it."""

    stream: int
    buffer: int
    thread: int

    def concerns(self, stream: int, buffer: int, thread: int) -> bool:
        """True if a failure of this origin is reported to that thread, for that stream and buffer."""
        return stream == self.stream or thread == self.thread or buffer == self.buffer


def origin_here(stream: int, buffer: int) -> ErrorOrigin:
    """The origin of a copy by this thread."""
    return ErrorOrigin(stream, buffer, threading.get_ident())


class DeferredErrors(deque[tuple[HearthError, "ErrorOrigin | None"]]):
    """A bounded queue of errors. Takes no lock: the receiving thread appends, and any thread takes. A subclass of
    `deque`, so that the check for an empty queue costs nothing.

    A copy that failed is reported where its stream or its buffer is waited for, and in the thread that sent it, which
    may use on other streams the contents that it expected. Other threads get it only if they wait for all streams.
    """

    def __init__(self) -> None:
        super().__init__(maxlen=_MOST)

    def keep(self, error: HearthError, origin: ErrorOrigin | None = None) -> None:
        """Queues `error`. Without `origin`, any caller may receive it. Bounded: evicts the oldest."""
        self.append((error, origin))

    def take(self, stream: int | None = None, buffer: int = 0) -> HearthError | None:
        """Removes and returns the oldest error that concerns this thread, `stream` (None: all) and `buffer`; None: no
        such error.
        """
        thread = threading.get_ident()
        for each in tuple(self):
            origin = each[1]
            if stream is None or origin is None or origin.concerns(stream, buffer, thread):
                try:
                    self.remove(each)
                except ValueError:  # another thread was quicker
                    continue
                return each[0]
        return None
