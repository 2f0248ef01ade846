"""Streams under a client's handles, and their state: events, profiles, a capture in progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hearthd.device.backend.graph_nodes import ConditionalNode, CopyNode, FillNode, HostCopyNode
from hearthd.device.backend.resources import Event
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.stretch import Stretch
from hearthd.device.streams.pending_outcomes import PendingOutcome
from hearthd.device.streams.stream_errors import StreamErrors, StreamFailure
from hearthd.device.streams.stream_pool import PooledStream


class Capturing(Protocol):
    """A capture in progress; see `hearthd.device.graphs.capture`."""

    @property
    def entry(self) -> Any:
        """The graph that is being recorded."""
        ...

    @property
    def lane(self) -> int:
        """Number of the stream in the capture, from 0: the stream where the capture began."""
        ...

    def admit(self, origin: Any, command: Any) -> None:
        """Admits a command (`hearthd.device.operation.Origin`, and its `commands_pb2.Command`) on arrival.

        Raises Refusal if the command cannot be captured.
        """
        ...

    def record(self, origin: Any, event: EventEntry) -> Any:
        """Returns the operation that makes the event a point of the graph."""
        ...

    def wait(self, origin: Any, event: EventEntry) -> Any:
        """Returns the operation that orders the stream's next nodes after the event.

        A stream outside the capture joins it. Raises Refusal if the event is not of this capture.
        """
        ...

    def add_launch(self, bound: Any) -> None:
        """Records a `BoundLaunch`, in the order of the stream. Raises Refusal if a graph cannot contain the launch."""
        ...

    def add_launches(self, launches: Sequence[Any], count: int) -> None:
        """Records prepared `BoundLaunch`es, `count` times in sequence."""
        ...

    def add_graph(self, graph: Any, count: int) -> None:
        """Records the nodes of another graph (`hearthd.device.graphs.capture.GraphEntry`), `count` times."""
        ...

    def add_copy(self, destination: Buffer, source: Buffer, node: CopyNode) -> None:
        """Records a copy between ranges of the two buffers."""
        ...

    def add_fill(self, buffer: Buffer, node: FillNode) -> None:
        """Records a fill of a range of the buffer."""
        ...

    def add_host_copy(self, buffer: Buffer, node: HostCopyNode) -> None:
        """Records a copy between a range of the buffer and memory that the client shares."""
        ...

    def begin_conditional(self, buffer: Buffer, node: ConditionalNode) -> None:
        """Records a conditional node whose value is in the buffer. Its body is recorded until `end_conditional`."""
        ...

    def begin_case(self, value: int) -> None:
        """Begins the body of the innermost switch for a value. It is recorded until `end_conditional`."""
        ...

    def begin_else(self) -> None:
        """Begins the second body of an `if` that has just ended. It is recorded until `end_conditional`."""
        ...

    def end_conditional(self) -> None:
        """Ends the innermost body, or the innermost switch. Raises Refusal if there is none."""
        ...

    def failed(self, failure: StreamFailure) -> None:
        """Marks the capture as failed, because a command of the stream was not recorded."""
        ...

    def discard(self, session: Any) -> None:
        """Drops the recording; the stream executes its commands again.

        `session` is the `hearthd.device.session.session.DeviceSession` that owns the stream.
        """
        ...


class LogicalStream:
    """A client's stream. Several logical streams may share a track, but never errors."""

    __slots__ = (
        "_collectives",
        "capture",
        "errors",
        "flights",
        "handle",
        "launch_timeout",
        "marked",
        "profiles",
        "session",
        "starting",
        "successor",
        "track",
    )

    def __init__(self, handle: int, track: PooledStream, session: str = "", launch_timeout: float = 0.0) -> None:
        self.handle = handle
        self.track = track
        self.session = session
        """Id of the session that owns the stream."""
        self.launch_timeout = launch_timeout
        """Time limit, in seconds, of launches without a separate limit; 0: no limit."""
        self.marked: dict[LogicalStream, None] | None = None
        """The table's set of marked streams, which this stream joins when it has failures or collectives; see
        `hearthd.device.session.stream_table`."""
        self.errors = StreamErrors()
        self.successor: LogicalStream | None = None
        """The stream that reports the failures of this stream after its destruction."""
        self._collectives: tuple[PooledStream, ...] = ()
        self.flights: dict[PendingOutcome, None] = {}
        """Collectives of the stream whose outcome is pending."""
        self.capture: Capturing | None = None
        """The capture that records the stream's commands instead of executing them, from the arrival of BeginCapture
        on; None without a capture."""
        self.starting: list[ProfileEntry] = []
        """Profiles whose clock starts with the stream's next work."""
        self.profiles: list[ProfileEntry] = []
        """Open profiles of the stream, which record its failures."""

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
        """Records the failure of a command, to be reported by a later wait."""
        reporter = self.successor or self
        reporter.errors.add(failure)
        reporter._mark()

    def pop_failures(self, before: tuple[int, int] | None) -> list[StreamFailure]:
        """Removes and returns the unreported failures of commands before this (batch, index); None: of all commands.

        They are found also if the stream has been destroyed, and its successor would report them.
        """
        if self.successor is not None:
            return self.successor.errors.pop_all(before, stream=self.handle)
        return self.errors.pop_all(before) if self.errors else []

    def hand_over(self, successor: LogicalStream) -> None:
        """Called when the stream is destroyed: `successor` reports the present and later failures of this stream."""
        self.errors.hand_over(successor.errors)
        self.successor = successor
        successor._mark()

    def _mark(self) -> None:
        if self.marked is not None:
            self.marked[self] = None


class EventMark:
    """The last record of an event, which the handles of several sessions may share."""

    __slots__ = ("done", "event", "holders")

    def __init__(self) -> None:
        self.event: Event | None = None
        """The driver's event; None until the event has been recorded."""
        self.done = True
        """True if the event has not been recorded, or the device was idle when it was recorded. The driver may need
        some time to complete the record itself, in particular if processes take turns on the device."""
        self.holders = 1
        """Number of handles. The last one releases the driver's event."""


class EventEntry:
    """A client's event; `event` is None until it has been recorded."""

    __slots__ = ("attached", "capture", "handle", "mark", "point", "published")

    def __init__(self, handle: int, mark: EventMark | None = None) -> None:
        self.handle = handle
        self.mark = EventMark() if mark is None else mark
        self.attached = False
        """True for the event of another session, which published it."""
        self.published = False
        """True once other sessions may have attached the event."""
        self.capture: Any = None
        """The capture in which the event was recorded last (`Capturing`); None if it was recorded outside a capture."""
        self.point: frozenset[int] = frozenset()
        """Nodes of the graph that complete before the event, if it was recorded in a capture."""

    @property
    def event(self) -> Event | None:
        """The driver's event of the last record; None until the event has been recorded."""
        return self.mark.event

    @event.setter
    def event(self, event: Event | None) -> None:
        self.mark.event = event


class ProfileEntry:
    """A client's profile: the start of its clock, and the failures in its stretch of the stream."""

    __slots__ = ("handle", "start", "started_ns", "stream", "stretch")

    def __init__(self, handle: int, stream: LogicalStream, started_ns: int, stretch: Stretch) -> None:
        self.handle = handle
        self.stream = stream
        self.started_ns = started_ns
        self.stretch = stretch
        self.start: Event | None = None
