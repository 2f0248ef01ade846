"""Output of `printf` in kernels: received beside the answers, written by the next thread that waits.

The daemon sends it before the answer of the sync or read that waited for the kernel. The receiving thread only keeps
it, so that a slow terminal or a callback never holds up the connection: the thread that waits for an answer writes it
before it returns.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import deque
from collections.abc import Callable

MAX_KEPT = 16 << 20
"""Characters that are kept; older ones are discarded beyond."""

Callback = Callable[[str], object]


class KernelOutput:
    """The text that one device's kernels printed. Safe from any thread."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        """`most`: characters that are kept."""
        self._most = most
        self.callback: Callback | None = None
        """Takes the text in the place of ``sys.stdout``."""
        self._kept: deque[str] = deque()
        self._size = 0
        self._lost = 0

    def add(self, text: str) -> None:
        """Keeps the text; never blocks, never raises."""
        self._kept.append(text)
        self._size += len(text)
        while self._size > self._most and len(self._kept) > 1:
            gone = len(self._kept.popleft())
            self._size -= gone
            self._lost += gone

    def deliver(self) -> None:
        """Writes the text that has arrived."""
        while self._kept:
            try:
                text = self._kept.popleft()
            except IndexError:  # another thread was quicker
                return
            self._size -= len(text)
            lost, self._lost = self._lost, 0
            if lost:
                text = f"[{lost} characters of output were given up: no call waited for the device]\n{text}"
            self._write(text)

    def _write(self, text: str) -> None:
        callback = self.callback
        if callback is None:
            if sys.stdout is not None:
                with contextlib.suppress(OSError, ValueError):  # closed, or not read
                    sys.stdout.write(text)
                    sys.stdout.flush()
            return
        try:
            callback(text)
        except Exception as error:
            warnings.warn(f"on_output's callback failed: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)
