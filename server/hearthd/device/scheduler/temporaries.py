"""Temporaries: allocations, fills, writes, short reads and frees of buffers that are executed immediately.

Commands are executed here only while no other command of the session is waiting.

A command that may have to wait, is traced or may fail needs an origin and an operation, which cost more than an
allocation from the pool (figures: `docs/performance.md`). A command without these needs has the same effects here as
on the queued path (`hearthd.device.memory.commands`, `hearthd.device.transfers.copy_commands`), or no effect, and then
the queued path executes it.
"""

from __future__ import annotations

from functools import partial

from hearth_proto.reasons import Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.backend.server import DeviceFault
from hearthd.device.context import DeviceContext
from hearthd.device.memory.commands import MemoryCommands
from hearthd.device.memory.deferred_free import FEW
from hearthd.device.memory.reservations import Reservation
from hearthd.device.operation import Origin, ReplySink, internal_error
from hearthd.device.scheduler.batch_run import InlineHandler
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import BatchEntry, DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_pool import PooledStream, StreamPool
from hearthd.device.transfers.copy_commands import PATTERN_SIZES


class Temporaries:
    """Executes simple commands immediately. Device-handle thread only."""

    def __init__(self, device: DeviceContext, memory: MemoryCommands, replies: ReplySink) -> None:
        self._device = device
        self._reservations = memory.reservations
        self._replies = replies
        self._counts = device.telemetry.operations
        self.handlers: dict[str, InlineHandler] = {
            "allocate": (self.allocate, 0),
            "free": (self.free, 0),
            "fill": (self.fill, 1),
            "write": (self.write, 1),
            "read": (self.read, 1),
        }
        """Handlers by name of the command's field. Each returns False, without effect, if the queued path must execute
        the command."""

    def allocate(self, session: DeviceSession, command: commands_pb2.Command, _batch: BatchEntry, _index: int) -> bool:
        """Allocates one new, non-empty buffer."""
        stream = _plain_stream(session, command, "allocate")
        if stream is None:
            return False
        allocation, buffers = command.allocate, session.buffers
        handle = allocation.buffer
        if not handle or handle in buffers.items or len(allocation.parts) or buffers.has_tombstone(handle):
            return False
        if len(buffers.items) >= buffers.bound:
            return False
        buffer = Buffer(handle, allocation.size)
        if not self._reservations.allocate_one(session, buffer, stream.track):
            return False
        buffers.items[handle] = buffer
        self._counts["allocate"] += 1
        return True

    def free(self, session: DeviceSession, command: commands_pb2.Command, batch: BatchEntry, index: int) -> bool:
        """Frees a few buffers, each of which is the only one in its reservation and has no other holder."""
        stream = _plain_stream(session, command, "free")
        if stream is None:
            return False
        handles = command.free.buffers[:]  # a list, because iteration over the protobuf field takes twice as long
        items = session.buffers.items
        freed = list(map(items.get, handles))
        if not 0 < len(freed) <= FEW or (len(freed) > 1 and len(set(handles)) < len(freed)):
            return False
        for buffer in freed:
            if buffer is None or buffer.place is not None or buffer.durable is not None or buffer.holders:
                return False
            reservation: Reservation | None = buffer.reservation
            if reservation is None or not reservation.alone:
                return False
        self._counts["free"] += 1
        free_one = self._reservations.free_one
        failure: Refusal | None = None
        pop = session.buffers.pop
        for handle in handles:
            buffer = pop(handle)
            buffer.freed = True
            try:
                free_one(session, buffer)
            except DeviceFault:
                raise
            except Exception as error:  # the remaining buffers are freed nevertheless
                failure = failure or (error if isinstance(error, Refusal) else internal_error("free", error))
        if failure is not None:
            Origin(self._replies, session, stream, "free", batch=batch, index=index).fail(failure)
        return True

    def fill(self, session: DeviceSession, command: commands_pb2.Command, _batch: BatchEntry, _index: int) -> bool:
        """Fills a range of a buffer that has no failures."""
        stream = _plain_stream(session, command, "fill")
        if stream is None:
            return False
        fill = command.fill
        offset, size, pattern = fill.offset, fill.size, fill.pattern
        width = len(pattern)
        if width not in PATTERN_SIZES or size % width or offset % width:
            return False
        buffer = _writable(session, stream, fill.buffer, offset, size)
        if buffer is None:
            return False
        device, track = self._device, stream.track
        _claim_position(device.tracks, track, buffer.usage)
        try:
            device.server.fill(buffer.address + offset, pattern, size, track.stream)
        except DeviceFault:
            raise
        except Exception:
            return False  # the queued path repeats the call and reports the error
        telemetry = device.telemetry
        telemetry.fills += 1
        telemetry.filled_bytes += size
        self._counts["fill"] += 1
        return True

    def write(self, session: DeviceSession, command: commands_pb2.Command, _batch: BatchEntry, _index: int) -> bool:
        """Writes bytes that came with the command into one range of a buffer that has no failures."""
        stream = _plain_stream(session, command, "write")
        if stream is None:
            return False
        write = command.write
        if write.transfer or write.HasField("shared") or write.HasField("rows") or write.HasField("split"):
            return False
        data, offset = write.data, write.offset
        size = len(data)
        buffer = _writable(session, stream, write.buffer, offset, size)
        if buffer is None:
            return False
        device, track = self._device, stream.track
        staging = device.staging
        host = staging.find(size, session)
        if host is None:
            return False
        host.view[:size] = data
        _claim_position(device.tracks, track, buffer.usage)
        try:
            device.server.upload(buffer.address + offset, host, 0, size, track.stream)
        except DeviceFault:
            raise
        except Exception:
            return False
        finally:
            staging.drop(track, host)  # released after the part that the driver has accepted
        telemetry = device.telemetry
        telemetry.host_to_device_bytes += size
        telemetry.host_to_device_operations += 1
        telemetry.upload_inline_bytes += size
        self._counts["write"] += 1
        return True

    def read(self, session: DeviceSession, command: commands_pb2.Command, _batch: BatchEntry, _index: int) -> bool:
        """Reads one range of a buffer that has no failures into the answer."""
        stream = _plain_stream(session, command, "read", answered=True)
        read = command.read
        if stream is None or read.transfer or read.HasField("shared") or read.HasField("rows"):
            return False
        if read.HasField("split"):
            return False
        device, track, size = self._device, stream.track, read.size
        buffer = session.buffers.items.get(read.buffer)
        if (
            buffer is None
            or not 0 < size <= device.spec.max_inline_bytes
            or read.offset + size > buffer.size
            or buffer.failure is not None
            or buffer.lost is not None
            or stream.errors
            or stream.starting
            or track.full
            or device.tracks.pending_outcomes.open
        ):
            return False
        staging = device.staging
        host = staging.find(size, session)
        if host is None:
            return False
        device.tracks.claim_position(track, (), (buffer.usage,))
        try:
            device.server.download(host, 0, buffer.address + read.offset, size, track.stream)
        except DeviceFault:
            raise
        except Exception:
            staging.drop(track, host)
            return False
        device.tracks.answer_when_done(track, partial(self._answer, session, command.request, host, size))
        telemetry = device.telemetry
        telemetry.device_to_host_bytes += size
        telemetry.device_to_host_operations += 1
        telemetry.download_inline_bytes += size
        self._counts["read"] += 1
        return True

    def _answer(self, session: DeviceSession, request: int, host: HostBuffer, size: int) -> None:
        """Answers a read, whose bytes are in `host`."""
        result = commands_pb2.Result(request=request)
        read = result.read  # filled in place: each message in another one is a copy
        read.data = bytes(host.view[:size])
        read.size = size
        self._device.staging.release(host)
        self._replies.result(session, 0, result)


def _plain_stream(
    session: DeviceSession, command: commands_pb2.Command, kind: str, answered: bool = False
) -> LogicalStream | None:
    """Returns the command's stream if the command need not wait, and is `answered` or not as given; otherwise None."""
    if bool(command.request) != answered or session.deferred.waiting or session.trace is not None:
        return None
    permissions = session.permissions
    if permissions is not None and kind not in permissions.allowed:
        return None
    stream = session.streams.items.get(command.stream)
    return stream if stream is not None and stream.capture is None else None


def _writable(session: DeviceSession, stream: LogicalStream, handle: int, offset: int, size: int) -> Buffer | None:
    """Returns the buffer if the stream accepts a write of these bytes now without a failure, else None."""
    if not size or stream.starting or stream.track.full:
        return None
    buffer = session.buffers.items.get(handle)
    if (
        buffer is None
        or buffer.failure is not None
        or buffer.lost is not None
        or buffer.read_only is not None
        or offset + size > buffer.size
    ):
        return None
    return buffer


def _claim_position(tracks: StreamPool, track: PooledStream, usage: Usage) -> None:
    """Orders a write to a buffer on the track, as `StreamPool.claim_position` does.

    Has a shortcut for the most frequent case, in which no other track has used the buffer.
    """
    if usage.track == track.index and usage.reads is None and not tracks.pending_outcomes.open:
        usage.position = tracks.step(track)
    else:
        tracks.claim_position(track, (usage,))
