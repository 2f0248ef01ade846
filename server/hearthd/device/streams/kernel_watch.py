"""Kernel watch: the kernels that run now, and for how long, for the status page. Device-handle thread only.

A launch records no time, because that would cost every launch. The watch compares each report with the one before, so a
duration is a lower bound, except for launches that are timed anyway (`hearthd.device.streams.track.LaunchProbe`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from hearthd.device.streams.track import PooledStream

MAX_KERNELS = 32
"""Maximum number of kernels in a report."""
_NAME = 200


class KernelWatch:
    """The kernels in flight on the tracks of a process."""

    def __init__(self) -> None:
        self._last_report: dict[PooledStream, tuple[tuple[int, str, str], float]] = {}
        """By track: completed position, kernel and session at the last report, and the time from which the kernel is
        known to run."""

    def report(self, tracks: Iterable[PooledStream]) -> list[dict[str, Any]]:
        """Returns an entry for each track that has a kernel in flight, longest first.

        An entry has the oldest kernel, its session, the seconds for which it has been running at least, and the number
        of launches known to be queued after it. At most `MAX_KERNELS` entries are returned.
        """
        now = time.perf_counter()
        observed: dict[PooledStream, tuple[tuple[int, str, str], float]] = {}
        entries: list[dict[str, Any]] = []
        for track in tracks:
            in_flight = [launch for launch in track.launched if launch[0] > track.done_position]
            if not in_flight:
                continue
            position, kernel, session = in_flight[0]
            observation = (track.done_position, kernel, session)
            previous, since = self._last_report.get(track, (None, now))
            if previous != observation:
                since = now
            probe = track.probe
            if probe is not None and probe.position == position:
                since = min(since, probe.start_ns / 1e9)
            observed[track] = (observation, since)
            entries.append(
                {
                    "kernel": kernel[:_NAME],
                    "session": session,
                    "seconds": round(now - since, 3),
                    "queued": len(in_flight) - 1,
                }
            )
        self._last_report = observed
        entries.sort(key=lambda entry: -float(entry["seconds"]))
        return entries[:MAX_KERNELS]
