"""What a session holds on a device: the objects behind its handles."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.doubts import Verdict
from hearthd.device.flows import Download, Upload
from hearthd.device.nodes import CopyNode, FillNode
from hearthd.device.permissions import Permissions
from hearthd.device.policy.deferral import Deferrable, Deferred
from hearthd.device.policy.errors import Failure, StreamErrors
from hearthd.device.policy.launch_plan import Plan
from hearthd.device.policy.ordering import Usage
from hearthd.device.policy.persistent import PersistentBlocks
from hearthd.device.policy.recall import Recall
from hearthd.device.policy.stretch import Stretch
from hearthd.device.server import Event, Function, Module
from hearthd.device.tracks import Track


class ReadOnly(NamedTuple):
    """Why a buffer cannot be written to, as a clause behind its name, and what to do about it."""

    why: str
    fix: str


class Buffer:
    """Device memory under a handle. `usage` orders its users; `failure` stands behind its contents."""

    __slots__ = (
        "address",
        "durable",
        "failure",
        "freed",
        "handle",
        "holders",
        "lost",
        "module",
        "place",
        "read_only",
        "reservation",
        "size",
        "usage",
    )

    def __init__(self, handle: int, size: int) -> None:
        self.handle = handle
        self.size = size
        self.address = 0
        self.reservation: Any = None
        """The `hearthd.device.reservations.Reservation` that it lies in; None: no memory of its own."""
        self.place: Any = None
        """The `hearthd.device.places.Place` that it shares with others, in the place of a reservation; None: it has its
        memory to itself."""
        self.read_only: ReadOnly | None = None
        self.holders = 0
        """Graphs and prepared launches that use it: its memory outlives its handle for them."""
        self.durable: Any = None
        """The `hearthd.device.snapshot.Durable` that keeps copies of it; None: it never had any."""
        self.freed = False
        self.module: ModuleEntry | None = None
        self.usage = Usage()
        self.failure: Failure | None = None
        self.lost: Refusal | None = None
        """Why there is no memory behind the handle."""

    def range(self, offset: int, size: int, what: str) -> int:
        """The address of `size` bytes at `offset`; refuses what lies outside."""
        if self.lost is not None:
            raise Refusal(
                Reason.BUFFER_LOST if self.lost.reason == Reason.BUFFER_LOST else Reason.ALLOCATION_FAILED,
                f"{what}: buffer {self.handle} has no memory behind it: {self.lost.message}",
                fix=self.lost.fix or "allocate it again",
                details={**self.lost.details, "cause": self.lost.reason},
            )
        if offset + size > self.size:
            raise Refusal(
                Reason.OUT_OF_BOUNDS,
                f"{what}: bytes [{offset}..{offset + size}) of buffer {self.handle}, which has {self.size}",
                fix="stay within the buffer",
                details={"buffer": self.handle, "offset": offset, "size": size, "buffer_size": self.size},
            )
        return self.address + offset

    def check_writable(self, what: str) -> None:
        """Raises Refusal(READ_ONLY) where it is published, or attached."""
        if self.read_only is not None:
            raise Refusal(
                Reason.READ_ONLY,
                f"{what}: buffer {self.handle} {self.read_only.why}",
                fix=self.read_only.fix,
                details={"buffer": self.handle},
            )


class TensorMapEntry:
    """A client's tensor map: the 128 bytes that the driver made of a buffer. Whoever uses it uses the buffer."""

    __slots__ = ("_data", "buffer", "handle", "lost")

    def __init__(self, handle: int, buffer: Buffer) -> None:
        self.handle = handle
        self.buffer = buffer
        self.lost: Refusal | None = None
        """Why there is nothing behind the handle."""
        self._data = b""

    @property
    def data(self) -> bytes:
        """The CUtensorMap. Raises Refusal(DEPENDENCY_FAILED) where it could not be made."""
        if not self._data:
            why = self.lost.message if self.lost is not None else "its command has not run"
            raise Refusal(
                Reason.DEPENDENCY_FAILED,
                f"tensor map {self.handle} was never made: {why}",
                fix=(self.lost.fix if self.lost is not None else "") or "create it again",
                details={"tensor_map": self.handle, "cause": self.lost.reason if self.lost is not None else ""},
            )
        return self._data

    @data.setter
    def data(self, encoded: bytes) -> None:
        self._data = encoded

    def lose(self, refusal: Refusal) -> None:
        self.lost = refusal


class Capturing(Protocol):
    """A capture under way; see `hearthd.device.capture`."""

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

    def failed(self, failure: Failure) -> None:
        """A command of the stream was not recorded: the capture cannot end well any more."""
        ...

    def discard(self, session: Session) -> None:
        """Forgets what was recorded; the stream runs its commands again."""
        ...


class LogicalStream:
    """A client's stream. Folded streams share a track, never errors."""

    __slots__ = (
        "capture",
        "collectives",
        "errors",
        "flights",
        "handle",
        "launch_timeout",
        "profiles",
        "session",
        "starting",
        "track",
    )

    def __init__(self, handle: int, track: Track, session: str = "", launch_timeout: float = 0.0) -> None:
        self.handle = handle
        self.track = track
        self.session = session
        """Whose it is, by id."""
        self.launch_timeout = launch_timeout
        """Seconds, for launches that have no limit of their own; 0: none."""
        self.errors = StreamErrors()
        self.collectives: tuple[Track, ...] = ()
        """The communicators' tracks, while work of this stream may be under way on them."""
        self.flights: dict[Verdict, None] = {}
        """Its collectives of which nobody knows yet how they end."""
        self.capture: Capturing | None = None
        """What records the stream's commands instead of running them, from the arrival of BeginCapture on."""
        self.starting: list[ProfileEntry] = []
        """Profiles whose clock starts with the stream's next work."""
        self.profiles: list[ProfileEntry] = []
        """Profiles that are open on it: what fails belongs to them."""


class EventEntry:
    """A client's event; `event` is None until it has been recorded."""

    __slots__ = ("event", "handle")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.event: Event | None = None


class ModuleEntry:
    """A client's module: waiting for its compile, loaded, or failed."""

    __slots__ = (
        "cached",
        "compile_ns",
        "error",
        "handle",
        "holders",
        "log",
        "module",
        "pending",
        "prints",
        "released",
        "variables",
    )

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.pending = True
        self.prints: Session | None = None
        """The session that gets what its kernels print; None where none of them can."""
        self.module: Module | None = None
        self.error: Refusal | None = None
        self.log = ""
        self.cached = False
        self.compile_ns = 0
        self.holders = 0
        """Graphs and prepared launches that use it: its code outlives its handle for them."""
        self.released = False
        self.variables: dict[str, Buffer] = {}
        """Those that were asked for, by name: one buffer each, under as many handles as there were questions."""

    def loaded(self) -> Module:
        """The module; raises what its compile or load failed with."""
        if self.error is not None:
            raise self.error
        assert self.module is not None, "asked for before it was ready"
        return self.module


class FunctionEntry:
    """A client's function; resolved at its first use. `plans` are the launches that have been checked."""

    __slots__ = ("function", "handle", "module", "name", "plans")

    def __init__(self, handle: int, module: ModuleEntry, name: str) -> None:
        self.handle = handle
        self.module = module
        self.name = name
        self.function: Function | None = None
        self.plans: dict[bytes, Plan] = {}

    def resolve(self) -> Function:
        if self.function is None:
            self.function = self.module.loaded().function(self.name)
        return self.function


class ProfileEntry:
    """A client's profile: where its clock started, and what failed in its stretch of the stream."""

    __slots__ = ("handle", "start", "started_ns", "stream", "stretch")

    def __init__(self, handle: int, stream: LogicalStream, started_ns: int, stretch: Stretch) -> None:
        self.handle = handle
        self.stream = stream
        self.started_ns = started_ns
        self.stretch = stretch
        self.start: Event | None = None


Known = tuple[LogicalStream, Plan, bytearray, list[Usage], list[Usage]]
"""A launch that has been handed to the driver before: its parameter block, what it writes and what it only reads."""

T = TypeVar("T")


class Table(Generic[T]):
    """Objects of one kind by handle."""

    def __init__(self, kind: str, recall: Recall[Any]) -> None:
        self.kind = kind
        self._recall = recall
        self.items: dict[int, T] = {}
        self.get = self.items.get

    def __len__(self) -> int:
        return len(self.items)

    def find(self, handle: int) -> T:
        found = self.items.get(handle)
        if found is None:
            raise self.unknown(handle)
        return found

    def unknown(self, handle: int) -> Refusal:
        return Refusal(
            Reason.INVALID_HANDLE,
            f"{self.kind} {handle} is not live in this session on this device",
            fix=f"use a {self.kind} that this session created on this device and has not freed",
            details={"kind": self.kind, "handle": handle},
        )

    def check_new(self, handle: int) -> None:
        if handle == 0:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"0 cannot be the handle of a {self.kind}",
                fix="mint handles from 1",
                details={"kind": self.kind},
            )
        if handle in self.items:
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"{self.kind} {handle} exists already in this session on this device",
                fix="mint a handle that was not used before",
                details={"kind": self.kind, "handle": handle},
            )

    def add(self, handle: int, item: T) -> T:
        self.check_new(handle)
        self.items[handle] = item
        return item

    def pop(self, handle: int) -> T:
        found = self.find(handle)
        del self.items[handle]
        self._recall.forget()  # launches that named it
        return found


class Record(Protocol):
    """One command in a trace, or between marks; see `hearthd.device.trace`."""

    def begin(self, track: Track, size: int, plan: Plan | None) -> None:
        """It gives work to the track now; see `hearthd.device.context.Device.begin`."""
        ...

    def enter(self) -> None:
        """The command is tried: what is given to the device from now on is its."""
        ...

    def leave(self, done: bool) -> None:
        """It has run, or cannot go on yet."""
        ...

    def failed(self, reason: str) -> None:
        """Why it did not do what it should."""
        ...

    def settle(self) -> None:
        """It is over for the host: it has run, or will not."""
        ...

    def drop(self) -> None:
        """It is no command of its own."""
        ...


class Observer(Protocol):
    """What sees a session's commands, one by one; see `hearthd.device.trace`."""

    def record(self, origin: Any) -> Record:
        """A command (`hearthd.device.operation.Origin`) has arrived."""
        ...

    def close(self) -> None:
        """The session is over."""
        ...


class Waiting(Deferrable, Protocol):
    """A command that has been submitted; see `hearthd.device.operation`."""

    begun: bool

    @property
    def announced(self) -> bool: ...
    @property
    def call(self) -> int: ...
    def abandon(self, refusal: Refusal) -> None: ...


class BatchEntry:
    """A batch that has arrived, and how many of its commands have not run yet."""

    __slots__ = ("left", "seq")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.left = 1  # the batch itself, until all of it has been looked at


class Session:
    """One session's state on this device."""

    shares = False
    """Whether it has had buffers that cannot be written to: launches with them read them, whatever they say."""

    permissions: Permissions | None = None
    """None: every command is allowed."""

    def __init__(self, channel: int, info: Mapping[str, Any], track: Callable[[int], Track]) -> None:
        self.channel = channel
        self._identify(info)
        self.recall: Recall[Known] = Recall()
        """Launches that may be repeated without another look, by their records."""
        self.buffers: Table[Buffer] = Table("buffer", self.recall)
        self.streams: Table[LogicalStream] = Table("stream", self.recall)
        self.events: Table[EventEntry] = Table("event", self.recall)
        self.modules: Table[ModuleEntry] = Table("module", self.recall)
        self.functions: Table[FunctionEntry] = Table("function", self.recall)
        self.profiles: Table[ProfileEntry] = Table("profile", self.recall)
        self.tensor_maps: Table[TensorMapEntry] = Table("tensor map", self.recall)
        self.graphs: Table[Any] = Table("graph", self.recall)
        """Each a `hearthd.device.capture.GraphEntry`."""
        self.prepared: Table[Any] = Table("prepared list", self.recall)
        """Each a `hearthd.device.prepared.PreparedEntry`."""
        self.uploads: dict[int, Upload] = {}
        self.downloads: dict[int, Download] = {}
        self.over: deque[int] = deque(maxlen=1024)
        """Transfers that ended lately, done or given up: their last messages may still arrive."""
        self.deferred: Deferred[Waiting] = Deferred()
        self.batches: deque[BatchEntry] = deque()
        self.last_seq = 0
        self.late_allocations = 0
        """Allocations that wait for memory: later ones wait behind them."""
        self.frees: dict[int, None] = {}
        """Frees that have not run yet, by number, oldest first."""
        self.last_free = 0
        self.allocations = 0
        """Buffers with memory behind them, of live handles or held by a graph."""
        self.bytes_in_use = 0
        self.bytes_peak = 0
        self.bytes_reserved = 0
        self.bytes_pinned = 0
        """Host memory on loan to copies that are under way."""
        self.bytes_durable = 0
        """Host memory for copies of durable buffers."""
        self.durable: dict[int, Buffer] = {}
        """Those buffers, by handle; one that has been freed may still be among them."""
        self.snapshots: dict[Any, None] = {}
        """Each a `hearthd.device.snapshot.Snapshot` that is under way."""
        self.persistent: PersistentBlocks[Any] = PersistentBlocks()
        self.trace: Observer | None = None
        """What sees every command of the session, if anything does; launches then take the long way."""
        self._touched: dict[int, Track] = {}
        self.add_stream(0, track(self.priority))

    def _identify(self, info: Mapping[str, Any]) -> None:
        """Takes what the front says of it."""
        self.id: str = info.get("session", "")
        self.tenant: str = info.get("tenant", "")
        self.weight: float = info.get("weight", 1.0)
        """Its share of the device's time, beside the weights of other sessions that want it."""
        self.priority: int = info.get("priority", 0)
        """Added to that of its streams; lower is more urgent."""
        self.launch_timeout: float = info.get("launch_timeout", 0.0)
        """Seconds, for launches that have no limit of their own; 0: none."""
        self.device_bytes: int = info.get("device_bytes", 0)
        """What all sessions of its tenant together may hold here; 0: no limit. Pinned and durable likewise."""
        self.pinned_bytes: int = info.get("pinned_bytes", 0)
        self.durable_bytes: int = info.get("durable_bytes", 0)

    def add_stream(self, handle: int, track: Track) -> None:
        self.streams.items[handle] = LogicalStream(handle, track, self.id, self.launch_timeout)
        self.touch(track)

    def touch(self, track: Track) -> None:
        """Work of this session may be under way on the track from now on."""
        self._touched[track.index] = track

    def tracks(self) -> list[Track]:
        """Every track that may have work of this session under way."""
        return list(self._touched.values())
