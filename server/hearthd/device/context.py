"""What the command groups of one device process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hearthd.device.compiler import CompileService
from hearthd.device.outbox import Outbox
from hearthd.device.policy.geometry import Limits
from hearthd.device.server import ComputeServer
from hearthd.device.staging import Staging
from hearthd.device.tables import LogicalStream, Session
from hearthd.device.telemetry import Telemetry
from hearthd.device.tracks import Tracks
from hearthd.spec import DeviceSpec


@dataclass
class Device:
    """One device, its pools and its way out. Belongs to the device-handle thread."""

    spec: DeviceSpec
    server: ComputeServer
    tracks: Tracks
    staging: Staging
    compiler: CompileService
    outbox: Outbox
    telemetry: Telemetry
    limits: Limits
    kick: Callable[[Session | None], None]
    """Something that a deferred command of the session (None: of any) waits for may have happened."""

    def begin(self, stream: LogicalStream) -> None:
        """Work is about to be given to the stream: profiles that were opened on it start their clock now."""
        if stream.starting:
            for profile in stream.starting:
                profile.start = self.server.record(stream.track.stream, timing=True)
            stream.starting.clear()
