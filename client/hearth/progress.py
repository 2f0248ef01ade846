"""Progress of long transfers and compiles, on request: a line on a terminal or in a notebook, or a callback.

Requested for one call, ``x.get(progress=True)``, or for all calls, ``hearth.show_progress()``. Only long operations are
shown, while they last.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from types import TracebackType

Progress = Callable[[int, int], None]
"""Callback that receives the bytes done and the total number of bytes, called from any thread that transfers them."""

_WIDTH = 30
INTERVAL_S = 0.1
"""Seconds between two drawings of a line."""
_MIN_BYTES = 16 << 20
"""Smallest transfer that `show_progress` shows; a call's own ``progress=True`` shows smaller ones too."""
DELAY_S = 0.5
"""Seconds that an operation must take before `show_progress` shows it."""


class _Setting:
    """The setting of `show_progress`, for all threads."""

    enabled = False


class show_progress:
    """Shows the progress of transfers of at least 16 MiB, and the duration of waits for a compile.

    Shows those that take longer than half a second. Draws one line on stderr if stderr is a terminal, or in a
    notebook's output; otherwise shows nothing.

    ``hearth.show_progress()`` applies from now on, in all threads, until ``hearth.show_progress(False)``. ``with
    hearth.show_progress(): ...`` applies to the block. The ``progress=`` argument of a call takes precedence.

    Args:
        on: False shows nothing from now on.
    """

    def __init__(self, on: bool = True) -> None:
        self._previous = _Setting.enabled
        _Setting.enabled = bool(on)

    def __enter__(self) -> show_progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _Setting.enabled = self._previous


def reporter(progress: bool | Progress | None, label: str) -> Progress | None:
    """Returns the function to call as bytes are transferred.

    Args:
        progress: The ``progress`` argument of the call: a callback; True for a progress bar; False for none; None: as
            `show_progress` was set.
        label: Text at the start of the progress bar.

    Returns:
        The callback, or a progress bar if stderr is a terminal or a notebook's output; otherwise None.
    """
    if callable(progress):
        return progress
    if progress is None and _Setting.enabled:
        return _bar(label, _MIN_BYTES, DELAY_S)
    return _bar(label, 0, 0.0) if progress else None


@contextlib.contextmanager
def waiting(label: str, delay: float = DELAY_S, interval: float = INTERVAL_S) -> Iterator[None]:
    """Context manager that shows how long its block takes, if `show_progress` is on.

    Args:
        label: Text at the beginning of the line.
        delay: Seconds after which the time is shown.
        interval: Seconds between two updates of the line.
    """
    line = _line() if _Setting.enabled else None
    if line is None:
        yield
        return
    ended = threading.Event()
    started = time.monotonic()

    def watch() -> None:
        pause = delay
        while not ended.wait(pause):
            line.draw(f"{label}: {time.monotonic() - started:.1f} s")
            pause = interval

    watcher = threading.Thread(target=watch, name="hearth-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        line.end(f"{label}: {time.monotonic() - started:.1f} s")


class _Line(Protocol):
    """A line of text that is redrawn in place."""

    def draw(self, text: str) -> None:
        """Draws the text in place of the previous one.

        Args:
            text: The text, one line.
        """
        ...

    def end(self, text: str) -> None:
        """Draws the final text; does nothing if no text was drawn before.

        Args:
            text: The text, one line.
        """


class _Terminal:
    """A line on a terminal. Ignores write errors, so that the work continues."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._drawn = ""

    def draw(self, text: str) -> None:
        """Draws over the previous text, which spaces erase where the new text is shorter.

        Args:
            text: The text, one line.
        """
        if text != self._drawn:
            self._write(f"\r{text.ljust(len(self._drawn))}")
            self._drawn = text

    def end(self, text: str) -> None:
        """Draws the final text and begins a new line; does nothing if no text was drawn before.

        Args:
            text: The text, one line.
        """
        if self._drawn:
            self.draw(text)
            self._write("\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the stream was closed meanwhile
            self._stream.write(text)
            self._stream.flush()


class _Notebook:
    """A line in the output of a cell, replaced in place."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def draw(self, text: str) -> None:
        """Adds an output to the cell the first time, and replaces that output afterwards.

        Args:
            text: The text, one line.
        """
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def end(self, text: str) -> None:
        """Draws the final text, which stays in the cell; does nothing if no text was drawn before.

        Args:
            text: The text, one line.
        """
        if self._handle is not None:
            self.draw(text)


def _line() -> _Line | None:
    """Returns the line to draw on: a notebook's output or a terminal; None if stderr is neither."""
    stderr = sys.stderr
    if stderr is None:
        return None
    if type(stderr).__module__.startswith("ipykernel."):
        try:
            display_module = importlib.import_module("IPython.display")
        except ImportError:
            return None
        return _Notebook(display_module.display)
    try:
        return _Terminal(stderr) if stderr.isatty() else None
    except ValueError:  # stderr is closed
        return None


def _bar(label: str, min_bytes: int, delay: float) -> _Bar | None:
    line = _line()
    return None if line is None else _Bar(label, line, min_bytes, delay)


class _Bar:
    """Progress bar of a transfer of at least `min_bytes` bytes; drawn from `delay` seconds after its start."""

    def __init__(self, label: str, line: _Line, min_bytes: int = 0, delay: float = 0.0) -> None:
        self._label = label
        self._line = line
        self._min_bytes = min_bytes
        self._delay = delay
        self._started = time.monotonic()
        self._next = self._started + delay
        self._lock = threading.Lock()
        self._drawn = ""

    def __call__(self, done: int, total: int) -> None:
        if total < self._min_bytes:
            return
        with self._lock:
            now, is_complete = time.monotonic(), done >= total
            if (self._delay and not self._drawn) if is_complete else now < self._next:
                return
            self._next = now + INTERVAL_S
            self._drawn = self._text(done, total, now - self._started)
            self._line.draw(self._drawn)
            if is_complete:
                self._line.end(self._drawn)
                self._drawn = ""

    def __del__(self) -> None:
        if getattr(self, "_drawn", ""):  # the transfer was interrupted: the next output must start on a new line
            self._line.end(f"{self._drawn}(interrupted)")

    def _text(self, done: int, total: int, seconds: float) -> str:
        share = done / total if total else 1.0
        filled = int(share * _WIDTH)
        bar = "#" * filled + "." * (_WIDTH - filled)
        rate = done / max(seconds, 1e-9)
        return f"{self._label} [{bar}] {share:4.0%} {_size(done)} of {_size(total)}, {_size(rate)}/s "


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
