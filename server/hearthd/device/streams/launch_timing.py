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
    """Selects the launches to time. Called between two commands of a track, and when submitted work is done."""

    def __init__(self) -> None:
        self.on_done: Callable[[int], None] = lambda nanoseconds: None
        """Called with the duration of each timed launch, in nanoseconds."""

    def select(self, track: PooledStream, position: int) -> bool:
        """Selects the command to time: the last one, or the next.

        All commands of the track up to `position` have been submitted. A selected command that turns out not to be a
        launch is not timed, and the next command is selected. Returns True if the completion of the last command has to
        be polled.
        """
        probe = track.probe
        is_new_launch = probe is not None and not probe.launch and _is_launch(track, probe)
        if probe is not None and is_new_launch:
            probe.launch = True
        if probe is not None and probe.launch:
            track.timing = 0
        else:
            track.timing = TIMED
            track.probe = LaunchProbe(position + 1, time.perf_counter_ns())
        return is_new_launch

    @staticmethod
    def skip(track: PooledStream) -> bool:
        """Skips a command that is not a launch: the command after it is selected instead.

        Returns True as `select` does.
        """
        probe = track.probe
        if probe is None:
            return False
        if not probe.launch and not _is_launch(track, probe):
            track.probe = None
            track.timing = TIME_NEXT
            return False
        is_new_launch = not probe.launch
        probe.launch = True
        track.timing = 0
        return is_new_launch

    def completed(self, track: PooledStream, position: int) -> None:
        """Records that the track, which has a probe, has completed all commands up to `position`."""
        probe = track.probe
        if probe is None or position < probe.position:
            return
        track.probe = None
        if probe.launch or _is_launch(track, probe):
            track.timing = 0
            self.on_done(time.perf_counter_ns() - probe.start_ns)
        else:
            track.timing = TIME_NEXT

    @staticmethod
    def became_idle(track: PooledStream) -> None:
        """Records that the track became idle; selects the next command every `IDLE_PERIODS` times."""
        track.idle_count += 1
        if not track.idle_count % IDLE_PERIODS and not track.timing:
            track.timing = TIME_NEXT


def _is_launch(track: PooledStream, probe: LaunchProbe) -> bool:
    """True if the probed command is the last launch of the track."""
    return bool(track.launched) and track.launched[-1][0] == probe.position
