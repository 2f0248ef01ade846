"""Backlog of a session: commands that wait, and its work on the device."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hearth_proto.frames import Frame, Kind
from hearth_proto.v1 import commands_pb2
from hearthd.device.scheduler.pace import Pace
from hearthd.device.scheduler.standstill import Standstill
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_pool import NEVER, PooledStream, StreamPool

NOTHING, COPY, LAUNCH = range(3)
"""What a command gives the device. Copies go beside the kernels of others; launches are what turns are about."""

NEEDS = {
    "launches": LAUNCH,
    "launch": LAUNCH,
    "launch_graph": LAUNCH,
    "launch_prepared": LAUNCH,
    "dispatch": LAUNCH,
    "write": COPY,
    "read": COPY,
    "copy": COPY,
    "fill": COPY,
    "checkpoint": COPY,
}


class Slice:
    """Some commands that a session gave the device in one go; `count` of them when it is closed."""

    __slots__ = ("base", "begun", "count", "late", "most", "turn")

    def __init__(self, begun: float, most: int, turn: bool, base: dict[PooledStream, int]) -> None:
        self.begun = begun
        self.most = most
        self.turn = turn
        """Whether it keeps the turns of others waiting; else it goes beside theirs."""
        self.base = base
        """What each track had been given before."""
        self.count = 0
        self.late = False
        """Whether it has taken so long that nobody waits for it any more."""

    def given(self, tracks: Iterable[PooledStream]) -> int:
        """How many commands so far, of those that these tracks were given."""
        base = self.base
        return sum(track.given - base.get(track, track.since) for track in tracks)


Changes = dict[int, bool]
"""Events that commands record or destroy; whether they record them, once, and do no more."""


class PeekedBatch(NamedTuple):
    """A queued batch that has been decoded ahead of its turn."""

    batch: commands_pb2.Batch
    changes: Changes | None
    """What it does to events; None where it does more than that to commands behind it."""
    answered: frozenset[int]
    """Places of commands that have been answered already."""


class Backlog:
    """The backlog of one session. Device-handle thread only."""

    __slots__ = (
        "active", "ahead", "awaited", "chance_at", "closing", "copies", "counted", "ended", "forgiven", "frame",
        "frames", "late_at", "launches", "left", "metered", "need", "open", "owes", "pace", "paid", "paused", "place",
        "room", "session", "since", "slices", "sparse", "standstill", "transfers", "under", "used", "wanting", "work",
    )  # fmt: skip

    def __init__(self, session: DeviceSession) -> None:
        self.session = session
        # What waits.
        self.frames: deque[Frame] = deque()
        self.frame: Frame | None = None
        """The one that is being worked off."""
        self.under: commands_pb2.Batch | None = None  # the batch in it
        self.place = self.paused = 0
        """The command that it stands before, and for how many nanoseconds it has stopped in this batch."""
        self.work: Iterator[None] | None = None
        """What is left of it."""
        self.ahead: dict[int, PeekedBatch] = {}
        """Batches among the frames that have been looked into, by `id` of the frame."""
        self.awaited: dict[int, list[commands_pb2.Command]] = {}
        """What is asked of events that have not been recorded yet."""
        self.transfers: set[int] = set()
        """Uploads with messages among the frames."""
        self.closing = self.ended = False
        """Whether the end of the session is among the frames, and whether it has come."""
        self.wanting = self.copies = False
        """Whether it has commands that give the device work, as far as it has been looked at; whether these are
        copies."""
        # What it may do now.
        self.need = NOTHING
        """What its next command gives the device, where it had to stop before it."""
        self.left = self.room = 0
        """Commands of any kind that it may run before others are looked after; those that give the device work."""
        self.launches = False
        """Whether these may be launches."""
        self.standstill: Standstill[LogicalStream] = Standstill()
        # What is on the device.
        self.active = False
        """Whether it has something waiting, or work on the device."""
        self.sparse = True
        """Whether all that it had went at once, when it last had something."""
        self.metered = self.forgiven = False
        """Whether its time is counted though it is in no slice; whether it is counted, but no debt."""
        self.open: Slice | None = None
        self.slices: deque[Slice] = deque()
        """Those that are on the device, oldest first."""
        self.since = 0.0
        """When the last slice was done, or the first of a row begun."""
        self.late_at = 0.0
        """When the oldest slice has taken too long."""
        self.chance_at = 0.0
        """When it is given a slice whatever it owes, where one has taken too long."""
        self.pace = Pace()
        self.used = 0.0
        """Seconds of device time."""
        self.paid = 0.0
        """What it had used at `since`."""
        self.owes = math.inf
        """See `hearthd.device.scheduler.device_time.DeviceTimePayer`."""
        self.counted = 0
        """Commands that were done at `since`, where it is in no slice."""

    @property
    def session_id(self) -> str:
        return self.session.id

    def tracks(self) -> list[PooledStream]:
        """Those of its streams, each once."""
        return self.session.streams.tracks

    def busy_tracks(self) -> list[PooledStream]:
        """Those that may have work of it, also its part in collectives."""
        streams = self.session.streams
        collectives = streams.collectives
        return list(dict.fromkeys((*streams.tracks, *collectives))) if collectives else streams.tracks

    def collectives(self, tracks: StreamPool) -> list[PooledStream]:
        """Communicators' tracks with work of it that is not known to be done."""
        return tracks.undone(self.session.streams.collectives)

    @property
    def waiting(self) -> bool:
        """Whether there are commands that have not run."""
        return self.work is not None or bool(self.frames)

    @property
    def asks(self) -> int:
        """What the next of its waiting commands need: of those that are in order, and those that were put off."""
        need = self.need if self.work is not None else NOTHING
        for track in self.tracks():
            if track.asked > need:
                need = LAUNCH if track.asked > 1 else COPY
        return need

    @property
    def in_turn(self) -> bool:
        """Whether the turns of others wait for it."""
        return (self.open is not None and self.open.turn) or any(each.turn and not each.late for each in self.slices)

    @property
    def late(self) -> bool:
        """Whether a slice of it takes too long."""
        return any(each.late for each in self.slices)

    @property
    def on_device(self) -> int:
        """Commands in slices that are not done and not late."""
        return sum(each.count for each in self.slices if not each.late)

    def may(self, need: int) -> bool:
        """Whether the next command may give the device such work now; else it stops before it."""
        if need == NOTHING or (self.room > 0 and (self.launches or need != LAUNCH)):
            self.need = NOTHING
            return True
        self.need = need
        return False

    def stops(self, stream: LogicalStream) -> bool:
        """Whether it stands still before a command for a stream that takes no more, or for which many others wait. With
        turns it does not: it has no room for so many."""
        track, standstill = stream.track, self.standstill
        if self.room < NEVER >> 1 or not standstill.lasts(track.index, track.finished, time.perf_counter()):
            return False
        standstill.stream = stream
        return True

    def stands_still(self, tracks: StreamPool) -> bool:
        """Whether it does still."""
        stream = self.standstill.stream
        if stream is None:
            return False
        self.standstill.stream = None
        full = (stream.track.budget <= 0 and not tracks.reap(stream.track)) or self.session.deferred.holds(stream)
        return full and not self.closing and self.stops(stream)

    def bar(self, tracks: StreamPool) -> None:
        """Nothing goes to the device from now on."""
        self.standstill.stream = None
        self.room = 0
        for track in self.tracks():
            asked = track.asked
            tracks.bar(track, True, 0)
            track.asked = asked

    def let(self, tracks: StreamPool, most: int = NEVER, launches: bool = True) -> None:
        """So many commands may go from now on."""
        self.room = most
        self.launches = launches
        for track in self.tracks():
            tracks.bar(track, not launches, most)

    def done(self) -> int:
        """How many commands of it are known to be done."""
        return sum([track.finished - track.since for track in self.busy_tracks()])  # a generator takes twice as long

    def undone(self, tracks: StreamPool) -> list[PooledStream]:
        """Tracks with work that is not known to be done."""
        return tracks.undone(self.busy_tracks())

    def under_way(self, tracks: StreamPool) -> bool:
        """Whether the device has work of it that is not known to be done."""
        return bool(tracks.undone(self.busy_tracks()))

    def learn(self, count: int, begun: float, now: float) -> None:
        """So many commands were done since `since`; they were begun to be given to the device at `begun`."""
        self.pace.learn(count, self.used - self.paid, now - begun)
        self.paid, self.since = self.used, now

    # ---- frames that will not be looked at in their turn ----

    def behind(self, frame: Frame) -> bool:
        """Whether a message of an upload has to stay behind commands that wait: its Write may be among them."""
        if not self.waiting:
            self.transfers.clear()
            return False
        session = self.session
        if frame.id not in self.transfers and (frame.id in session.uploads or frame.id in session.over):
            return False
        self.transfers.add(frame.id)
        return True

    def withdraw(self, call: int) -> bool:
        """Forgets a single call that waits here; whether one did."""
        if self.work is not None and _is_call(self.frame, call):
            self.work = None
            self.need = NOTHING
            return True
        for frame in self.frames:
            if _is_call(frame, call):
                self.frames.remove(frame)
                return True
        return False

    def drop(self) -> list[Frame]:
        """Forgets the frame that it stands before, and all up to the end of the session."""
        dropped = [self.frame] if self.frame is not None else []
        self.ahead.clear()
        self.awaited.clear()
        self.work = self.standstill.stream = None
        self.need = NOTHING
        while self.frames and self.frames[0].kind != Kind.CLOSE:
            dropped.append(self.frames.popleft())
        return dropped


def _is_call(frame: Frame | None, call: int) -> bool:
    return frame is not None and frame.kind == Kind.CALL and frame.id == call
