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
_LEAST_BYTES = 16 << 20
"""Smallest transfer that `show_progress` shows; a call's own ``progress=True`` shows smaller ones too."""
PATIENCE_S = 0.5
"""Seconds that an operation must take before `show_progress` shows it."""


class _Asked:
    """The setting of `show_progress`, for all threads."""

    always = False


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
        self._before = _Asked.always
        _Asked.always = bool(on)

    def __enter__(self) -> show_progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _Asked.always = self._before


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
    if progress is None and _Asked.always:
        return _bar(label, _LEAST_BYTES, PATIENCE_S)
    return _bar(label, 0, 0.0) if progress else None


@contextlib.contextmanager
def waiting(label: str, patience: float = PATIENCE_S, interval: float = INTERVAL_S) -> Iterator[None]:
    """Context manager that shows how long its block takes, if `show_progress` is on.

    Args:
        label: Text at the beginning of the line.
        patience: Seconds after which the time is shown.
        interval: Seconds between two updates of the line.
    """
    line = _line() if _Asked.always else None
    if line is None:
        yield
        return
    over = threading.Event()
    started = time.monotonic()

    def watch() -> None:
        pause = patience
        while not over.wait(pause):
            line.draw(f"{label}: {time.monotonic() - started:.1f} s")
            pause = interval

    watcher = threading.Thread(target=watch, name="hearth-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
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
        said = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(said, raw=True, display_id=True)
        else:
            self._handle.update(said, raw=True)

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
            shown = importlib.import_module("IPython.display")
        except ImportError:
            return None
        return _Notebook(shown.display)
    try:
        return _Terminal(stderr) if stderr.isatty() else None
    except ValueError:  # stderr is closed
        return None


def _bar(label: str, least: int, patience: float) -> _Bar | None:
    line = _line()
    return None if line is None else _Bar(label, line, least, patience)


class _Bar:
    """Progress bar of a transfer of at least `least` bytes; drawn from `patience` seconds after its start."""

    def __init__(self, label: str, line: _Line, least: int = 0, patience: float = 0.0) -> None:
        self._label = label
        self._line = line
        self._least = least
        self._patience = patience
        self._started = time.monotonic()
        self._next = self._started + patience
        self._lock = threading.Lock()
        self._said = ""

    def __call__(self, done: int, total: int) -> None:
        if total < self._least:
            return
        with self._lock:
            now, over = time.monotonic(), done >= total
            if (self._patience and not self._said) if over else now < self._next:
                return
            self._next = now + INTERVAL_S
            self._said = self._text(done, total, now - self._started)
            self._line.draw(self._said)
            if over:
                self._line.end(self._said)
                self._said = ""

    def __del__(self) -> None:
        if getattr(self, "_said", ""):  # the transfer was interrupted: the next output must start on a new line
            self._line.end(f"{self._said}(interrupted)")

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
