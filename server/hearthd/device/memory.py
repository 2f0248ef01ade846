"""Allocate, free, write, read, copy, fill: the commands on buffers."""

from __future__ import annotations

from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.context import Device
from hearthd.device.copies import Copies, refused_read
from hearthd.device.operation import Operation, Origin
from hearthd.device.reservations import Reservations
from hearthd.device.server import HostBuffer
from hearthd.device.tables import Buffer, Session
from hearthd.device.tracks import Track
from hearthd.device.transfers import Transfers

PATTERN_SIZES = (1, 2, 4, 8, 16)


class MemoryCommands:
    """Checks and orders the commands on buffers; `Transfers` carries those whose bytes travel beside the batch."""

    def __init__(self, device: Device, copies: Copies, transfers: Transfers) -> None:
        self._device = device
        self._copies = copies
        self._transfers = transfers
        self.reservations = Reservations(device)

    def allocate(self, origin: Origin, command: commands_pb2.Allocate) -> None:
        """At once, also while the stream waits: nothing can refer to the buffer before."""
        session = origin.session
        session.buffers.check_new(command.buffer)
        buffer = Buffer(command.buffer, command.size)
        session.buffers.items[command.buffer] = buffer
        try:
            self._reserve(session, origin.stream.track, buffer)
        except Refusal as refusal:
            self._device.telemetry.out_of_memory += 1
            buffer.lost = refusal
            origin.fail(refusal, (buffer,))  # what is done to the buffer next is skipped, and not reported beside it
            return
        origin.reply()

    def _reserve(self, session: Session, track: Track, buffer: Buffer) -> None:
        device = self._device
        limit = device.spec.memory_limit or device.server.properties.total_memory
        if buffer.size > limit:
            info = device.server.memory_info()
            raise Refusal(
                Reason.OUT_OF_MEMORY,
                f"{buffer.size} bytes can never fit: device {device.spec.ordinal} has {limit}",
                fix="allocate less, or split the data over several devices",
                details={"requested": buffer.size, "total": limit, "free": info.free, "reserved": info.reserved},
            )
        buffer.reservation = self.reservations.take(session, buffer.size, track, [buffer])
        buffer.address = buffer.reservation.memory.address

    def free(self, origin: Origin, command: commands_pb2.Free) -> Operation | None:
        """The handles die now, the memory when the work that uses it is done."""
        session = origin.session
        buffers: list[Buffer] = []
        unknown: Refusal | None = None
        for handle in command.buffers:
            try:
                buffers.append(session.buffers.pop(handle))
            except Refusal as refusal:
                unknown = refusal

        def run() -> bool:
            for buffer in buffers:
                self.release(session, buffer)
            if unknown is not None:
                raise unknown
            origin.reply()
            return True

        return Operation(origin, run, writes=tuple(buffers))

    def release(self, session: Session, buffer: Buffer) -> None:
        """The handle is gone: gives the memory back, behind every use of it, once nobody holds it any more."""
        buffer.freed = True
        if not buffer.holders:
            self._give_back(session, buffer)

    def hold(self, buffer: Buffer) -> None:
        """Keeps the memory until `let_go`, also when the handle is freed: for graphs and prepared launches."""
        buffer.holders += 1

    def let_go(self, session: Session, buffer: Buffer) -> None:
        """The end of one `hold`; `session` is the buffer's."""
        buffer.holders -= 1
        if buffer.freed and not buffer.holders:
            self._give_back(session, buffer)

    def _give_back(self, session: Session, buffer: Buffer) -> None:
        reservation, buffer.reservation = buffer.reservation, None
        if reservation is not None:
            self.reservations.give(session, reservation, buffer)

    def close(self, session: Session) -> None:
        """Frees all that the session has, behind its work under way. What is held goes when its holders let go."""
        for buffer in session.buffers.items.values():
            self.release(session, buffer)
        self.reservations.close(session)

    def write(self, origin: Origin, command: commands_pb2.Write) -> Operation:
        buffer = origin.session.buffers.find(command.buffer)
        if command.transfer:
            return self._transfers.write(origin, command, buffer)
        return Operation(
            origin,
            partial(self._write, origin, buffer, command.offset, command.data),
            writes=(origin.stream, buffer),
            spoils=(buffer,),
        )

    def _write(self, origin: Origin, buffer: Buffer, offset: int, data: bytes) -> bool:
        device = self._device
        track = origin.stream.track
        if track.full:
            return False
        size = len(data)
        address = buffer.range(offset, size, "write")
        if size:
            host = device.staging.acquire(size)
            if host is None:
                return False
            host.view[:size] = data
            self._copies.upload(origin, buffer, address, host, size)
            if size == buffer.size:
                buffer.failure = None
        origin.reply()
        return True

    def read(self, origin: Origin, command: commands_pb2.Read) -> Operation:
        buffer = origin.session.buffers.find(command.buffer)
        if not origin.answered:
            raise Refusal(Reason.INVALID_ARGUMENT, "a read needs a request number", fix="set Command.request")
        if command.transfer:
            return self._transfers.read(origin, command, buffer)
        limit = self._device.spec.max_inline_bytes
        if command.size > limit:
            raise Refusal(
                Reason.MESSAGE_TOO_LARGE,
                f"a read of {command.size} bytes inside a batch; the most is {limit}",
                fix="name a transfer and open a Download stream for it",
                details={"size": command.size, "max_inline_bytes": limit},
            )
        return Operation(
            origin,
            partial(self._read, origin, buffer, command.offset, command.size),
            writes=(origin.stream,),
            reads=(buffer,),
        )

    def _read(self, origin: Origin, buffer: Buffer, offset: int, size: int) -> bool:
        device = self._device
        track = origin.stream.track
        if track.full:
            return False
        if refused_read(origin, buffer):
            return True
        address = buffer.range(offset, size, "read")
        if not size:
            device.tracks.on_complete(track, partial(self._answer_read, origin, None, 0))
            return True
        host = device.staging.acquire(size)
        if host is None:
            return False
        self._copies.download(origin, buffer, address, host, size)
        device.tracks.on_complete(track, partial(self._answer_read, origin, host, size))
        return True

    def _answer_read(self, origin: Origin, host: HostBuffer | None, size: int) -> None:
        data = b""
        if host is not None:
            data = bytes(host.view[:size])
            self._device.staging.release(host)
        origin.reply(commands_pb2.Result(read=commands_pb2.ReadResult(data=data, size=size)))

    def copy(self, origin: Origin, command: commands_pb2.Copy) -> Operation:
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
        size = command.size
        to = destination.range(command.destination_offset, size, "copy, destination")
        since = source.range(command.source_offset, size, "copy, source")
        if destination is source and abs(to - since) < size:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"copy within buffer {source.handle}: bytes [{command.source_offset}..{command.source_offset + size}) "
                f"and [{command.destination_offset}..{command.destination_offset + size}) overlap",
                fix="copy through a third buffer",
            )
        if size:
            device.begin(origin.stream)
            device.tracks.before(track, (destination.usage,), () if destination is source else (source.usage,))
            device.server.copy(to, since, size, track.stream)
            device.telemetry.device_to_device_bytes += size
            if size == destination.size:
                destination.failure = None
        origin.reply()
        return True

    def fill(self, origin: Origin, command: commands_pb2.Fill) -> Operation:
        buffer = origin.session.buffers.find(command.buffer)
        pattern = command.pattern
        if len(pattern) not in PATTERN_SIZES or command.size % len(pattern) or command.offset % len(pattern):
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"fill of {command.size} bytes at {command.offset} with a pattern of {len(pattern)}",
                fix=f"the pattern has {PATTERN_SIZES} bytes, and offset and size are multiples of that",
                details={"size": command.size, "offset": command.offset, "pattern": len(pattern)},
            )
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
        address = buffer.range(command.offset, command.size, "fill")
        if command.size:
            device.begin(origin.stream)
            device.tracks.before(track, (buffer.usage,))
            device.server.fill(address, command.pattern, command.size, track.stream)
            device.telemetry.fills += 1
            if command.size == buffer.size:
                buffer.failure = None
        origin.reply()
        return True

    def memory_usage(self, origin: Origin, _command: commands_pb2.MemoryUsage) -> None:
        session = origin.session
        info = self._device.server.memory_info()
        limit = self._device.spec.memory_limit
        total = min(limit, info.total) if limit else info.total
        usage = commands_pb2.MemoryUsageResult(
            allocations=session.allocations,
            bytes_in_use=session.bytes_in_use,
            bytes_padding=session.bytes_reserved - session.bytes_in_use,
            bytes_reserved=info.reserved,
            device_free=info.free,
            device_total=total,
        )
        origin.reply(commands_pb2.Result(memory_usage=usage))

    def memory_cleanup(self, origin: Origin, _command: commands_pb2.MemoryCleanup) -> None:
        self.reservations.cleanup(origin.session)
        origin.reply()
