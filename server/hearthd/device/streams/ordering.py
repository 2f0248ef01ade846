"""Ordering: determines the waits between streams before a command may run.

The waits enforce read-after-write, write-after-read and write-after-write dependencies.

Every buffer carries its last write and the reads since, each as (track, position). A *track* is one CUDA stream; its
*position* counts the commands submitted to it. When a track waits for another, the wait covers all commands that had
been submitted to the other track by then. So one wait serves every buffer up to that position, and each pair of tracks
is fenced once per position.

The state is bounded: one position per track, one per pair of tracks with shared buffers, and for each buffer one write
and at most one read per track.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class Usage:
    """Last write of a buffer, and the reads since. Track -1: the buffer was never written."""

    __slots__ = ("outcomes", "position", "reads", "replayable", "track")

    def __init__(self) -> None:
        self.outcomes: tuple[Any, ...] = ()
        """Pending outcomes that determine whether the buffer's contents are valid; see
        `hearthd.device.streams.pending_outcomes`."""
        self.track = -1
        self.position = 0
        self.reads: dict[int, int] | None = None
        self.replayable = False
        """True if the replay cache may contain launches that use the buffer (`hearthd.device.session.replay_cache`)."""

    def tracks(self) -> dict[int, int]:
        """Returns every track that last wrote the buffer or has read it since, with the position of its last use."""
        positions = dict(self.reads or ())
        if self.track >= 0:
            positions[self.track] = max(self.position, positions.get(self.track, 0))
        return positions

    def discard_reads(self, track: int, done: int) -> None:
        """Removes the reads by `track` if the last of them is at or before position `done`, which is completed.

        The next write then need not wait for later work of the track.
        """
        if self.reads is not None and self.reads.get(track, done + 1) <= done:
            del self.reads[track]


@dataclass(frozen=True)
class OrderingView:
    """Size of the state of an `Ordering`, for tests and diagnostics."""

    tracks: int
    fenced_pairs: int
    """Number of ordered pairs of tracks of which the first has waited for the second."""


class Ordering:
    """Positions of all tracks, and the waits between tracks that have been made."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        """Position of the last command submitted to each track, indexed by track number."""
        self.done: list[int] = []
        """Position up to which the work of each track is known to be done, which no other track waits for."""
        self._synced: dict[tuple[int, int], int] = {}

    def inspect(self) -> OrderingView:
        """Returns the size of the state."""
        return OrderingView(len(self.positions), len(self._synced))

    def add_track(self) -> int:
        """Adds a track and returns its number."""
        self.positions.append(0)
        self.done.append(0)
        return len(self.positions) - 1

    def position(self, track: int) -> int:
        """Returns the position of the last command submitted to the track."""
        return self.positions[track]

    def plan(self, track: int, writes: Iterable[Usage], reads: Iterable[Usage] = ()) -> list[int]:
        """Takes the next position on `track` for a command; returns the tracks that it must wait for first.

        A buffer that is both read and written belongs in `writes`; if it is in both, it counts as written. A command
        without buffers is a step that other tracks can wait for: a wait for an event, or an allocation or free.
        """
        positions = self.positions
        positions[track] = position = positions[track] + 1
        waits: list[int] = []
        for usage in writes:
            if usage.track != track and usage.track >= 0:
                self._add_wait(waits, track, usage.track, usage.position)
            if usage.reads is not None:
                for reader, read_at in usage.reads.items():
                    if reader != track:
                        self._add_wait(waits, track, reader, read_at)
                usage.reads = None
            usage.track = track
            usage.position = position
        for usage in reads:
            if usage.track == track and usage.position == position:
                continue  # this command writes the buffer as well
            if usage.track != track and usage.track >= 0:
                self._add_wait(waits, track, usage.track, usage.position)
            if usage.reads is None:
                usage.reads = {}
            usage.reads[track] = position
        return waits

    def step(self, track: int) -> int:
        """Takes the next position on `track` for a command without buffers, and returns it."""
        positions = self.positions
        positions[track] = position = positions[track] + 1
        return position

    def fence(self, track: int, origin: int, position: int) -> bool:
        """Records that `track` must wait until `origin` has passed `position`.

        Returns False if an earlier wait covers that, or if that is known to be the case.
        """
        waits: list[int] = []
        if origin != track:
            self._add_wait(waits, track, origin, position)
        return bool(waits)

    def _add_wait(self, waits: list[int], track: int, origin: int, position: int) -> None:
        pair = (track, origin)
        if self.done[origin] < position and self._synced.get(pair, 0) < position:
            # The caller records the event now, so it covers everything submitted to the origin so far, which may be
            # work of another session.
            self._synced[pair] = self.positions[origin]
            waits.append(origin)
