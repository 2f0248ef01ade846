"""Device time of work that goes to a track in several goes, as when its bytes arrive bit by bit."""

from __future__ import annotations

from functools import partial

from hearthd.device.backend.resources import Event
from hearthd.device.backend.server import ComputeServer
from hearthd.device.streams.stream_pool import PooledStream, StreamPool


class Stopwatch:
    """The sum of the stretches between `start` and `stop`, each between two events on the track.

    What the track does between two stretches, for others or waiting for the host, is not counted. `elapsed_ns` is whole
    once a completion that was asked for after the last `stop` has come. One that is not `running` measures nothing and
    costs nothing. Belongs to the device-handle thread.
    """

    def __init__(self, server: ComputeServer, tracks: StreamPool, track: PooledStream, running: bool = True) -> None:
        self._running = running
        self._server = server
        self._tracks = tracks
        self._track = track
        self._start: Event | None = None
        self.elapsed_ns = 0

    def start(self) -> None:
        """A stretch begins, unless one is under way."""
        if self._running and self._start is None:
            self._start = self._server.record(self._track.stream, timing=True)

    def stop(self) -> None:
        """The stretch under way, if any, ends."""
        if self._start is None:
            return
        start, self._start = self._start, None
        end = self._server.record(self._track.stream, timing=True)
        self._tracks.on_complete(self._track, partial(self._measure, start, end))

    def _measure(self, start: Event, end: Event) -> None:
        self.elapsed_ns += self._server.elapsed_ns(start, end)
        self._server.release_event(start)
        self._server.release_event(end)
