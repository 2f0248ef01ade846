"""Streams under a client's handles, and what is on them: events, profiles, a capture that is under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hearthd.device.backend.graph_nodes import CopyNode, FillNode
from hearthd.device.backend.resources import Event
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.stretch import Stretch
from hearthd.device.streams.pending_outcomes import PendingOutcome
from hearthd.device.streams.stream_errors import StreamErrors, StreamFailure
from hearthd.device.streams.stream_pool import PooledStream


class Capturing(Protocol):
    """A capture under way; see `hearthd.device.graphs.capture`."""

    @property
    def entry(self) -> Any:
        """The graph that is being recorded."""
        ...

    def admit(self, origin: Any) -> None:
        """A command (`hearthd.device.operation.Origin`) has arrived: refuses it, or says whether it is recorded."""
        ...

    def add_launch(self, bound: Any) -> None:
        """A `BoundLaunch`, in the stream's order. Raises Refusal for what a graph cannot hold."""
        ...

    def add_launches(self, launches: Sequence[Any], count: int) -> None:
        """Prepared `BoundLaunch`es, `count` times."""
        ...

    def add_copy(self, destination: Buffer, source: Buffer, node: CopyNode) -> None:
        """A copy, from range to range of the two buffers."""
        ...

    def add_fill(self, buffer: Buffer, node: FillNode) -> None:
        """A fill of a range of the buffer."""
        ...

    def failed(self, failure: StreamFailure) -> None:
        """A command of the stream was not recorded: the capture cannot end well any more."""
        ...

    def discard(self, session: Any) -> None:
        """Forgets what was recorded; the stream of the session (`hearthd.device.session.session.DeviceSession`)
        runs its commands again."""
        ...


class LogicalStream:
    """A client's stream. Folded streams share a track, never errors."""

    __slots__ = (
        "_collectives",
        "capture",
        "errors",
        "flights",
        "handle",
        "heir",
        "launch_timeout",
        "marked",
        "profiles",
        "session",
        "starting",
        "track",
    )

    def __init__(self, handle: int, track: PooledStream, session: str = "", launch_timeout: float = 0.0) -> None:
        self.handle = handle
        self.track = track
        self.session = session
        """Whose it is, by id."""
        self.launch_timeout = launch_timeout
        """Seconds, for launches that have no limit of their own; 0: none."""
        self.marked: dict[LogicalStream, None] | None = None
        """Where it enters itself when it has failures, or collectives; see `hearthd.device.session.stream_table`."""
        self.errors = StreamErrors()
        self.heir: LogicalStream | None = None
        """Who reports its failures: it is destroyed."""
        self._collectives: tuple[PooledStream, ...] = ()
        self.flights: dict[PendingOutcome, None] = {}
        """Its collectives of which nobody knows yet how they end."""
        self.capture: Capturing | None = None
        """What records the stream's commands instead of running them, from the arrival of BeginCapture on."""
        self.starting: list[ProfileEntry] = []
        """Profiles whose clock starts with the stream's next work."""
        self.profiles: list[ProfileEntry] = []
        """Profiles that are open on it: what fails belongs to them."""

    @property
    def collectives(self) -> tuple[PooledStream, ...]:
        """The communicators' tracks, while work of this stream may be under way on them."""
        return self._collectives

    @collectives.setter
    def collectives(self, tracks: tuple[PooledStream, ...]) -> None:
        self._collectives = tracks
        if tracks:
            self._mark()

    def failed(self, failure: StreamFailure) -> None:
        """A command of it has failed, and nobody has been told."""
        self.errors.add(failure)
        (self.heir or self)._mark()

    def hand_over(self, heir: LogicalStream) -> None:
        """It is destroyed: `heir` reports its failures, and those that are still to come."""
        self.errors.hand_over(heir.errors)
        self.heir = heir
        heir._mark()

    def _mark(self) -> None:
        if self.marked is not None:
            self.marked[self] = None


class EventEntry:
    """A client's event; `event` is None until it has been recorded."""

    __slots__ = ("event", "handle")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.event: Event | None = None


class ProfileEntry:
    """A client's profile: where its clock started, and what failed in its stretch of the stream."""

    __slots__ = ("handle", "start", "started_ns", "stream", "stretch")

    def __init__(self, handle: int, stream: LogicalStream, started_ns: int, stretch: Stretch) -> None:
        self.handle = handle
        self.stream = stream
        self.started_ns = started_ns
        self.stretch = stretch
        self.start: Event | None = None
