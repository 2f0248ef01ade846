"""State of a session on a device: objects by handle, work under way, and limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hearthd.device.flows.segment import CompletionSignals
from hearthd.device.flows.transfer import DownloadFlow, FinishedTransfers, UploadFlow
from hearthd.device.session.buffer import Buffer, TensorMapEntry
from hearthd.device.session.cancellations import Cancellations
from hearthd.device.session.deferred import Deferred
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


class CachedLaunch:
    """A launch that was issued before, with its parameter block, its written and its read buffers."""

    __slots__ = ("params", "plan", "reads", "relaunch", "stream", "track", "writes")

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
        self.relaunch: Callable[[], object] | None = None
        """Issues the launch again; None until its first repetition."""


class BufferTable(HandleTable[Buffer]):
    """Table of buffers.

    Most buffers are created, used once and freed; therefore the replay cache is kept when a buffer is freed that no
    cached launch uses.
    """

    def _may_be_cached(self, item: Buffer) -> bool:
        return item.usage.replayable


class BatchEntry:
    """A batch that has arrived, and the number of its commands that have not run yet."""

    __slots__ = ("left", "seq")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.left = 1  # counts the batch itself until all its commands are decoded


class DeviceSession:
    """State of one session on this device."""

    shares = False
    """True once the session has had read-only buffers or arrays of pointers. Launches only read such buffers, whatever
    their layout says, and are ordered by the targets of the pointers."""

    reached = 0
    """Number of buffers that the session's arrays of pointers reach, counted for each array."""

    signals: CompletionSignals | None = None
    """The memory for completion signals of the session; None if the session has requested none."""

    dropping = False
    """True while a cancellation is in effect. All commands then take the queued path."""

    def __init__(self, channel: int, info: Mapping[str, Any], track: Callable[[int], PooledStream]) -> None:
        self.channel = channel
        self._identify(info)
        self.replay_cache: ReplayCache[CachedLaunch] = ReplayCache()
        """Launches that may be repeated without checks, by record."""
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
        """All handle tables."""
        self.uploads: dict[int, UploadFlow] = {}
        self.downloads: dict[int, DownloadFlow] = {}
        self.over = FinishedTransfers()
        self.deferred = Deferred()
        self.cancellations = Cancellations()
        self.batches: deque[BatchEntry] = deque()
        self.last_seq = 0
        self.late_allocations = 0
        """Number of allocations that wait for memory; later allocations wait for them."""
        self.frees: dict[int, None] = {}
        """Frees that have not run yet, by number, oldest first."""
        self.last_free = 0
        self.allocations = 0
        """Number of buffers that have memory, under live handles or held by graphs."""
        self.bytes_in_use = 0
        self.bytes_peak = 0
        self.bytes_reserved = 0
        self.bytes_pinned = 0
        """Host memory, in bytes, used by copies under way."""
        self.bytes_durable = 0
        """Host memory, in bytes, for copies of durable buffers."""
        self.durable: dict[int, Buffer] = {}
        """Durable buffers by handle; may include freed buffers."""
        self.snapshots: dict[Any, None] = {}
        """Snapshots under way (`hearthd.device.durable.snapshot.Snapshot`)."""
        self.persistent: PersistentBlocks[Any] = PersistentBlocks()
        self.trace: Observer | None = None
        """Observer of every command of the session, or None. With an observer, launches take the queued path."""
        self._touched: dict[PooledStream, int] = {}
        """Position of the session's last work on tracks that no stream of the session uses."""
        self.add_stream(0, track(self.priority))

    def _identify(self, info: Mapping[str, Any]) -> None:
        """Sets the session's description from the front's OPEN payload."""
        self.id: str = info.get("session", "")
        self.tenant: str = info.get("tenant", "")
        self.launch_timeout: float = info.get("launch_timeout", 0.0)
        """Time limit, in seconds, of launches without a separate limit; 0: no limit."""
        self._set_limits(info)

    def change(self, info: Mapping[str, Any]) -> None:
        """Applies changed limits of the session's tenant from the front. Existing streams keep their priority."""
        for table in self.tables:
            table.bound = 0  # the next handle requests a new bound
        self._set_limits(info)
        self.replay_cache.forget()
        for function in self.functions.items.values():
            function.plans.clear()  # launches with a plan would skip the check of rights

    def _set_limits(self, info: Mapping[str, Any]) -> None:
        self.permissions = Permissions(self.channel, self.tenant, info["rights"]) if "rights" in info else None
        """Rights of the session; None: every command is allowed."""
        self.weight: float = info.get("weight", 1.0)
        """Weight of the session in the division of device time."""
        self.priority: int = info.get("priority", 0)
        """Added to the priority of the session's streams; lower is more urgent."""
        self.device_bytes: int = info.get("device_bytes", 0)
        """Limit, in bytes, of all sessions of the tenant together on this device; 0: no limit. The same applies to
        `pinned_bytes`."""
        self.pinned_bytes: int = info.get("pinned_bytes", 0)
        self.handles: int = info.get("handles", 0)
        """Limit of the handles of all sessions of the tenant together in this process; 0: no limit."""

    def add_stream(self, handle: int, track: PooledStream) -> None:
        """Creates the stream `handle` on the track. The caller has checked that the handle is new."""
        self.streams.put(handle, LogicalStream(handle, track, self.id, self.launch_timeout))

    def touch(self, track: PooledStream, position: int) -> None:
        """Records that work of this session, up to `position`, may be under way on a track that is not its stream's."""
        self._touched[track] = position

    def tracks(self) -> list[PooledStream]:
        """Returns every track that may have work of this session under way. The caller must not change the list."""
        for track, position in tuple(self._touched.items()):
            if track.done_position >= position:
                del self._touched[track]
        tracks = self.streams.tracks
        return list(dict.fromkeys((*tracks, *self._touched))) if self._touched else tracks
