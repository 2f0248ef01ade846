"""Garbage collection policy: full collections run only while the process is idle.

A full collection visits every object of the process, which takes tens of milliseconds if a session has 100,000 buffers,
and would interrupt commands. Automatic collections are limited to the young generations. The full collection runs while
the process is idle, and then freezes the surviving objects (`gc.freeze`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

IDLE_S = 0.2
"""Idle time, in seconds, before a full collection."""

DUE_COLLECTIONS = 10
"""Number of collections of the two young generations before a full collection; Python's default."""

FORCED_COLLECTIONS = 1000
"""Number of such collections after which a full one runs automatically, so that a process that is never idle does not
grow without bound."""

THOROUGH = 16
"""One in this many full collections includes the frozen objects."""


class GarbageCollector:
    """Runs full collections. Device-handle thread only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slept_at: float | None = None
        self._count = 0

    def begin(self) -> None:
        """Freezes the objects that exist now, so that the collector does not visit them again."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, FORCED_COLLECTIONS)
        gc.freeze()

    def max_sleep(self, limit: float | None) -> float | None:
        """Returns how long the loop may sleep, in seconds; at most `limit`.

        Runs a full collection if enough young ones have run and the process has been idle. Called before each sleep.
        """
        slept_at, self._slept_at = self._slept_at, None
        if gc.get_count()[2] < DUE_COLLECTIONS:
            return limit
        now = self._clock()
        if slept_at is not None and now - slept_at >= IDLE_S:
            self._collect()
            return limit
        if limit is not None and limit < IDLE_S:
            return limit
        self._slept_at = now
        return IDLE_S

    def _collect(self) -> None:
        self._count += 1
        if self._count % THOROUGH == 0:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
