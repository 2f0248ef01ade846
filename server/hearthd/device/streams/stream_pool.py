"""Tracks: the CUDA streams of a device process, and who gets which.

Logical streams map onto at most `max_streams` tracks. What they are given, and how far each has come, is the concern of
`hearthd.device.streams.queue`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.server import ComputeServer, KeepsCrashRecord
from hearthd.device.streams import track_choice
from hearthd.device.streams.pending_outcomes import Callback
from hearthd.device.streams.queue import TrackWork
from hearthd.device.streams.track import NEVER, TIME_NEXT, WINDOW, WINDOWS, Track

__all__ = ["NEVER", "WINDOW", "WINDOWS", "Track", "Tracks", "listed"]

NAMED = 8
"""Kernels that a refusal names."""


class Tracks(TrackWork):
    """All tracks of one device process."""

    def __init__(self, server: ComputeServer, max_streams: int, wake: Callable[[], None]) -> None:
        super().__init__(server, wake)
        self._max = max_streams
        self.held = False

    def acquire(self, priority: int = 0, *, bounded: bool = False) -> Track:
        """A track for a logical stream: one that is free, else a new one, else the one with the fewest users; never one
        that is kept back.

        Where all are, a new one beyond those that there should be; `bounded`: Refusal(QUEUE_FULL) where there are twice
        as many already."""
        track = track_choice.free(self.all, priority)
        if track is None:
            self._look_after_kept()
            track = track_choice.free(self.all, priority)
        if track is None and track_choice.room(self.all, self._max, time.monotonic()):
            track = self._add(priority)
        track = track or track_choice.shared(self.all, priority)
        if track is None:
            if bounded and len(self.all) >= track_choice.MOST * self._max:
                raise self._all_kept_back()
            track = self._add(priority)
        if not track.users:
            track.timing = track.timing or TIME_NEXT
            track.since = track.given
            self.bar(track, False)
        track.users += 1
        return track

    def acquire_own(self) -> Track:
        """A track that nobody else gets before it is released, even where that makes one more than there should be:
        what waits for peers on it must not hold up others, nor wait for them."""
        own = track_choice.free(self.all, 0) or self._add(0)
        own.own = True
        own.since = own.given
        self.bar(own, False)
        own.users = 1
        return own

    def _add(self, priority: int) -> Track:
        track = Track(self.ordering.add_track(), self._server.create_stream(priority), priority)
        track.held = self.held
        if isinstance(self._server, KeepsCrashRecord):
            self._server.note_launches(track.stream, track.launched)
        self.all.append(track)
        return track

    def release(self, track: Track) -> None:
        """One of its users is gone. Nobody new gets it before all is done that it has been given."""
        track.users -= 1
        track.own = False
        if not self.done(track):
            self.on_complete(track, self.keep((track,)))

    # ---- kept back ----

    def keep(self, tracks: Collection[Track]) -> Callback:
        """Nobody new gets these until what it returns is called: what one of them runs may never end."""
        now = time.monotonic()
        for track in tracks:
            if not track.kept:
                track.kept_since = now
            track.kept += 1

        def let_go() -> None:
            for track in tracks:
                track.kept -= 1

        return let_go

    @property
    def kept_back(self) -> list[Track]:
        """Those that nobody gets because what they were given by who is gone does not end."""
        return track_choice.stuck(self.all, time.monotonic())

    def _look_after_kept(self) -> None:
        """Some of those that are kept back may be done by now."""
        for track in self.all:
            if track.kept and track.pending:
                self.reap(track)

    def _all_kept_back(self) -> Refusal:
        kernels = list(dict.fromkeys(self.in_flight()))
        named = listed(kernels)
        return Refusal(
            Reason.QUEUE_FULL,
            f"a stream was asked for, and all {len(self.all)} of the device process are kept back: streams that were "
            f"destroyed, or whose session has ended, left work on them that does not end"
            + (f" (kernels: {named})" if kernels else ""),
            fix="give such launches a timeout, let them end before their stream goes, use a session of its own "
            '(isolation="dedicated"), or raise devices.max_streams',
            details={"streams": len(self.all), "max_streams": self._max, "kernels": named},
            retry_after_s=track_choice.PATIENCE_S,
        )

    # ---- launches that have to wait ----

    def hold(self, held: bool) -> None:
        """Whether launches have to wait from now on, on every track."""
        self.held = held
        for track in self.all:
            track.held = held or track.barred

    def bar(self, track: Track, barred: bool, most: int = NEVER) -> None:
        """Whether launches have to wait on one track, and how many commands of all kinds it may be given meanwhile."""
        track.barred = barred
        track.held = barred or self.held
        track.stop = track.given + most if most != NEVER else NEVER
        track.asked = 0


def listed(names: Sequence[str]) -> str:
    """Names of kernels, for a refusal."""
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
