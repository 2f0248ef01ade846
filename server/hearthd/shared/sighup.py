"""Handling of SIGHUP from the start of the process: it requests a reload, and would end a process that has no handler.

SIGHUP also arrives when the terminal from which the daemon was started is closed. It then has its original meaning: the
daemon ends as for SIGTERM, unless it was started to outlive its terminal (`nohup`).
"""

from __future__ import annotations

import os
import signal
from types import FrameType


class Hangup:
    """State of SIGHUP. Created before anything that takes time; the daemon takes over the signal from it."""

    def __init__(self) -> None:
        self.requested = False
        """True if the signal arrived before the daemon could act on it."""
        self._ignored_at_start = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._had_terminal = _has_terminal()

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handler of the signal, until the daemon installs its own. Only records that the signal arrived."""
        self.requested = True

    @property
    def terminal_closed(self) -> bool:
        """True if the signal came because the terminal was closed."""
        return self._had_terminal and not self._ignored_at_start and not _has_terminal()


def begin() -> Hangup:
    """Installs a handler, so that the signal does not end the process, and returns the signal's state."""
    hangup = Hangup()
    signal.signal(signal.SIGHUP, hangup.note)
    return hangup


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
