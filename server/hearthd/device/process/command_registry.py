"""Command registry: constructs the command groups, and maps each kind of command to its handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hearthd.device.collectives.commands import CollectiveCommands
from hearthd.device.context import DeviceContext
from hearthd.device.dispatch.commands import DispatchCommands
from hearthd.device.dispatch.run import DispatchResources
from hearthd.device.durable.commands import SnapshotCommands
from hearthd.device.graphs.commands import GraphCommands
from hearthd.device.graphs.prepared import PreparedCommands
from hearthd.device.ipc.publish import Publishing
from hearthd.device.launch.binder import Binder
from hearthd.device.launch.cancel_commands import CancelCommands
from hearthd.device.launch.commands import LaunchCommands, refuse_answered_launches
from hearthd.device.launch.holdings import Keepers
from hearthd.device.launch.module_commands import ModuleCommands
from hearthd.device.launch.occupancy import OccupancyCommands
from hearthd.device.launch.published_events import PublishedEvents
from hearthd.device.launch.stream_commands import StreamCommands
from hearthd.device.launch.tensor_maps import TensorMapCommands
from hearthd.device.launch.watchdog import Watchdog
from hearthd.device.memory.commands import MemoryCommands
from hearthd.device.operation import Operation, Origin, ReplySink
from hearthd.device.profiling.annotations import KernelActivitySource, RangeMarker
from hearthd.device.profiling.profile import ProfileCommands
from hearthd.device.profiling.trace import TraceCommands
from hearthd.device.scheduler.temporaries import Temporaries
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.chunk_memory import DownloadChunkMemory
from hearthd.device.transfers.copy_commands import CopyCommands
from hearthd.device.transfers.pointer_arrays import PointerCommands
from hearthd.device.transfers.registered import SegmentCopies
from hearthd.device.transfers.segments import Segments
from hearthd.device.transfers.transfers import Transfers

Handler = Callable[[Origin, Any], Operation | None]


class CommandRegistry:
    """Constructs the command groups, and passes to each the groups that it depends on. Device-handle thread only."""

    def __init__(
        self,
        device: DeviceContext,
        replies: ReplySink,
        session_of: Callable[[int], DeviceSession | None],
        post: Callable[[Callable[[], None]], None],
        marks: RangeMarker | None,
        activity: KernelActivitySource | None,
    ) -> None:
        self.watchdog = Watchdog(device.tracks)
        self.collectives = CollectiveCommands(device, post, session_of)
        self.transfers = Transfers(device, DownloadChunkMemory(device.server, device.telemetry, post))
        self.memory = MemoryCommands(device)
        self.segments = Segments(device, post)
        copy_commands = CopyCommands(device, self.transfers, SegmentCopies(device, self.segments))
        self._modules = ModuleCommands(device)
        binder = Binder(device, self.watchdog)
        self.launches = LaunchCommands(device, binder, replies)
        resources = DispatchResources(device, binder, self.memory, self.transfers)
        self._profiles = ProfileCommands(device)
        self.traces = TraceCommands(device, post, marks, activity)
        self.events = PublishedEvents(device)
        stream_commands = StreamCommands(device, self._profiles, self.events)
        self.cancels = CancelCommands(device)
        keepers = Keepers(self.memory, self._modules, self.segments)
        self.snapshots = SnapshotCommands(device, self.memory, replies, post)
        self.publishing = Publishing(device, self.memory.reservations, session_of)
        self._tensor_maps = TensorMapCommands(device, keepers)
        self._graphs = GraphCommands(device, binder, self.watchdog, keepers)
        self._prepared = PreparedCommands(device, binder, self.watchdog, keepers)
        self.handlers: dict[str, Handler] = {
            "allocate": self.memory.allocate,
            "free": self.memory.free,
            "write": copy_commands.write,
            "read": copy_commands.read,
            "copy": copy_commands.copy,
            "fill": copy_commands.fill,
            "write_pointers": PointerCommands(device, self.memory).write,
            "memory_usage": self.memory.memory_usage,
            "memory_cleanup": self.memory.memory_cleanup,
            "set_allocation_mode": self.memory.set_allocation_mode,
            "load_module": self._modules.load,
            "unload_module": self._modules.unload,
            "describe_module": self._modules.describe,
            "get_function": self._modules.get_function,
            "describe_function": self._modules.describe_function,
            "get_global": self._modules.get_global,
            "launches": refuse_answered_launches,
            "launch": self.launches.launch,
            "begin_capture": self._graphs.begin,
            "end_capture": self._graphs.end,
            "begin_conditional": self._graphs.begin_conditional,
            "end_conditional": self._graphs.end_conditional,
            "begin_branch": self._graphs.begin_branch,
            "launch_graph": self._graphs.launch,
            "update_graph": self._graphs.update,
            "destroy_graph": self._graphs.destroy,
            "prepare": self._prepared.prepare,
            "launch_prepared": self._prepared.launch,
            "destroy_prepared": self._prepared.destroy,
            "dispatch": DispatchCommands(resources).dispatch,
            "occupancy": OccupancyCommands(device).occupancy,
            "create_stream": stream_commands.create_stream,
            "destroy_stream": stream_commands.destroy_stream,
            "record_event": stream_commands.record_event,
            "wait_event": stream_commands.wait_event,
            "query_event": stream_commands.query_event,
            "elapsed_time": stream_commands.elapsed_time,
            "destroy_event": stream_commands.destroy_event,
            "publish_event": self.events.publish,
            "attach_event": self.events.attach,
            "sync": stream_commands.sync,
            "flush": stream_commands.flush,
            "start_profile": self._profiles.start,
            "end_profile": self._profiles.end,
            "start_trace": self.traces.start,
            "end_trace": self.traces.end,
            "all_reduce": self.collectives.all_reduce,
            "collective": self.collectives.collective,
            "sync_collective": self.collectives.sync_collective,
            "create_tensor_map": self._tensor_maps.create,
            "destroy_tensor_map": self._tensor_maps.destroy,
            "set_durable": self.snapshots.set_durable,
            "checkpoint": self.snapshots.checkpoint,
            "cancel": self.cancels.cancel,
        }
        """Handlers by name of the command's field."""
        self.at_once = Temporaries(device, self.memory, replies).handlers
        """Functions that are tried before the queued path, for commands in batches."""

    def close(self, session: DeviceSession) -> None:
        """Releases everything that the session holds, after its work under way."""
        self._profiles.close(session)
        self.traces.closed(session)
        self._tensor_maps.close(session)
        self._graphs.close(session)
        self._prepared.close(session)
        self.transfers.close(session)
        self.memory.close(session)
        self.snapshots.close(session)
        self.publishing.close(session)
        self.collectives.close(session)
        self.events.close(session)
        for module in session.modules.items.values():
            self._modules.release(session, module)

    def gauges(self) -> dict[str, int]:
        """Returns the gauges over all sessions."""
        return {
            "stripes": self.transfers.stripes(),
            **self.transfers.chunks.gauges(),
            "traces_running": self.traces.running,
            **self.segments.gauges(),
            **self.publishing.gauges(),
        }
