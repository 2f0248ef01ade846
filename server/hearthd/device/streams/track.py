"""A pooled CUDA stream, called a track: work under way on it, and its remaining budget."""

from __future__ import annotations

from collections import deque

from hearthd.device.backend.resources import Event, Stream
from hearthd.device.streams.pending_outcomes import Callback

WINDOW = 128
WINDOWS = 6
WHOLE_WINDOW = WINDOW * WINDOWS
"""A track takes WINDOW x WINDOWS commands beyond what is known to be done: a launch blocks at about 1,000 queued."""

TIME_NEXT, TIMED = 2, 1
"""`TIME_NEXT`: the next command is timed. `TIMED`: the next command follows a timed one. 0: neither."""

RESTS = 32
"""The next command is timed each time that a track has become idle this many times."""

NEVER = 1 << 62
"""A number of commands that no track is ever given."""


class LaunchProbe:
    """A timed command: if it is a launch, the time from hand-over to the driver to observed completion."""

    __slots__ = ("begun_ns", "launch", "position")

    def __init__(self, position: int, begun_ns: int) -> None:
        self.position = position
        self.begun_ns = begun_ns
        self.launch = False
        """True once the command is known to be a launch."""


class PooledStream:
    """A pooled stream of `hearthd.device.streams.stream_pool.StreamPool`. Device-handle thread only."""

    __slots__ = (
        "asked",
        "barred",
        "budget",
        "done_position",
        "finished",
        "held",
        "index",
        "kept",
        "kept_since",
        "launched",
        "own",
        "pending",
        "priority",
        "probe",
        "rests",
        "returned",
        "since",
        "stop",
        "stream",
        "timing",
        "users",
    )

    def __init__(self, index: int, stream: Stream, priority: int) -> None:
        self.index = index
        self.stream = stream
        self.priority = priority
        self.budget = WHOLE_WINDOW
        self.returned = 0
        """Total of the budget that its windows have returned."""
        self.held = False
        """True if launches have to wait although there is room; see `StreamPool.hold` and `StreamPool.bar`."""
        self.barred = False
        self.stop = NEVER
        """Limit of `given` before the turn of another session; see `hearthd.device.scheduler.fair_share`."""
        self.asked = 0
        """Commands that found the track barred: 1, copies only; 2, launches too."""
        self.since = 0
        """Value of `given` when its first user came."""
        self.users = 0
        self.own = False
        """True if the track is not shared, however few tracks there are."""
        self.kept = 0
        """Number of waits for its work to be done before it gets a new user; see `track_choice`."""
        self.kept_since = 0.0
        self.done_position = 0
        self.finished = 0
        """Commands, among those `given`, that are known to be done."""
        self.timing = TIME_NEXT
        self.probe: LaunchProbe | None = None
        """The launch that is being timed."""
        self.rests = 0
        """Number of times that it has become idle."""
        self.pending: deque[tuple[int, Event, Callback]] = deque()
        self.launched: deque[tuple[int, str, str]] = deque(maxlen=16)
        """(position, kernel, session) of the latest launches, to name what was running when the device is lost."""

    @property
    def given(self) -> int:
        """Commands that it has been given so far, each launch of a program counted."""
        return WHOLE_WINDOW + self.returned - self.budget

    @property
    def room(self) -> int:
        """Commands that it may still be given before the turn of another session."""
        return self.stop - self.given

    @property
    def full(self) -> bool:
        """True if commands of all kinds have to wait."""
        if self.stop != NEVER and self.given >= self.stop:
            self.asked |= 1
            return True
        return self.budget <= 0

    @property
    def closed(self) -> bool:
        """True if launches have to wait."""
        if self.held:
            if self.barred:
                self.asked |= 2
            return True
        return self.full
