"""Device context: the objects that the command groups of one device process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hearthd.device.backend.launch_limits import LaunchLimits
from hearthd.device.backend.server import ComputeServer
from hearthd.device.compiler.service import CompileService
from hearthd.device.outbox import Outbox
from hearthd.device.platform.telemetry import Telemetry
from hearthd.device.printf_capture import PrintfCapture
from hearthd.device.resources.grants import ProcessGrants
from hearthd.device.resources.idle_work import IdleWork
from hearthd.device.resources.staging import Staging
from hearthd.device.session.launch_plan import LaunchPlan
from hearthd.device.session.observer import Record
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_pool import PooledStream, StreamPool
from hearthd.shared.device_spec import DeviceSpec


@dataclass
class DeviceContext:
    """State of one device, its stream pool, its memory pools and its outbox. Device-handle thread only."""

    spec: DeviceSpec
    server: ComputeServer
    tracks: StreamPool
    staging: Staging
    grants: ProcessGrants
    compiler: CompileService
    outbox: Outbox
    telemetry: Telemetry
    limits: LaunchLimits
    output: PrintfCapture
    idle_work: IdleWork
    kick: Callable[[DeviceSession | None], None]
    """Called when an event that a deferred command of the session may be waiting for has happened; None: any session.
    The session's deferred commands are then tried again."""
    retry_soon: Callable[[], None]
    """Called when a deferred command yielded after a partial run and waits for nothing else: it is tried again in the
    next iteration of the loop."""

    record: Record | None = None
    """Trace record of the command whose work is being submitted to the device; None if neither a trace nor annotations
    are active."""

    def begin(
        self, stream: LogicalStream, size: int = 0, *, track: PooledStream | None = None, plan: LaunchPlan | None = None
    ) -> None:
        """Prepares the stream's track, or `track` if given, for work that the caller submits next.

        The track already waits for all work that the new work depends on.

        Starts the clocks of profiles that were opened on the stream, and the command's record in a trace. `size` is the
        number of bytes that the work copies; `plan` is the launch plan of a kernel launch.
        """
        if stream.starting:
            for profile in stream.starting:
                profile.start = self.server.record(stream.track.stream, timing=True)
            stream.starting.clear()
        if self.record is not None:
            self.record.begin(track or stream.track, size, plan)
