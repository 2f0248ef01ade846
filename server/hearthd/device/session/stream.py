"""Streams under a client's handles, and their state: events, profiles, a capture under way."""

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
        """The graph in recording."""
        ...

    def admit(self, origin: Any) -> None:
        """Takes note of a command (`hearthd.device.operation.Origin`) that has arrived: records it, or raises
        Refusal."""
        ...

    def add_launch(self, bound: Any) -> None:
        """Records a `BoundLaunch`, in the stream's order. Raises Refusal for a launch that a graph cannot hold."""
        ...

    def add_launches(self, launches: Sequence[Any], count: int) -> None:
        """Records prepared `BoundLaunch`es, `count` times."""
        ...

    def add_copy(self, destination: Buffer, source: Buffer, node: CopyNode) -> None:
        """Records a copy, from range to range of the two buffers."""
        ...

    def add_fill(self, buffer: Buffer, node: FillNode) -> None:
        """Records a fill of a range of the buffer."""
        ...

    def failed(self, failure: StreamFailure) -> None:
        """Takes note that a command of the stream was not recorded: the capture fails."""
        ...

    def discard(self, session: Any) -> None:
        """Drops the recording; the stream of the session (`hearthd.device.session.session.DeviceSession`) runs its
        commands again."""
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
        """Id of the session that it belongs to."""
        self.launch_timeout = launch_timeout
        """Seconds, for launches without a separate limit; 0: none."""
        self.marked: dict[LogicalStream, None] | None = None
        """The table's set of marked streams, which this stream joins when it has failures or collectives; see
        `hearthd.device.session.stream_table`."""
        self.errors = StreamErrors()
        self.heir: LogicalStream | None = None
        """The stream that reports the failures of this one after its destruction."""
        self._collectives: tuple[PooledStream, ...] = ()
        self.flights: dict[PendingOutcome, None] = {}
        """Collectives of the stream whose outcome is pending."""
        self.capture: Capturing | None = None
        """The capture that records the stream's commands instead of running them, from the arrival of BeginCapture
        on."""
        self.starting: list[ProfileEntry] = []
        """Profiles whose clock starts with the stream's next work."""
        self.profiles: list[ProfileEntry] = []
        """Profiles that are open on the stream: its failures belong to them."""

    @property
    def collectives(self) -> tuple[PooledStream, ...]:
        """The communicators' tracks that may have work of this stream."""
        return self._collectives

    @collectives.setter
    def collectives(self, tracks: tuple[PooledStream, ...]) -> None:
        self._collectives = tracks
        if tracks:
            self._mark()

    def failed(self, failure: StreamFailure) -> None:
        """Records the failure of a command that has not been reported."""
        self.errors.add(failure)
        (self.heir or self)._mark()

    def hand_over(self, heir: LogicalStream) -> None:
        """Called at destruction: `heir` reports the failures of this stream, also later ones."""
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
    """A client's profile: the start of its clock, and the failures in its stretch of the stream."""

    __slots__ = ("handle", "start", "started_ns", "stream", "stretch")

    def __init__(self, handle: int, stream: LogicalStream, started_ns: int, stretch: Stretch) -> None:
        self.handle = handle
        self.stream = stream
        self.started_ns = started_ns
        self.stretch = stretch
        self.start: Event | None = None
