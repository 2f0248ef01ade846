"""Tensor maps: each is encoded from a buffer once, and passed to kernels any number of times.

A tensor map holds the memory that it describes, as a graph does: freeing the buffer destroys its handle, but the memory
counts as used and is freed only with its last tensor map. The description is checked here, before the driver is called.
A tensor map that could not be encoded remains a handle that no launch can use.
"""

from __future__ import annotations

from functools import partial

from hearth_proto.v1 import commands_pb2
from hearthd.device.backend import tensor_map
from hearthd.device.backend.tensor_map import Im2col, Im2colWide, TensorMapSpec, Tile
from hearthd.device.context import DeviceContext
from hearthd.device.launch.holdings import Keepers
from hearthd.device.operation import Operation, Origin, destruction
from hearthd.device.session.buffer import Buffer, TensorMapEntry
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_errors import poisoned


class TensorMapCommands:
    """Executes the tensor map commands. Device-handle thread only."""

    def __init__(self, device: DeviceContext, keepers: Keepers) -> None:
        self._device = device
        self._keepers = keepers

    def create(self, origin: Origin, command: commands_pb2.CreateTensorMap) -> Operation:
        """Creates the handle immediately, and encodes the tensor map when the buffer has an address."""
        session = origin.session
        session.tensor_maps.check_new(command.tensor_map)
        buffer = session.buffers.find(command.buffer)
        entry = session.tensor_maps.add(command.tensor_map, TensorMapEntry(command.tensor_map, buffer))
        self._hold(buffer)
        # Launches with the map are ordered by its buffer, so each of them runs after this operation.
        operation = Operation(origin, partial(self._create, origin, command, entry), writes=(buffer,))
        operation.on_failure = entry.lose
        return operation

    def _create(self, origin: Origin, command: commands_pb2.CreateTensorMap, entry: TensorMapEntry) -> bool:
        device = self._device
        buffer = entry.buffer
        if buffer.lost is not None and (cause := poisoned(buffer.failure)) is not None:
            entry.lose(buffer.lost)
            origin.skip(cause, ())
            return True
        spec = spec_of(command)
        served_by = f"device {device.spec.ordinal} ({device.spec.backend})"
        tensor_map.check_features(spec, device.limits.features, served_by)
        description = f"tensor map of buffer {buffer.handle}"
        address = buffer.range(0, 0, description)
        faults = tensor_map.check(spec, address, command.offset, buffer.size)
        if faults:
            details = {"buffer": buffer.handle, "offset": command.offset, "buffer_size": buffer.size}
            raise tensor_map.refuse(spec, faults, description, **details)
        entry.encoded = device.server.encode_tensor_map(spec, address + command.offset)
        origin.reply()
        return True

    def destroy(self, origin: Origin, command: commands_pb2.DestroyTensorMap) -> Operation:
        """Destroys the handle now, and releases the memory after waiting launches."""
        session = origin.session
        entry = session.tensor_maps.pop(command.tensor_map)
        return destruction(origin, partial(self._release, session, entry.buffer), (entry.buffer,))

    def close(self, session: DeviceSession) -> None:
        """Releases the memory that the tensor maps of an ended session hold."""
        for entry in session.tensor_maps.items.values():
            self._release(session, entry.buffer)
        session.tensor_maps.items.clear()

    def _hold(self, buffer: Buffer) -> None:
        self._keepers.memory.hold(buffer)
        if buffer.module is not None:  # the memory of a module's global variable belongs to the module
            self._keepers.modules.hold(buffer.module)

    def _release(self, session: DeviceSession, buffer: Buffer) -> None:
        self._keepers.memory.unhold(session, buffer)
        if buffer.module is not None:
            self._keepers.modules.unhold(session, buffer.module)


def spec_of(command: commands_pb2.CreateTensorMap) -> TensorMapSpec:
    """Returns the tensor map's description from the command, with defaults filled in."""
    access: Tile | Im2col | Im2colWide | None = None
    kind = command.WhichOneof("access")
    if kind == "tile":
        access = Tile(tuple(command.tile.box))
    elif kind == "im2col":
        im2col = command.im2col
        access = Im2col(
            tuple(im2col.lower_corner), tuple(im2col.upper_corner), im2col.channels_per_pixel, im2col.pixels_per_column
        )
    elif kind == "im2col_wide":
        im2col_wide = command.im2col_wide
        access = Im2colWide(
            im2col_wide.lower_corner_width,
            im2col_wide.upper_corner_width,
            im2col_wide.channels_per_pixel,
            im2col_wide.pixels_per_column,
            im2col_wide.mode or "w",
        )
    return TensorMapSpec(
        dtype=command.dtype,
        shape=tuple(command.shape),
        strides=tuple(command.strides),
        element_strides=tuple(command.element_strides) or (1,) * len(command.shape),
        access=access,
        interleave=command.interleave or "none",
        swizzle=command.swizzle or "none",
        l2_promotion=command.l2_promotion or "none",
        oob_fill=command.oob_fill or "none",
    )
