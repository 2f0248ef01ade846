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
    """State of one device, its pools and its outbox. Device-handle thread only."""

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
    """Something that a deferred command of the session (None: of any) waits for may have happened."""
    again: Callable[[], None]
    """A deferred command has had its turn and waits for nothing else: it is tried again at the loop's next."""

    record: Record | None = None
    """The command whose work is being given to the device, where a trace or marks want to know."""

    def begin(
        self, stream: LogicalStream, size: int = 0, *, track: PooledStream | None = None, plan: LaunchPlan | None = None
    ) -> None:
        """Work follows, on the stream or on another `track` for it; the track waits for all that it has to already.

        Profiles that were opened on the stream start their clock now, and so does the command in a trace. `size`: bytes
        that the work moves; `plan`: what it launches.
        """
        if stream.starting:
            for profile in stream.starting:
                profile.start = self.server.record(stream.track.stream, timing=True)
            stream.starting.clear()
        if self.record is not None:
            self.record.begin(track or stream.track, size, plan)
