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
"""Whether the command that comes next is timed, or is the one behind a command that is; 0: neither."""

RESTS = 32
"""Every so many times that a track has come to its end, the command that comes next is timed."""

NEVER = 1 << 62
"""A number of commands that no track is ever given."""


class LaunchProbe:
    """A timed command: if it is a launch, the time from hand-over to the driver to observed completion."""

    __slots__ = ("begun_ns", "launch", "position")

    def __init__(self, position: int, begun_ns: int) -> None:
        self.position = position
        self.begun_ns = begun_ns
        self.launch = False
        """Whether it is known to be one."""


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
        """What its windows have given back to the budget in all."""
        self.held = False
        """Whether launches have to wait, though there is room; see `StreamPool.hold` and `StreamPool.bar`."""
        self.barred = False
        self.stop = NEVER
        """What it may be `given` before it is somebody else's turn; see `hearthd.device.scheduler.fair_share`."""
        self.asked = 0
        """Of those who found it barred: 1, copies only, 2, launches too."""
        self.since = 0
        """What it had been given when its first user came."""
        self.users = 0
        self.own = False
        """Whether nobody else gets it, however few tracks there are."""
        self.kept = 0
        """How many wait for it to be done before anybody gets it; see `track_choice`."""
        self.kept_since = 0.0
        self.done_position = 0
        self.finished = 0
        """How many of the commands that it was `given` are known to be done."""
        self.timing = TIME_NEXT
        self.probe: LaunchProbe | None = None
        """The launch that is being timed."""
        self.rests = 0
        """How often it has come to its end."""
        self.pending: deque[tuple[int, Event, Callback]] = deque()
        self.launched: deque[tuple[int, str, str]] = deque(maxlen=16)
        """(position, kernel, session) of the latest launches, to name what was running when the device is lost."""

    @property
    def given(self) -> int:
        """How many commands it has been given so far, each launch of a program counted."""
        return WHOLE_WINDOW + self.returned - self.budget

    @property
    def room(self) -> int:
        """How many more it may be given before it is somebody else's turn."""
        return self.stop - self.given

    @property
    def full(self) -> bool:
        """Whether commands of all kinds have to wait."""
        if self.stop != NEVER and self.given >= self.stop:
            self.asked |= 1
            return True
        return self.budget <= 0

    @property
    def closed(self) -> bool:
        """Whether launches have to wait."""
        if self.held:
            if self.barred:
                self.asked |= 2
            return True
        return self.full
