"""Pooled CUDA stream, called a track: work under way on it, and its remaining budget."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hearthd.device.backend.resources import Event, Stream
from hearthd.device.streams.pending_outcomes import Callback

WINDOW = 128
WINDOWS = 6
WHOLE_WINDOW = WINDOW * WINDOWS
"""Most commands on a track that are not known to be done, WINDOW x WINDOWS. The driver blocks at about 1,000 queued
launches."""

TIME_NEXT, TIMED = 2, 1
"""States of `PooledStream.timing`. `TIME_NEXT`: the next launch is to be timed. `TIMED`: the last launch is timed, and
its end must be noticed. 0: neither."""

IDLE_PERIODS = 32
"""The first launch of each stream is timed, then one in `WINDOW` commands, and one each time that a track has become
idle this many times."""

NEVER = 1 << 62
"""A limit that no number of commands reaches."""


class LaunchProbe(NamedTuple):
    """A timed launch: measures the time from submission to the driver until completion is noticed."""

    position: int
    start_ns: int


class PooledStream:
    """A pooled stream of `hearthd.device.streams.stream_pool.StreamPool`. Device-handle thread only."""

    __slots__ = (
        "barred",
        "budget",
        "copied_at",
        "done_position",
        "exclusive",
        "finished",
        "first_submitted",
        "held",
        "hold_count",
        "idle_count",
        "index",
        "launched",
        "pending",
        "priority",
        "probe",
        "requested",
        "returned",
        "slice_limit",
        "stream",
        "timing",
        "users",
        "withheld_since",
    )

    def __init__(self, index: int, stream: Stream, priority: int) -> None:
        self.index = index
        self.stream = stream
        self.priority = priority
        self.budget = WHOLE_WINDOW
        self.returned = 0
        """Total budget that completed windows have returned."""
        self.held = False
        """True if launches must wait although the track has room; see `StreamPool.set_held` and `set_barred`."""
        self.barred = False
        self.slice_limit = NEVER
        """Limit of `submitted` in the current time slice; see `hearthd.device.scheduler.fair_share`."""
        self.requested = 0
        """Kinds of commands that found the track barred. 1: copies only; 2 or 3: launches too."""
        self.first_submitted = 0
        """Value of `submitted` when the track was assigned to its first current user."""
        self.users = 0
        self.exclusive = False
        """True if the track must not be shared, however few tracks there are."""
        self.hold_count = 0
        """Number of reasons to withhold the track from new users until its work is done; see `track_choice`."""
        self.withheld_since = 0.0
        self.done_position = 0
        self.copied_at = 0
        """Position of the latest copy from or to memory that a client shares."""
        self.finished = 0
        """Number of commands, among those `submitted`, that are known to be done."""
        self.timing = TIME_NEXT
        self.probe: LaunchProbe | None = None
        """The launch that is being timed; None if there is none."""
        self.idle_count = 0
        """Number of times that the track has become idle."""
        self.pending: deque[tuple[int, Event, Callback]] = deque()
        self.launched: deque[tuple[int, str, str]] = deque(maxlen=16)
        """(position, kernel, session) of the latest launches, used to name the running kernels when the device is
        lost."""

    @property
    def submitted(self) -> int:
        """Number of commands submitted to the track so far, including those added by `StreamPool.charge`."""
        return WHOLE_WINDOW + self.returned - self.budget

    @property
    def room(self) -> int:
        """Number of commands that may still be submitted in the current time slice."""
        return self.slice_limit - self.submitted

    @property
    def full(self) -> bool:
        """True if commands of all kinds must wait. Records the request in `requested`."""
        if self.slice_limit != NEVER and self.submitted >= self.slice_limit:
            self.requested |= 1
            return True
        return self.budget <= 0

    @property
    def closed(self) -> bool:
        """True if launches must wait. Records the request in `requested`."""
        if self.held:
            if self.barred:
                self.requested |= 2
            return True
        return self.full
