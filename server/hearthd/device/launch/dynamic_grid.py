"""Dynamic grid: a launch's grid that a kernel wrote to a device buffer, read without blocking.

The grid is copied to the host after earlier work, and the launch continues after the copy. Only later commands on the
same stream wait.
"""

from __future__ import annotations

import struct

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.graph_nodes import Dim
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer

GRID = struct.Struct("<3I")
"""Format that a kernel writes: three uint32 (x, y, z), little-endian."""


class DynamicGrid:
    """Reads the grid of one launch. Device-handle thread only."""

    def __init__(self, device: DeviceContext, origin: Origin, buffer: Buffer, offset: int) -> None:
        self._device = device
        self._origin = origin
        self._buffer = buffer
        self._offset = offset
        self._is_requested = False
        self.value: Dim = (0, 0, 0)
        self.is_known = False

    def ready(self) -> bool:
        """True once `value` is known; the first call starts the copy.

        Returns False also while no staging memory is free.

        Raises Refusal(OUT_OF_BOUNDS) or Refusal(INVALID_ARGUMENT) for a wrong offset.
        """
        if self._is_requested:
            return self.is_known
        if self._offset % 4:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"the grid is to be read at byte {self._offset} of buffer {self._buffer.handle}",
                fix="a uint32 lies at a multiple of 4",
                details={"offset": self._offset},
                fields=["dynamic_grid.offset"],
            )
        address = self._buffer.range(self._offset, GRID.size, "the grid of a launch")
        device = self._device
        host = device.staging.acquire(GRID.size)
        if host is None:
            return False
        self._is_requested = True
        track = self._origin.stream.track
        device.tracks.claim_position(track, (), (self._buffer.usage,))
        device.begin(self._origin.stream)
        try:
            device.server.download(host, 0, address, GRID.size, track.stream)
        except Refusal:
            device.staging.drop(track, host)
            raise
        arrived = device.tracks.pending_outcomes.when_settled(self._buffer.usage, lambda: self._arrived(host))
        device.tracks.on_complete(track, arrived)
        return False

    def _arrived(self, host: HostBuffer) -> None:
        x, y, z = GRID.unpack_from(host.view)
        self._device.staging.release(host)
        self.value = (x, y, z)
        self.is_known = True
        self._device.kick(self._origin.session)
