"""Launch timing: measures the time of some launches from submission to completion, for the metrics.

Device-handle thread only.

The first launch of each stream is timed, then one in `WINDOW` commands, and one each time that a track has become idle
`IDLE_PERIODS` times.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hearthd.device.streams.track import IDLE_PERIODS, TIME_NEXT, TIMED, LaunchProbe, PooledStream


class LaunchTiming:
    """Times launches. Called when a launch that is due takes its position, and when submitted work is done."""

    def __init__(self) -> None:
        self.on_done: Callable[[int], None] = lambda nanoseconds: None
        """Called with the duration of each timed launch, in nanoseconds."""

    @staticmethod
    def begin(track: PooledStream, position: int) -> None:
        """Times the launch at `position`, which is submitted next."""
        track.probe = LaunchProbe(position, time.perf_counter_ns())
        track.timing = TIMED

    def completed(self, track: PooledStream, position: int) -> None:
        """Records that the track, which has a probe, has completed all commands up to `position`."""
        probe = track.probe
        if probe is None or position < probe.position:
            return
        track.probe = None
        if track.timing == TIMED:
            track.timing = 0
        self.on_done(time.perf_counter_ns() - probe.start_ns)

    @staticmethod
    def became_idle(track: PooledStream) -> None:
        """Records that the track became idle; selects the next launch every `IDLE_PERIODS` times."""
        track.idle_count += 1
        if not track.idle_count % IDLE_PERIODS and not track.timing:
            track.timing = TIME_NEXT
