"""Errors that nobody was waiting for when they came, until somebody is told."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from hearth.errors import HearthError

_MOST = 64

NO_STREAM = -1
"""For who asks on behalf of no stream in particular."""


class ErrorOrigin(NamedTuple):
    """A command's stream, the buffer that it was to copy, and the thread that sent it."""

    stream: int
    buffer: int
    thread: int

    def concerns(self, stream: int, buffer: int, thread: int) -> bool:
        """Whether its failure is a matter of who asks so."""
        return stream == self.stream or thread == self.thread or buffer == self.buffer


def origin_here(stream: int, buffer: int) -> ErrorOrigin:
    """For a copy by this thread."""
    return ErrorOrigin(stream, buffer, threading.get_ident())


class DeferredErrors(deque[tuple[HearthError, "ErrorOrigin | None"]]):
    """Takes no lock: it is told of errors by whoever receives, and asked in any thread. A row of its own kind, so that
    to see that there are none costs nothing.

    A copy that failed is told where its stream or its buffer is asked for, and in the thread that sent it, which may
    use on other streams what it thought it had; others have nothing to do with it, unless they ask for all streams.
    """

    def __init__(self) -> None:
        super().__init__(maxlen=_MOST)

    def keep(self, error: HearthError, origin: ErrorOrigin | None = None) -> None:
        """For anybody where it is nobody's; the oldest of too many go."""
        self.append((error, origin))

    def take(self, stream: int | None = None, buffer: int = 0) -> HearthError | None:
        """The oldest that this thread is to be told of when it asks for this stream, or (None) for all, and this
        buffer, if any; it is told."""
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
