"""Backlog of a session: its waiting commands, and its work on the device."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from hearth_proto.frames import Frame, Kind
from hearth_proto.v1 import commands_pb2
from hearthd.device.scheduler.extra_slices import ExtraSlices
from hearthd.device.scheduler.pace import Pace
from hearthd.device.scheduler.standstill import TIMEOUT_S as STANDSTILL_S
from hearthd.device.scheduler.standstill import Standstill
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_pool import NEVER, PooledStream, StreamPool

NOTHING, COPY, LAUNCH = range(3)
"""Kinds of device work of a command. Copies run concurrently with the kernels of other sessions; launches are limited
to time slices."""

NEEDS = {
    "launches": LAUNCH,
    "launch": LAUNCH,
    "launch_graph": LAUNCH,
    "launch_prepared": LAUNCH,
    "dispatch": LAUNCH,
    "write": COPY,
    "write_pointers": COPY,
    "read": COPY,
    "copy": COPY,
    "fill": COPY,
    "checkpoint": COPY,
}


class Slice:
    """Commands that a session submitted in one time slice; `count` is their number once the slice is closed."""

    __slots__ = ("base", "count", "in_turn", "late", "limit", "start")

    def __init__(self, start: float, limit: int, in_turn: bool, base: dict[PooledStream, int]) -> None:
        self.start = start
        self.limit = limit
        self.in_turn = in_turn
        """True if the time slices of other sessions wait for this slice; otherwise it runs concurrently with them."""
        self.base = base
        """Number of commands submitted to each track before the slice."""
        self.count = 0
        self.late = False
        """True once the slice has taken so long that other sessions no longer wait for it to complete."""

    def submitted(self, tracks: Iterable[PooledStream]) -> int:
        """Returns the number of commands submitted to these tracks since the slice began."""
        base = self.base
        return sum(track.submitted - base.get(track, track.first_submitted) for track in tracks)


class Work(Protocol):
    """The commands of a frame that is being executed: `hearthd.device.scheduler.batch_run`."""

    @property
    def remaining(self) -> Sequence[commands_pb2.Command] | None:
        """The commands of a batch that have not run, including one that has run in part; None for a call."""
        ...

    def run(self) -> bool:
        """Runs commands until the session must stop. Returns True once all have run."""
        ...


Changes = dict[int, bool]
"""Events that commands record or destroy. True: the commands record the event exactly once and do nothing else to
it."""


class PeekedBatch(NamedTuple):
    """A queued batch that was decoded before its time slice."""

    batch: commands_pb2.Batch
    changes: Changes | None
    """Changes to events; None if the batch affects later commands in other ways."""
    answered: frozenset[int]
    """Indices of commands that have already been answered."""


class Backlog:
    """The backlog of one session. Device-handle thread only."""

    __slots__ = (
        "active",
        "awaited_queries",
        "closing",
        "copies",
        "debt",
        "done_at_since",
        "ended",
        "exempt",
        "extra_slices",
        "frame",
        "frames",
        "late_at",
        "launches",
        "metered",
        "need",
        "open",
        "pace",
        "peeked",
        "quota",
        "room",
        "session",
        "since",
        "slices",
        "sparse",
        "standstill",
        "transfers",
        "used",
        "used_at_since",
        "wanting",
        "work",
    )  # fmt: skip

    def __init__(self, session: DeviceSession, standstill_s: float = STANDSTILL_S) -> None:
        self.session = session
        # Waiting commands.
        self.frames: deque[Frame] = deque()
        self.frame: Frame | None = None
        """The frame that is being executed."""
        self.work: Work | None = None
        """The rest of that frame; None if all of it has been executed."""
        self.peeked: dict[int, PeekedBatch] = {}
        """Decoded batches among the frames, by `id` of the frame."""
        self.awaited_queries: dict[int, list[commands_pb2.Command]] = {}
        """Queries of events that have not been recorded yet, by event handle."""
        self.transfers: set[int] = set()
        """Uploads that have messages among the frames."""
        self.closing = self.ended = False
        """`closing`: the CLOSE frame of the session is in the queue. `ended`: it has been executed."""
        self.wanting = self.copies = False
        """`wanting`: the session has commands with device work among those that have been decoded. `copies`: these
        commands are copies."""
        # Current permissions.
        self.need = NOTHING
        """Device work of the next command, if execution stopped before it."""
        self.quota = self.room = 0
        """`quota`: commands of any kind that may run before other sessions must run. `room`: how many of these may
        submit work to the device."""
        self.launches = False
        """True if the commands that submit work may be launches; otherwise only copies."""
        self.standstill: Standstill[LogicalStream] = Standstill(standstill_s)
        # Work on the device.
        self.active = False
        """True if the session has waiting commands, or work on the device."""
        self.sparse = True
        """True if no command had to wait when the session last had any."""
        self.metered = self.exempt = False
        """`metered`: device time is counted although the session is in no slice. `exempt`: the session is kept out of
        the queue for time slices and is charged nothing, because its slice on the device was submitted while it was
        alone."""
        self.open: Slice | None = None
        self.slices: deque[Slice] = deque()
        """Slices on the device, oldest first."""
        self.since = 0.0
        """Time at which the last slice completed, or at which the first slice of a series began, in seconds."""
        self.late_at = 0.0
        """Time after which the oldest slice is late, in seconds."""
        self.extra_slices = ExtraSlices()
        self.pace = Pace()
        self.used = 0.0
        """Device time charged so far, in seconds."""
        self.used_at_since = 0.0
        """Value of `used` at `since`."""
        self.debt = math.inf
        """Seconds that the session must still pay for its work on the device while another session can pay; infinity
        means no limit."""
        self.done_at_since = 0
        """Number of commands that were done at `since`; used while the session is in no slice."""

    def tracks(self) -> list[PooledStream]:
        """Returns the tracks of the session's streams, each once."""
        return self.session.streams.tracks

    def busy_tracks(self) -> list[PooledStream]:
        """Returns the tracks that may have work of the session, including those of communicators that it uses."""
        streams = self.session.streams
        collectives = streams.collectives
        return list(dict.fromkeys((*streams.tracks, *collectives))) if collectives else streams.tracks

    def collectives(self, tracks: StreamPool) -> list[PooledStream]:
        """Returns the communicators' tracks that have work of the session not known to be done."""
        return tracks.unfinished(self.session.streams.collectives)

    @property
    def waiting(self) -> bool:
        """True if there are commands that have not been executed."""
        return self.work is not None or bool(self.frames)

    @property
    def waiting_work(self) -> int:
        """Device work of the next waiting commands, both the queued command and the deferred ones."""
        need = self.need if self.work is not None else NOTHING
        for track in self.tracks():
            if track.requested > need:
                need = LAUNCH if track.requested > 1 else COPY
        return need

    @property
    def in_turn(self) -> bool:
        """True if the time slices of other sessions wait for this session."""
        return (self.open is not None and self.open.in_turn) or any(
            time_slice.in_turn and not time_slice.late for time_slice in self.slices
        )

    @property
    def late(self) -> bool:
        """True if a slice of the session is late."""
        return any(time_slice.late for time_slice in self.slices)

    @property
    def on_device(self) -> int:
        """Number of commands in slices that are neither done nor late."""
        return sum(time_slice.count for time_slice in self.slices if not time_slice.late)

    def may_submit(self, need: int) -> bool:
        """True if the next command may submit this kind of work now; otherwise execution stops before it."""
        if need == NOTHING or (self.room > 0 and (self.launches or need != LAUNCH)):
            self.need = NOTHING
            return True
        self.need = need
        return False

    def stands_still_before(self, stream: LogicalStream) -> bool:
        """True if the queue stands still before a command for `stream`, which is then recorded in `standstill`.

        The caller has checked that the stream is full, or that deferred commands use it. False once the stream has
        completed no command for a while, and always while sessions run in time slices: `room` is smaller then.
        """
        track, standstill = stream.track, self.standstill
        if self.room < NEVER >> 1 or not standstill.continues(track.index, track.finished, time.perf_counter()):
            return False
        standstill.stream = stream
        return True

    def stands_still(self, tracks: StreamPool) -> bool:
        """True if the queue must still stand still."""
        stream = self.standstill.stream
        if stream is None:
            return False
        self.standstill.stream = None
        full = (stream.track.budget <= 0 and not tracks.reap(stream.track)) or self.session.deferred.holds(stream)
        return full and not self.closing and self.stands_still_before(stream)

    def forbid_submission(self, tracks: StreamPool) -> None:
        """Prevents the session from submitting work to the device until `allow_submission` is called."""
        self.standstill.stream = None
        self.room = 0
        for track in self.tracks():
            requested = track.requested
            tracks.set_barred(track, True, 0)
            track.requested = requested

    def allow_submission(self, tracks: StreamPool, max_commands: int = NEVER, launches: bool = True) -> None:
        """Allows the session to submit up to `max_commands` commands; without `launches` only copies."""
        self.room = max_commands
        self.launches = launches
        for track in self.tracks():
            tracks.set_barred(track, not launches, max_commands)

    def done(self) -> int:
        """Returns the number of the session's commands that are known to be done."""
        # A generator expression takes twice as long.
        return sum([track.finished - track.first_submitted for track in self.busy_tracks()])

    def unfinished(self, tracks: StreamPool) -> list[PooledStream]:
        """Returns the tracks that have work of the session not known to be done."""
        return tracks.unfinished(self.busy_tracks())

    def update_pace(self, count: int, start: float, now: float) -> None:
        """Updates the pace: `count` commands, submitted from `start` on, were done between `since` and `now`."""
        self.pace.update(count, self.used - self.used_at_since, now - start)
        self.used_at_since, self.since = self.used, now

    # ---- frames that are not executed in order ----

    def must_enqueue(self, frame: Frame) -> bool:
        """True if a message of an upload must wait for the queued commands: the upload's Write may be among them."""
        if not self.waiting:
            self.transfers.clear()
            return False
        session = self.session
        if frame.id not in self.transfers and (frame.id in session.uploads or frame.id in session.over):
            return False
        self.transfers.add(frame.id)
        return True

    def withdraw(self, call: int) -> bool:
        """Removes a single call that is queued here; True if it was found."""
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
        """Removes and returns the current frame and all queued frames before the CLOSE frame of the session."""
        dropped = [self.frame] if self.frame is not None else []
        self.peeked.clear()
        self.awaited_queries.clear()
        self.work = self.standstill.stream = None
        self.need = NOTHING
        while self.frames and self.frames[0].kind != Kind.CLOSE:
            dropped.append(self.frames.popleft())
        return dropped


def _is_call(frame: Frame | None, call: int) -> bool:
    return frame is not None and frame.kind == Kind.CALL and frame.id == call
