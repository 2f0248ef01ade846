"""Full-screen use of a terminal, restored however the command ends: keys, sizes, signals."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""Switches to the alternate screen, without a cursor and without line wrapping."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Screen:
    """The terminal of stdout, and of stdin if stdin is a terminal.

    Used from the main thread only, because that thread receives the signals.
    """

    def __init__(self) -> None:
        self._keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._wake_reader, self._wake_writer = os.pipe()
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._previous_wakeup_fd = -1

    # ---- entering and leaving ----

    def __enter__(self) -> Screen:
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        for number in _TERMINATION_SIGNALS:
            self._handle(number, _end)
        self._handle(signal.SIGTSTP, self._stop)
        self._handle(signal.SIGWINCH, lambda number, frame: None)  # the signal only wakes `wait`
        try:
            self._enter_screen()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_screen()
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _handle(self, number: int, handler: Any) -> None:
        self._handlers[number] = signal.signal(number, handler)

    def _enter_screen(self) -> None:
        if self._keyboard is not None:
            self._modes = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard, termios.TCSANOW)  # Ctrl-C and Ctrl-Z still send signals
        _write(_ENTER)

    def _leave_screen(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal may have been closed
            _write(_LEAVE)
        if self._modes is not None and self._keyboard is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Suspends the command on Ctrl-Z.

        Restores the terminal for the shell, and takes it again when the command continues.
        """
        self._leave_screen()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)  # the command continues here
        self._enter_screen()
        self.wake()

    # ---- use ----

    @property
    def size(self) -> os.terminal_size:
        """Current number of columns and lines."""
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(sys.stdout.fileno())
            if size.columns and size.lines:
                return size
        return shutil.get_terminal_size()

    def draw(self, lines: Sequence[str]) -> None:
        """Replaces the contents of the screen by `lines`, none of which may be wider than the screen."""
        # Each line is cleared before it is written: clearing from the last column would erase the character there.
        text = _HOME + "\r\n".join(f"{_CLEAR_LINE}{line}" for line in lines)
        _write(text + (f"\r\n{_CLEAR_BELOW}" if len(lines) < self.size.lines else ""))

    def wake(self) -> None:
        """Ends `wait`. May be called from any thread."""
        with contextlib.suppress(OSError):  # pipe full: `wait` ends anyway; closed: no thread waits
            os.write(self._wake_writer, b"\0")

    def wait(self, seconds: float) -> str:
        """Blocks until a key is pressed, `wake` is called, the size changes, or `seconds` have passed.

        Returns the keys. Raises `EOFError` if the terminal has been closed.
        """
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        if self._keyboard is not None:
            poll.register(self._keyboard, select.POLLIN)
        keys = b""
        for descriptor, _ in poll.poll(max(0.0, seconds) * 1e3):
            try:
                data = os.read(descriptor, 4096)
            except BlockingIOError:
                continue
            except OSError:
                raise EOFError from None
            if descriptor == self._keyboard:
                if not data:
                    raise EOFError
                keys = data
        return keys.decode("utf-8", "replace")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
