"""When the answer about a large copy is likely to come, so that who waits for it is awake then.

A thread that has slept for a millisecond is woken late: its core has gone to sleep as well. Where there are cores to
spare it is worth more to ask for some tens of microseconds.
"""

from __future__ import annotations

import os
import threading
import time

from hearth_proto.forecast import Forecast, Foreseen

UP, DOWN = 0, 1
"""Which way a copy goes."""

CORES = 4
"""Fewer have something better to do."""


def lookout() -> Lookout | None:
    """For an attachment; None where there are no cores to spare."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Lookout() if cores >= CORES else None


class Lookout:
    """Of one attachment's copies. Safe from any thread; never waits for long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forecast = Forecast()

    def sent(self, way: int, size: int) -> Foreseen | None:
        """A copy is about to be asked for."""
        with self._lock:
            return self._forecast.begin(way, size, time.perf_counter())

    def ended(self, foreseen: Foreseen | None, *, well: bool) -> None:
        """Its answer came, or none will."""
        if foreseen is None:
            return
        with self._lock:
            if well:
                self._forecast.came(foreseen, time.perf_counter())
            else:
                self._forecast.drop(foreseen)

    @property
    def ahead(self) -> float:
        """Seconds until an answer is likely; 0: now; infinite: none is foreseen."""
        with self._lock:
            now = time.perf_counter()
            return 0.0 if self._forecast.near(now) else self._forecast.ahead(now)
