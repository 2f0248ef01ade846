"""Durations of a device's processes: from start to ready, and from a loss until its sessions are served again. Pure."""

from __future__ import annotations

from collections.abc import Collection

from hearthd.front.counters import HistogramCounts
from hearthd.front.supervisor.isolation import WorkerKey

_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ProcessDurations:
    """The durations of one device, in seconds."""

    def __init__(self) -> None:
        self.starts = HistogramCounts.up_to(_BOUNDS)
        """Seconds from the launch of a process until it is ready."""
        self.recoveries = HistogramCounts.up_to(_BOUNDS)
        """Seconds from the loss of a process until another serves its sessions."""
        self._lost_at: dict[WorkerKey, float] = {}

    @property
    def is_measuring(self) -> bool:
        """True if a recovery is being measured, that is, if a key waits for a process."""
        return bool(self._lost_at)

    def started(self, seconds: float) -> None:
        """Adds the time from the launch of a process until it was ready."""
        self.starts.observe(seconds)

    def lost(self, key: WorkerKey, now: float) -> None:
        """Notes that the key has no process from now on, unless that was noted before."""
        self._lost_at.setdefault(key, now)

    def served(self, serving: Collection[WorkerKey], existing: Collection[WorkerKey], now: float) -> None:
        """Notes that the workers of `serving` serve.

        A key that is not in `existing` has been removed and no longer waits.
        """
        for key, lost_at in list(self._lost_at.items()):
            if key in serving:
                self.recoveries.observe(now - lost_at)
            if key in serving or key not in existing:
                del self._lost_at[key]
