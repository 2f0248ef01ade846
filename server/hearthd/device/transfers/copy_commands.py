"""Write, Read, Copy and Fill: the commands that copy or set bytes, checked and ordered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hearth_proto.layouts import RowLayout
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.graph_nodes import CopyNode, FillNode
from hearthd.device.backend.replay import enqueue_copy
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.context import DeviceContext
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.buffer import POINTERS, Buffer
from hearthd.device.streams.pending_outcomes import PendingOutcome, both
from hearthd.device.transfers.buffer_copy import BufferCopy, locate
from hearthd.device.transfers.layout import check_apart, check_pitch, check_rows
from hearthd.device.transfers.registered import SegmentCopies
from hearthd.device.transfers.transfers import Transfers

PATTERN_SIZES = (1, 2, 4, 8, 16)


class CopyCommands:
    """Executes the Write, Read, Copy and Fill commands.

    `Transfers` handles bytes that are sent outside the batch, `SegmentCopies` bytes in memory that the client shares.
    """

    def __init__(self, device: DeviceContext, transfers: Transfers, shared: SegmentCopies) -> None:
        self._device = device
        self._transfers = transfers
        self._shared = shared

    # ---- from and to the host ----

    def write(self, origin: Origin, command: commands_pb2.Write) -> Operation:
        """Returns the operation that writes bytes of the command, of an upload, or of shared memory to the buffer."""
        buffer = origin.session.buffers.find(command.buffer)
        shared = command.HasField("shared")
        rows = rows_of("write", command, command.size if command.transfer or shared else len(command.data))
        copy = BufferCopy(self._device, origin, buffer, rows)
        if shared:
            operation = self._shared.write(copy, command)
        elif command.transfer:
            operation = self._transfers.uploads.write(copy, command)
        else:
            operation = Operation(
                origin, partial(self._write, copy, command.data), writes=(origin.stream, buffer), spoils=(buffer,)
            )
        return _piece(operation, command, rows.size)

    def _write(self, copy: BufferCopy, data: bytes) -> bool:
        origin, buffer, rows = copy.origin, copy.buffer, copy.rows
        if origin.stream.track.full:
            return False
        buffer.check_writable("write")
        copy.locate("write")
        if data and not copy.put(0, data):
            return False
        self._device.telemetry.upload_inline_bytes += len(data)
        if rows.size == buffer.size:
            buffer.failure = None
        origin.reply()
        return True

    def read(self, origin: Origin, command: commands_pb2.Read) -> Operation:
        """Returns the operation that reads bytes of the buffer into the answer, a download, or shared memory.

        Raises Refusal(MESSAGE_TOO_LARGE) for a read of more than `max_inline_bytes` into the answer.
        """
        buffer = origin.session.buffers.find(command.buffer)
        if not origin.answered and origin.capture is None:
            raise Refusal(Reason.INVALID_ARGUMENT, "a read needs a request number", fix="set Command.request")
        rows = rows_of("read", command, command.size)
        copy = BufferCopy(self._device, origin, buffer, rows)
        if command.HasField("shared"):
            return _piece(self._shared.read(copy, command), command, rows.size)
        if command.transfer:
            return _piece(self._transfers.downloads.read(copy, command), command, rows.size)
        limit = self._device.spec.max_inline_bytes
        if command.size > limit:
            raise Refusal(
                Reason.MESSAGE_TOO_LARGE,
                f"a read of {command.size} bytes inside a batch; the maximum is {limit}",
                fix="name a transfer and open a Download stream for it",
                details={"size": command.size, "max_inline_bytes": limit},
            )
        operation = Operation(origin, partial(self._read, copy), writes=(origin.stream,), reads=(buffer,))
        return _piece(operation, command, rows.size)

    def _read(self, copy: BufferCopy) -> bool:
        device, origin, buffer = self._device, copy.origin, copy.buffer
        track = origin.stream.track
        if track.full:
            return False
        if copy.refused():
            return True
        copy.locate("read")
        size = copy.rows.size
        if not size:
            device.tracks.answer_when_done(track, partial(_answer_read, origin, b""))
            return True
        host = copy.find(size)
        if host is not None:
            copy.download_staged(host, 0, size)
            outcomes = device.tracks.pending_outcomes.of_buffer(buffer.usage)
            arrived = partial(self._arrived, copy, outcomes, host)
            device.tracks.answer_when_done(track, both(outcomes, arrived) if outcomes else arrived)
            device.telemetry.download_inline_bytes += size
            return True
        data = copy.get_now(0, size) if copy.without(size) else None
        if data is None:
            return False
        device.telemetry.download_inline_bytes += size
        _answer_read(origin, data)
        return True

    def _arrived(self, copy: BufferCopy, outcomes: Sequence[PendingOutcome], host: HostBuffer) -> None:
        """Answers a read.

        `outcomes` belong to the collectives that the buffer's contents depended on when they were copied.
        """
        data = bytes(host.view[: copy.rows.size])
        self._device.staging.release(host)
        if not (outcomes and copy.refused(outcomes)):
            _answer_read(copy.origin, data)

    # ---- on the device ----

    def copy(self, origin: Origin, command: commands_pb2.Copy) -> Operation:
        """Returns the operation that copies between ranges of two buffers, which may be the same, on the device."""
        destination = origin.session.buffers.find(command.destination)
        source = origin.session.buffers.find(command.source)
        same = destination is source
        return Operation(
            origin,
            partial(self._copy, origin, command, destination, source),
            writes=(origin.stream, destination),
            reads=() if same else (source,),
            needs=(source,),
            spoils=(destination,),
        )

    def _copy(self, origin: Origin, command: commands_pb2.Copy, destination: Buffer, source: Buffer) -> bool:
        device = self._device
        track = origin.stream.track
        if track.full:
            return False
        node = copy_node(command, destination, source)
        size = node.width * node.rows
        if origin.capture is not None:
            origin.capture.add_copy(destination, source, node)
        elif size:
            device.tracks.claim_position(track, (destination.usage,), () if destination is source else (source.usage,))
            device.begin(origin.stream, size)
            enqueue_copy(device.server, node, track.stream)
            device.telemetry.device_to_device_bytes += size
            device.telemetry.device_to_device_operations += 1
            if size == destination.size:
                destination.failure = None
        origin.reply()
        return True

    def fill(self, origin: Origin, command: commands_pb2.Fill) -> Operation:
        """Returns the operation that fills a range of the buffer with a pattern.

        Raises Refusal(INVALID_ARGUMENT) for a wrong length of the pattern.
        """
        buffer = origin.session.buffers.find(command.buffer)
        check_pattern(command)
        return Operation(
            origin,
            partial(self._fill, origin, command, buffer),
            writes=(origin.stream, buffer),
            spoils=(buffer,),
        )

    def _fill(self, origin: Origin, command: commands_pb2.Fill, buffer: Buffer) -> bool:
        device = self._device
        track = origin.stream.track
        if track.full:
            return False
        node = fill_node(command, buffer)
        if origin.capture is not None:
            origin.capture.add_fill(buffer, node)
        elif node.size:
            device.tracks.claim_position(track, (buffer.usage,))
            device.begin(origin.stream, node.size)
            device.server.fill(node.address, node.pattern, node.size, track.stream)
            device.telemetry.fills += 1
            device.telemetry.filled_bytes += node.size
            if node.size == buffer.size:
                buffer.failure = None
        origin.reply()
        return True


def rows_of(kind: str, command: commands_pb2.Write | commands_pb2.Read, size: int) -> RowLayout:
    """Returns the range or the rows of the buffer that a write or read of `size` bytes refers to.

    Raises Refusal(INVALID_ARGUMENT).
    """
    if not command.HasField("rows"):
        return RowLayout(command.offset, size)
    rows = command.rows
    return check_rows(kind, command.offset, size, rows.width, rows.rows, rows.pitch)


def copy_node(command: commands_pb2.Copy, destination: Buffer, source: Buffer) -> CopyNode:
    """Returns the copy with its addresses. If the rows are dense on both sides, the copy has a single row.

    Raises Refusal for ranges outside the buffers, overlapping rows, overlapping ranges, and an array of pointers.
    """
    destination.check_writable("copy, destination")
    if source.has_pointers:
        raise Refusal(
            Reason.UNSUPPORTED,
            f"copy: buffer {source.handle} {POINTERS.why}, and launches would not be ordered by the targets of a copy",
            fix="make another array of pointers",
            details={"buffer": source.handle},
        )
    width, rows = command.size, max(command.rows, 1)
    check_pitch("copy, destination", width, rows, command.destination_pitch)
    check_pitch("copy, source", width, rows, command.source_pitch)
    destination_rows = RowLayout(command.destination_offset, width, rows, command.destination_pitch)
    source_rows = RowLayout(command.source_offset, width, rows, command.source_pitch)
    destination_address = locate(destination, destination_rows, "copy, destination")
    source_address = locate(source, source_rows, "copy, source")
    if destination is source:
        check_apart(source.handle, destination_rows, source_rows)
    if destination_rows.dense and source_rows.dense:
        return CopyNode(destination_address, source_address, width * rows)
    return CopyNode(destination_address, source_address, width, rows, destination_rows.pitch, source_rows.pitch)


def check_pattern(command: commands_pb2.Fill) -> None:
    """Raises Refusal(INVALID_ARGUMENT) if offset, size and pattern of a fill do not match."""
    pattern = command.pattern
    if len(pattern) not in PATTERN_SIZES or command.size % len(pattern) or command.offset % len(pattern):
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"fill of {command.size} bytes at {command.offset} with a pattern of {len(pattern)}",
            fix=f"the pattern has {PATTERN_SIZES} bytes, and offset and size are multiples of that",
            details={"size": command.size, "offset": command.offset, "pattern": len(pattern)},
            fields=["pattern", "offset", "size"],
        )


def fill_node(command: commands_pb2.Fill, buffer: Buffer) -> FillNode:
    """Returns the fill with its address. Raises Refusal if the range is outside the buffer."""
    buffer.check_writable("fill")
    address = buffer.range(command.offset, command.size, "fill")
    return FillNode(address, command.pattern, command.size)


def _piece(operation: Operation, command: commands_pb2.Write | commands_pb2.Read, size: int) -> Operation:
    """Returns the operation of `size` bytes, which is cancelled with the other pieces of its copy if it has any."""
    if command.HasField("split"):
        cancellations = operation.origin.session.cancellations
        split = operation.split = cancellations.split(command.split.number, command.split.size)
        operation.after = partial(cancellations.piece_done, split, size)
    return operation


def _answer_read(origin: Origin, data: bytes) -> None:
    origin.reply(commands_pb2.Result(read=commands_pb2.ReadResult(data=data, size=len(data))))
