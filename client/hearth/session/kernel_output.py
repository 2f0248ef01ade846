"""Output of `printf` in kernels, and warnings: kept by the receiving thread, written by the next thread that waits.

The daemon sends the output before the answer of the sync or read that waited for the kernel. The receiving thread only
keeps it, so that a slow terminal or callback never delays the connection. The thread that waits for an answer writes
the output before its wait returns.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import deque
from collections.abc import Callable

MAX_CHARACTERS = 16 << 20
"""Maximum number of characters kept; beyond it, the oldest text is discarded."""

Callback = Callable[[str], object]


class KernelOutput:
    """The text that one device's kernels printed. Safe from any thread."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        """`max_characters`: maximum number of characters that are kept."""
        self._max_characters = max_characters
        self.callback: Callback | None = None
        """Receives the text instead of ``sys.stdout``; None: the text goes to ``sys.stdout``."""
        self._queue: deque[str | Callable[[], None]] = deque()
        self._size = 0
        self._lost = 0

    def add(self, text: str) -> None:
        """Queues `text` for `deliver`. Never blocks, never raises.

        Args:
            text: Text that kernels printed; the oldest text is discarded beyond the limit of characters.
        """
        self._queue.append(text)
        self._size += len(text)
        while self._size > self._max_characters and len(self._queue) > 1:
            oldest = self._queue.popleft()
            if isinstance(oldest, str):
                self._size -= len(oldest)
                self._lost += len(oldest)

    def call_later(self, warn: Callable[[], None]) -> None:
        """Queues a call for `deliver`, after the text that is queued. Never blocks, never raises.

        Args:
            warn: Gives a warning; its exceptions are raised by the call that waits for the device.
        """
        self._queue.append(warn)

    def deliver(self) -> None:
        """Writes all queued text to the callback or to ``sys.stdout``, and makes the queued calls. May block.

        If text was discarded, a note of the number of its characters precedes the text.
        """
        while self._queue:
            try:
                item = self._queue.popleft()
            except IndexError:  # another thread took the text first
                return
            if not isinstance(item, str):
                item()
                continue
            self._size -= len(item)
            lost, self._lost = self._lost, 0
            if lost:
                item = f"[{lost} characters of output were discarded: no call waited for the device]\n{item}"
            self._write(item)

    def _write(self, text: str) -> None:
        callback = self.callback
        if callback is None:
            if sys.stdout is not None:
                with contextlib.suppress(OSError, ValueError):  # stdout is closed, or its reader has ended
                    sys.stdout.write(text)
                    sys.stdout.flush()
            return
        try:
            callback(text)
        except Exception as error:
            warnings.warn(
                f"the callback of on_output failed: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2
            )
