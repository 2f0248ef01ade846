"""Cancellation of a compile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from hearth_proto.reasons import Reason, Refusal


class CancelToken:
    """Cancels one compile at any time: before a worker has the job, while it runs, and afterwards. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._stop: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Cancels the compile. Does not block."""
        with self._lock:
            self._cancelled = True
            if self._stop is not None:
                self._stop()

    def check(self) -> None:
        """Raises Refusal(CANCELLED) if the compile has been cancelled."""
        if self._cancelled:
            raise cancelled()

    @contextlib.contextmanager
    def on_cancel(self, stop: Callable[[], None]) -> Iterator[None]:
        """Calls `stop`, which must not block, if the compile is cancelled in this context, or has been before.

        It is called on the thread that cancels, and never after the context. Contexts of one token do not nest.
        """
        with self._lock:
            self._stop = stop
            if self._cancelled:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stop = None


def cancelled() -> Refusal:
    """Returns the refusal of a cancelled compile."""
    return Refusal(Reason.CANCELLED, "the compile was stopped: no request waits for it any more")
