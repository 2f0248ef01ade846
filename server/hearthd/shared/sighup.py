"""SIGHUP, from the first moment on: it asks for a reload, and would end a process that does not say otherwise.

The terminal that a daemon was started from says the same when it is closed. Then it is meant as it always was: an end,
which is asked for as SIGTERM asks for it, unless the daemon was started to outlive its terminal (`nohup`).
"""

from __future__ import annotations

import os
import signal
from types import FrameType


class Hangup:
    """Made before anything that takes time; the daemon takes over from it."""

    def __init__(self) -> None:
        self.asked = False
        """True if the signal came before a handler could act on it."""
        self._outlives = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._terminal = _has_terminal()

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler, until the daemon has its own."""
        self.asked = True

    @property
    def is_the_end(self) -> bool:
        """True if the signal came because the terminal was closed."""
        return self._terminal and not self._outlives and not _has_terminal()


def begin() -> Hangup:
    """Makes the signal harmless from here on."""
    hangup = Hangup()
    signal.signal(signal.SIGHUP, hangup.note)
    return hangup


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
