"""Stopwatch: device time of work that is submitted to a track in several parts, for example as its bytes arrive."""

from __future__ import annotations

from functools import partial

from hearthd.device.backend.resources import Event
from hearthd.device.backend.server import ComputeServer
from hearthd.device.streams.stream_pool import PooledStream, StreamPool


class Stopwatch:
    """Sum of the intervals between `start` and `stop`, each between two events on the track. Device-handle thread only.

    The time between two intervals, in which the track works for other commands or waits for the host, is not counted.
    `elapsed_ns` is complete once a completion callback registered after the last `stop` has run. A stopwatch that is
    not `running` measures nothing and has no cost.
    """

    def __init__(self, server: ComputeServer, tracks: StreamPool, track: PooledStream, running: bool = True) -> None:
        self._running = running
        self._server = server
        self._tracks = tracks
        self._track = track
        self._start: Event | None = None
        self.elapsed_ns = 0

    def start(self) -> None:
        """Begins an interval, unless one is under way."""
        if self._running and self._start is None:
            self._start = self._server.record(self._track.stream, timing=True)

    def stop(self) -> None:
        """Ends the interval under way, if there is one."""
        if self._start is None:
            return
        start, self._start = self._start, None
        end = self._server.record(self._track.stream, timing=True)
        self._tracks.on_complete(self._track, partial(self._measure, start, end))

    def _measure(self, start: Event, end: Event) -> None:
        self.elapsed_ns += self._server.elapsed_ns(start, end)
        self._server.release_event(start)
        self._server.release_event(end)
