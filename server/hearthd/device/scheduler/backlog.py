"""Backlog of a session: commands that wait, and its work on the device."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hearth_proto.frames import Frame, Kind
from hearth_proto.v1 import commands_pb2
from hearthd.device.scheduler.chances import Chances
from hearthd.device.scheduler.pace import Pace
from hearthd.device.scheduler.standstill import PATIENCE_S as STANDSTILL_S
from hearthd.device.scheduler.standstill import Standstill
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_pool import NEVER, PooledStream, StreamPool

NOTHING, COPY, LAUNCH = range(3)
"""The device work of a command. Copies run beside the kernels of other sessions; turns divide launches."""

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
    """Commands that a session submitted in one turn; `count` is their number once the slice is closed."""

    __slots__ = ("base", "begun", "count", "late", "most", "turn")

    def __init__(self, begun: float, most: int, turn: bool, base: dict[PooledStream, int]) -> None:
        self.begun = begun
        self.most = most
        self.turn = turn
        """True if it holds up the turns of other sessions; otherwise it runs beside them."""
        self.base = base
        """Commands that each track had been given before the slice."""
        self.count = 0
        self.late = False
        """True once the slice has taken so long that other sessions no longer wait for it."""

    def given(self, tracks: Iterable[PooledStream]) -> int:
        """Returns how many commands these tracks have been given since the slice began."""
        base = self.base
        return sum(track.given - base.get(track, track.since) for track in tracks)


Changes = dict[int, bool]
"""Events that commands record or destroy. True: the commands record the event once and do no more to it."""


class PeekedBatch(NamedTuple):
    """A queued batch that has been decoded ahead of its turn."""

    batch: commands_pb2.Batch
    changes: Changes | None
    """Changes to events; None where the batch affects the commands behind it in other ways."""
    answered: frozenset[int]
    """Places of commands that have been answered already."""


class Backlog:
    """The backlog of one session. Device-handle thread only."""

    __slots__ = (
        "active", "ahead", "awaited", "chances", "closing", "copies", "counted", "ended", "forgiven",
        "frame", "frames", "late_at", "launches", "left", "metered", "need", "open", "owes", "pace", "paid", "paused",
        "place", "room", "session", "since", "slices", "sparse", "standstill", "transfers", "under", "used", "wanting",
        "work",
    )  # fmt: skip

    def __init__(self, session: DeviceSession, standstill_s: float = STANDSTILL_S) -> None:
        self.session = session
        # What waits.
        self.frames: deque[Frame] = deque()
        self.frame: Frame | None = None
        """The frame in execution."""
        self.under: commands_pb2.Batch | None = None  # the batch in it
        self.place = self.paused = 0
        """The place of the next command in the batch, and the nanoseconds for which execution of the batch has
        paused."""
        self.work: Iterator[None] | None = None
        """The generator that executes the rest of the frame."""
        self.ahead: dict[int, PeekedBatch] = {}
        """Batches among the frames that have been decoded, by `id` of the frame."""
        self.awaited: dict[int, list[commands_pb2.Command]] = {}
        """Queries of events that have not been recorded yet, by event."""
        self.transfers: set[int] = set()
        """Uploads with messages among the frames."""
        self.closing = self.ended = False
        """`closing`: the end of the session is among the frames. `ended`: it has been executed."""
        self.wanting = self.copies = False
        """`wanting`: the session has commands with device work, as far as they have been decoded. `copies`: they are
        copies."""
        # What it may do now.
        self.need = NOTHING
        """Device work of the next command, if execution stopped before it."""
        self.left = self.room = 0
        """`left`: commands of any kind that may run before other sessions have a turn. `room`: those of them that may
        submit work to the device."""
        self.launches = False
        """True if these may be launches."""
        self.standstill: Standstill[LogicalStream] = Standstill(standstill_s)
        # What is on the device.
        self.active = False
        """True if the session has commands that wait, or work on the device."""
        self.sparse = True
        """True if all commands ran at once when the session last had any."""
        self.metered = self.forgiven = False
        """`metered`: device time is counted although the session is in no slice. `forgiven`: the
        session is kept out of the queue for turns, and pays nothing: its slice on the device was submitted while it was
        alone."""
        self.open: Slice | None = None
        self.slices: deque[Slice] = deque()
        """Slices that are on the device, oldest first."""
        self.since = 0.0
        """The time at which the last slice was done, or the first of a series began."""
        self.late_at = 0.0
        """The time at which the oldest slice is late."""
        self.chances = Chances()
        self.pace = Pace()
        self.used = 0.0
        """Seconds of device time."""
        self.paid = 0.0
        """Value of `used` at `since`."""
        self.owes = math.inf
        """See `hearthd.device.scheduler.device_time.DeviceTimePayer`."""
        self.counted = 0
        """Commands that were done at `since`; for a session in no slice."""

    @property
    def session_id(self) -> str:
        return self.session.id

    def tracks(self) -> list[PooledStream]:
        """Returns the tracks of its streams, each once."""
        return self.session.streams.tracks

    def busy_tracks(self) -> list[PooledStream]:
        """Returns the tracks that may have work of the session, including its part in collectives."""
        streams = self.session.streams
        collectives = streams.collectives
        return list(dict.fromkeys((*streams.tracks, *collectives))) if collectives else streams.tracks

    def collectives(self, tracks: StreamPool) -> list[PooledStream]:
        """Returns the communicators' tracks with work of the session that is not known to be done."""
        return tracks.undone(self.session.streams.collectives)

    @property
    def waiting(self) -> bool:
        """True if there are commands that have not run."""
        return self.work is not None or bool(self.frames)

    @property
    def asks(self) -> int:
        """The device work of the next waiting commands: of those in order, and of those that were deferred."""
        need = self.need if self.work is not None else NOTHING
        for track in self.tracks():
            if track.asked > need:
                need = LAUNCH if track.asked > 1 else COPY
        return need

    @property
    def in_turn(self) -> bool:
        """True if the turns of other sessions wait for this session."""
        return (self.open is not None and self.open.turn) or any(each.turn and not each.late for each in self.slices)

    @property
    def late(self) -> bool:
        """True if a slice of the session is late."""
        return any(each.late for each in self.slices)

    @property
    def on_device(self) -> int:
        """Commands in slices that are not done and not late."""
        return sum(each.count for each in self.slices if not each.late)

    def may(self, need: int) -> bool:
        """True if the next command may submit such work to the device now; otherwise execution stops before it."""
        if need == NOTHING or (self.room > 0 and (self.launches or need != LAUNCH)):
            self.need = NOTHING
            return True
        self.need = need
        return False

    def stops(self, stream: LogicalStream) -> bool:
        """True if execution stands still before a command for a stream that is full, or for which many other commands
        wait. Does not apply while sessions take turns: `room` is too small then."""
        track, standstill = stream.track, self.standstill
        if self.room < NEVER >> 1 or not standstill.lasts(track.index, track.finished, time.perf_counter()):
            return False
        standstill.stream = stream
        return True

    def stands_still(self, tracks: StreamPool) -> bool:
        """True if execution still has to stand still."""
        stream = self.standstill.stream
        if stream is None:
            return False
        self.standstill.stream = None
        full = (stream.track.budget <= 0 and not tracks.reap(stream.track)) or self.session.deferred.holds(stream)
        return full and not self.closing and self.stops(stream)

    def bar(self, tracks: StreamPool) -> None:
        """Closes the device to the session from now on."""
        self.standstill.stream = None
        self.room = 0
        for track in self.tracks():
            asked = track.asked
            tracks.bar(track, True, 0)
            track.asked = asked

    def let(self, tracks: StreamPool, most: int = NEVER, launches: bool = True) -> None:
        """Lets the session submit up to `most` commands from now on."""
        self.room = most
        self.launches = launches
        for track in self.tracks():
            tracks.bar(track, not launches, most)

    def done(self) -> int:
        """Returns the number of its commands that are known to be done."""
        return sum([track.finished - track.since for track in self.busy_tracks()])  # a generator takes twice as long

    def undone(self, tracks: StreamPool) -> list[PooledStream]:
        """Returns the tracks with work of the session that is not known to be done."""
        return tracks.undone(self.busy_tracks())

    def under_way(self, tracks: StreamPool) -> bool:
        """True if the device has work of the session that is not known to be done."""
        return bool(tracks.undone(self.busy_tracks()))

    def learn(self, count: int, begun: float, now: float) -> None:
        """Records that `count` commands, which began to be submitted at `begun`, were done since `since`."""
        self.pace.learn(count, self.used - self.paid, now - begun)
        self.paid, self.since = self.used, now

    # ---- frames that are not executed in order ----

    def behind(self, frame: Frame) -> bool:
        """True if a message of an upload has to stay behind waiting commands: its Write may be among them."""
        if not self.waiting:
            self.transfers.clear()
            return False
        session = self.session
        if frame.id not in self.transfers and (frame.id in session.uploads or frame.id in session.over):
            return False
        self.transfers.add(frame.id)
        return True

    def withdraw(self, call: int) -> bool:
        """Removes a single call that waits here; True if there was one."""
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
        """Removes the current frame and all frames before the end of the session, and returns them."""
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
