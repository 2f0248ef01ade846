"""State of a session on a device: objects by handle, work under way, and limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from hearth_proto.reasons import Refusal
from hearthd.device.flows.segment import CompletionSignals
from hearthd.device.flows.transfer import DownloadFlow, FinishedTransfers, UploadFlow
from hearthd.device.session import permissions
from hearthd.device.session.buffer import Buffer, TensorMapEntry
from hearthd.device.session.deferred import Deferrable, Deferred
from hearthd.device.session.handle_limit import HandleLimits
from hearthd.device.session.handle_table import HandleTable
from hearthd.device.session.launch_plan import LaunchPlan
from hearthd.device.session.module import FunctionEntry, ModuleEntry
from hearthd.device.session.observer import Observer
from hearthd.device.session.permissions import Permissions
from hearthd.device.session.persistent import PersistentBlocks
from hearthd.device.session.replay_cache import ReplayCache
from hearthd.device.session.stream import EventEntry, LogicalStream, ProfileEntry
from hearthd.device.session.stream_table import StreamTable
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_pool import PooledStream


class KnownLaunch:
    """A launch that the driver has been given before: its parameter block, its writes and its reads."""

    __slots__ = ("again", "params", "plan", "reads", "stream", "track", "writes")

    def __init__(
        self,
        stream: LogicalStream,
        plan: LaunchPlan,
        params: bytearray,
        writes: Sequence[Usage],
        reads: Sequence[Usage],
    ) -> None:
        self.stream = stream
        self.track = stream.track
        self.plan = plan
        self.params = params
        self.writes = writes
        self.reads = reads
        self.again: Callable[[], object] | None = None
        """Hands the launch to the driver once more; None until its first repetition."""


class SubmittedCommand(Deferrable, Protocol):
    """A command that has been submitted; see `hearthd.device.operation`."""

    begun: bool

    @property
    def announced(self) -> bool: ...
    @property
    def call(self) -> int: ...
    def abandon(self, refusal: Refusal) -> None: ...


class BufferTable(HandleTable[Buffer]):
    """Table of buffers. Most buffers are created, used once and freed: the replay cache keeps its launches when a
    buffer that none of them names is freed."""

    def _named(self, item: Buffer) -> bool:
        return item.usage.replayable


class BatchEntry:
    """A batch that has arrived, and the number of its commands that have not run yet."""

    __slots__ = ("left", "seq")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.left = 1  # the batch itself, until all its commands are decoded


class DeviceSession:
    """State of one session on this device."""

    shares = False
    """True once the session has had buffers that are read-only: launches with them read them, whatever their layout
    says."""

    signals: CompletionSignals | None = None
    """The queue of its completion signals; None: the session has requested none."""

    permissions: Permissions | None = None
    """Rights of the session; None: every command is allowed."""

    def __init__(self, channel: int, info: Mapping[str, Any], track: Callable[[int], PooledStream]) -> None:
        self.channel = channel
        self._identify(info)
        self.replay_cache: ReplayCache[KnownLaunch] = ReplayCache()
        """Launches that may be repeated without checks, by their records."""
        self.buffers = BufferTable("buffer", self.replay_cache)
        self.streams = StreamTable(self.replay_cache)
        self.events: HandleTable[EventEntry] = HandleTable("event")
        self.modules: HandleTable[ModuleEntry] = HandleTable("module", self.replay_cache)
        self.functions: HandleTable[FunctionEntry] = HandleTable("function", self.replay_cache)
        self.profiles: HandleTable[ProfileEntry] = HandleTable("profile")
        self.tensor_maps: HandleTable[TensorMapEntry] = HandleTable("tensor map", self.replay_cache)
        self.graphs: HandleTable[Any] = HandleTable("graph")
        """Entries are `hearthd.device.graphs.capture.GraphEntry`."""
        self.prepared: HandleTable[Any] = HandleTable("prepared list")
        """Entries are `hearthd.device.graphs.prepared.PreparedEntry`."""
        self.tables: tuple[HandleTable[Any], ...] = (
            self.buffers, self.streams, self.events, self.modules, self.functions, self.profiles, self.tensor_maps,
            self.graphs, self.prepared,
        )  # fmt: skip
        """The handle tables."""
        self.uploads: dict[int, UploadFlow] = {}
        self.downloads: dict[int, DownloadFlow] = {}
        self.over = FinishedTransfers()
        self.deferred: Deferred[SubmittedCommand] = Deferred()
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
        """Host memory on loan to copies under way."""
        self.bytes_durable = 0
        """Host memory for copies of durable buffers."""
        self.durable: dict[int, Buffer] = {}
        """Durable buffers, by handle; a freed buffer may still be among them."""
        self.snapshots: dict[Any, None] = {}
        """Snapshots under way, each a `hearthd.device.durable.snapshot.Snapshot`."""
        self.persistent: PersistentBlocks[Any] = PersistentBlocks()
        self.trace: Observer | None = None
        """Observer of every command of the session, if any; launches then take the queued path."""
        self._touched: dict[int, PooledStream] = {}
        self.add_stream(0, track(self.priority))

    def _identify(self, info: Mapping[str, Any]) -> None:
        """Takes the session's description from the front."""
        self.id: str = info.get("session", "")
        self.tenant: str = info.get("tenant", "")
        self.weight: float = info.get("weight", 1.0)
        """Weight of the session in the division of device time."""
        self.priority: int = info.get("priority", 0)
        """Added to the priority of its streams; lower is more urgent."""
        self.launch_timeout: float = info.get("launch_timeout", 0.0)
        """Seconds, for launches without a separate limit; 0: none."""
        self._bound(info)

    def limit(self, limits: HandleLimits) -> None:
        """Bounds the number of its handles from now on."""
        for table in self.tables:
            table.extend, table.bound = partial(limits.bound, self), 0

    def change(self, info: Mapping[str, Any]) -> None:
        """Takes changed limits of its tenant from the front. Existing streams keep their priority."""
        for table in self.tables:
            table.bound = 0  # the next handle asks for a new bound
        self.weight, self.priority = info.get("weight", 1.0), info.get("priority", 0)
        self._bound(info)
        self.permissions = permissions.of(info)
        self.replay_cache.forget()
        for function in self.functions.items.values():
            function.plans.clear()  # checked launches skip the check of rights

    def _bound(self, info: Mapping[str, Any]) -> None:
        self.device_bytes: int = info.get("device_bytes", 0)
        """Limit of all sessions of its tenant together on this device; 0: no limit. Pinned and durable likewise."""
        self.pinned_bytes: int = info.get("pinned_bytes", 0)
        self.durable_bytes: int = info.get("durable_bytes", 0)
        self.handles: int = info.get("handles", 0)
        """Limit of the handles of all sessions of its tenant together in this process; 0: no limit."""

    def add_stream(self, handle: int, track: PooledStream) -> None:
        self.streams.put(handle, LogicalStream(handle, track, self.id, self.launch_timeout))
        self.touch(track)

    def touch(self, track: PooledStream) -> None:
        """Notes that work of this session may be under way on the track."""
        self._touched[track.index] = track

    def tracks(self) -> list[PooledStream]:
        """Returns every track that may have work of this session under way."""
        return list(self._touched.values())
