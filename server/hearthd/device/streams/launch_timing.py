"""How long launches take from their hand-over to their end: some of them, for the metrics.

Timed are the first launch of each stream, one in `WINDOW` commands, and one each `RESTS` times that a track has come to
its end. Belongs to the device-handle thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hearthd.device.streams.track import RESTS, TIME_NEXT, TIMED, LaunchProbe, PooledStream


class LaunchTiming:
    """Asked between two commands of a track, and when something that it was given is done."""

    def __init__(self) -> None:
        self.on_done: Callable[[int], None] = lambda nanoseconds: None
        """Told of each that was timed, in nanoseconds."""

    def between(self, track: PooledStream, position: int) -> bool:
        """The track has been given all up to `position`, and a command more follows: the one before is timed, or the
        one behind. What turns out to be no launch is not, and the next one is. Whether the end of the one before has to
        be noticed by somebody."""
        probe = track.probe
        found = probe is not None and not probe.launch and _is_launch(track, probe)
        if probe is not None and found:
            probe.launch = True
        if probe is not None and probe.launch:
            track.timing = 0
        else:
            track.timing = TIMED
            track.probe = LaunchProbe(position + 1, time.perf_counter_ns())
        return found

    @staticmethod
    def passed(track: PooledStream) -> bool:
        """As `between` where the command that follows is no launch: the one behind it is timed instead."""
        probe = track.probe
        if probe is None:
            return False
        if not probe.launch and not _is_launch(track, probe):
            track.probe = None
            track.timing = TIME_NEXT
            return False
        found = not probe.launch
        probe.launch = True
        track.timing = 0
        return found

    def reached(self, track: PooledStream, position: int) -> None:
        """The track, which has a probe, is done with all up to `position`."""
        probe = track.probe
        if probe is None or position < probe.position:
            return
        track.probe = None
        if probe.launch or _is_launch(track, probe):
            track.timing = 0
            self.on_done(time.perf_counter_ns() - probe.begun_ns)
        else:
            track.timing = TIME_NEXT

    @staticmethod
    def rested(track: PooledStream) -> None:
        """The track is done with all."""
        track.rests += 1
        if not track.rests % RESTS and not track.timing:
            track.timing = TIME_NEXT


def _is_launch(track: PooledStream, probe: LaunchProbe) -> bool:
    """Whether the command that is timed is the last launch of the track."""
    return bool(track.launched) and track.launched[-1][0] == probe.position
