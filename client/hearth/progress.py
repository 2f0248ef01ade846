"""Progress of long transfers and compiles, on request: a line on a terminal or in a notebook, or a callback.

Asked for at one call, ``x.get(progress=True)``, or for all of them, ``hearth.show_progress()``. What is long is shown,
and only while it lasts.
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
"""Called with bytes done and bytes in all, from whichever thread moves them."""

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
    """Shows transfers of 16 MiB and more, and waits for a compile, once they have taken half a second: one line on
    stderr where that is a terminal, or in a notebook's output; nowhere else.

    ``hearth.show_progress()`` from now on, in all threads; ``hearth.show_progress(False)`` no more; ``with
    hearth.show_progress(): ...`` for the block. A call's own ``progress=`` comes before it.

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
    """The function to call as bytes move; None: none. Draws a line only on a terminal or in a notebook."""
    if callable(progress):
        return progress
    if progress is None and _Asked.always:
        return _bar(label, _LEAST_BYTES, PATIENCE_S)
    return _bar(label, 0, 0.0) if progress else None


@contextlib.contextmanager
def waiting(label: str, patience: float = PATIENCE_S, interval: float = INTERVAL_S) -> Iterator[None]:
    """Shows, where `show_progress` asked for it, that a wait lasts.

    Args:
        label: Text at the beginning of the line.
        patience: Seconds after which the wait is shown.
        interval: Seconds between two drawings of the line.
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

    def draw(self, text: str) -> None: ...

    def end(self, text: str) -> None:
        """The last text; nothing where none was drawn."""


class _Terminal:
    """A line on a terminal. Ignores errors of writing: the work continues."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._drawn = ""

    def draw(self, text: str) -> None:
        if text != self._drawn:
            self._write(f"\r{text.ljust(len(self._drawn))}")
            self._drawn = text

    def end(self, text: str) -> None:
        if self._drawn:
            self.draw(text)
            self._write("\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            self._stream.write(text)
            self._stream.flush()


class _Notebook:
    """A line in the output of a cell, replaced in place."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def draw(self, text: str) -> None:
        said = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(said, raw=True, display_id=True)
        else:
            self._handle.update(said, raw=True)

    def end(self, text: str) -> None:
        if self._handle is not None:
            self.draw(text)


def _line() -> _Line | None:
    """The line to draw on: a notebook's output or a terminal; None if stderr is neither."""
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
    except ValueError:  # closed
        return None


def _bar(label: str, least: int, patience: float) -> _Bar | None:
    line = _line()
    return None if line is None else _Bar(label, line, least, patience)


class _Bar:
    """A transfer of `least` bytes or more, from `patience` seconds on."""

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
        if getattr(self, "_said", ""):  # broken off: the next output starts on a new line
            self._line.end(f"{self._said}(broken off)")

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
