"""Snapshot: copies durable buffers to the host at one position of a stream, all of them or none.

A snapshot consists of two operations. The first briefly holds the stream, to record the position. The second reads the
buffers until the last of their bytes has been submitted to the device; meanwhile only later writers of these buffers
wait, and the stream continues. The copies run on a separate track, chunk by chunk, through staging memory into the
session's file (see `hearthd.device.durable.file_io`), and are valid after the front has confirmed them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hearth_proto.layouts import RowLayout
from hearth_proto.reasons import Refusal
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.durable.buffers import DurableBuffer, never_granted, not_written
from hearthd.device.durable.resources import DurableResources
from hearthd.device.durable.snapshot_policy import SnapshotAreas
from hearthd.device.flows.stripe_window import UnpinnedSlot
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.pending_outcomes import PendingOutcome
from hearthd.device.streams.stream_pool import PooledStream
from hearthd.device.transfers.buffer_copy import BufferCopy


class BufferSnapshot:
    """Copy of one buffer; `submitted` is the number of its bytes that have been submitted."""

    __slots__ = ("area", "areas", "direct", "durable", "submitted")

    def __init__(self, durable: DurableBuffer, areas: SnapshotAreas, direct: BufferCopy) -> None:
        self.durable = durable
        self.areas = areas
        self.area = areas.begin()
        self.direct = direct
        self.submitted = 0


class SnapshotChunk(NamedTuple):
    """Bytes of a copy on their way through `host` into the file; `early`: submitted before the position is reached."""

    copy: BufferSnapshot
    file_offset: int
    size: int
    host: HostBuffer
    early: bool


class Snapshot:
    """A snapshot under way. Device-handle thread only."""

    def __init__(self, resources: DurableResources, origin: Origin, durables: list[DurableBuffer]) -> None:
        self.stream: LogicalStream = origin.stream
        self.over = False
        self._resources = resources
        self._device = resources.device
        self.session = origin.session
        self._origin = origin
        self._durables = durables
        self.track: PooledStream | None = None
        """The track of the copies; None before they begin."""
        self._lent: PooledStream | None = None
        """The separate track, if the copies may be submitted before the position is reached; otherwise None."""
        self._reached = False
        self._copies: list[BufferSnapshot] | None = None
        self._sent: list[BufferSnapshot] = []
        """Copies that have been reported to the front and wait for its decision."""
        self._outcomes: dict[PendingOutcome, None] = {}
        """Outcomes of collectives that the buffers' contents depend on."""
        self._all_submitted = False
        self._under_way = 0
        """Number of chunks that the device or the file has not completed."""
        self._callbacks: list[Callable[[], None]] = []

    def operations(self, first: Origin) -> tuple[Operation, Operation]:
        """Returns both operations.

        `first` is the origin of the first one, which is ordered in the stream and belongs to the batch; the snapshot's
        own origin belongs to the second.
        """
        buffers = tuple(durable.buffer for durable in self._durables)
        position_operation = Operation(
            first, self._record_position, writes=(self.stream, self), reads=buffers, needs=buffers
        )
        copy_operation = Operation(self._origin, self._copy, reads=(self, *buffers))
        position_operation.on_failure = copy_operation.on_failure = self.cancel
        return position_operation, copy_operation

    def then(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the snapshot has succeeded or failed."""
        if self.over:
            callback()
        else:
            self._callbacks.append(callback)

    # ---- position in the stream ----

    def _record_position(self) -> bool:
        for durable in self._durables:
            if durable.refusal is not None:
                raise never_granted(durable, durable.refusal)
            try:
                durable.buffer.range(0, durable.buffer.size, self._origin.name)
            except Refusal:
                durable.end()
                raise
        tracks = self._device.tracks
        stream = self.stream
        before = [stream.track, *stream.collectives]
        if not any(durable.queue for durable in self._durables):
            self.track = self._lent = self._resources.acquire_track()
        if self.track is not None:
            for track in before:
                tracks.fence(self.track, track)
        writers = {durable.buffer.usage.track for durable in self._durables} - {track.index for track in before}
        before += [tracks.all[writer] for writer in writers if writer >= 0]
        tracks.after_all(before, self._arrive)
        for durable in self._durables:
            durable.queue.append(self)
        return True

    def _arrive(self) -> None:
        self._reached = True
        self._device.kick(self.session)

    # ---- copies ----

    def _copy(self) -> bool:
        """Submits the copies that the device may have by now. Returns True once all are submitted."""
        if self.over:
            return True
        if self._copies is None and not self._begin():
            return self.over
        file, track = self._resources.file(self.session), self.track
        if file is None or track is None:
            return False
        for copy in self._copies or ():
            size = copy.durable.buffer.size
            while copy.submitted < size and not copy.durable.ended:
                if track.full or not self._chunk(file, track, copy, size - copy.submitted):
                    return False
        self._all_submitted = True
        self._settle()
        return True

    def _begin(self) -> bool:
        """Takes the areas for the copies, once earlier snapshots no longer use them.

        Returns False if it must wait.
        """
        if self.track is None and not self._reached:
            return False
        live = [durable for durable in self._durables if not durable.ended]
        areas: list[SnapshotAreas] = []
        for durable in live:
            if durable.refusal is not None:
                raise durable.refusal
            if durable.areas is None or durable.queue[0] is not self or not durable.areas.idle:
                return False
            areas.append(durable.areas)
        if self.track is None:
            self.track = self._resources.track()
        self._copies = []
        for durable, buffer_areas in zip(live, areas, strict=True):
            direct = BufferCopy(self._device, self._origin, durable.buffer, RowLayout(0, durable.buffer.size))
            direct.address = durable.buffer.address
            self._copies.append(BufferSnapshot(durable, buffer_areas, direct))
        return True

    def _chunk(self, file: int, track: PooledStream, copy: BufferSnapshot, remaining: int) -> bool:
        device, buffer, session = self._device, copy.durable.buffer, self.session
        size = min(remaining, self._resources.allowance.chunk(session.pinned_bytes))
        if copy.direct.waits:
            return self._chunk_directly(file, copy, size)
        early = not self._reached
        if not self._resources.allowance.acquire(size, early):
            return False
        host = device.staging.find(size, session)
        if host is None:
            self._resources.give_back(size, early=early)
            return device.staging.refusal(size) is not None and self._chunk_directly(file, copy, size)
        try:
            device.tracks.claim_position(track, (), (buffer.usage,))
            if device.record is not None:
                device.record.begin(track, size, None)
            device.server.download(host, 0, buffer.address + copy.submitted, size, track.stream)
        except Refusal:
            device.staging.drop(track, host)
            self._resources.give_back(size, early=early)
            raise
        device.telemetry.device_to_host_bytes += size
        device.telemetry.device_to_host_operations += 1
        chunk = self._submitted(copy, size, host, early)
        self._outcomes.update(dict.fromkeys(device.tracks.pending_outcomes.of_buffer(buffer.usage)))
        arrived = partial(self._arrived, file, chunk)
        device.tracks.on_complete(track, device.tracks.pending_outcomes.when_settled(buffer.usage, arrived))
        return True

    def _chunk_directly(self, file: int, copy: BufferSnapshot, size: int) -> bool:
        """Copies a chunk without page-locked memory; see `BufferCopy`."""
        host = UnpinnedSlot(size)
        if not copy.direct.get_into(copy.submitted, host.view):
            return False
        self._write(file, self._submitted(copy, size, host, early=False))
        return True

    def _submitted(self, copy: BufferSnapshot, size: int, host: HostBuffer, early: bool) -> SnapshotChunk:
        """Counts the next chunk of a copy as submitted, and returns it."""
        chunk = SnapshotChunk(copy, copy.areas.at(copy.area) + copy.submitted, size, host, early)
        copy.submitted += size
        self._under_way += 1
        self._device.telemetry.checkpointed_bytes += size
        return chunk

    def _arrived(self, file: int, chunk: SnapshotChunk) -> None:
        """Writes a chunk to the file after the device has copied it to host memory."""
        if self.over or chunk.copy.durable.ended:
            self._done(chunk)
        else:
            self._write(file, chunk)

    def _write(self, file: int, chunk: SnapshotChunk) -> None:
        chunk.copy.durable.writes += 1
        data = chunk.host.view[: chunk.size]
        self._resources.files.write(file, data, chunk.file_offset, partial(self._written, chunk))

    def _written(self, chunk: SnapshotChunk, error: OSError | None) -> None:
        chunk.copy.durable.write_ended()
        if error is not None:
            self.fail(not_written(error))
        self._done(chunk)

    def _done(self, chunk: SnapshotChunk) -> None:
        """Releases the memory of a chunk, and counts the chunk as completed."""
        self._resources.release(chunk.host, chunk.size, early=chunk.early)
        self._under_way -= 1
        self._settle()

    # ---- completion ----

    def _settle(self) -> None:
        """Reports the copies to the front for confirmation, once they are complete."""
        if self.over or not self._all_submitted or self._under_way:
            return
        self._all_submitted = False  # reports only once
        failure = next((outcome.failure for outcome in self._outcomes if outcome.failure is not None), None)
        if failure is not None:
            self.fail(failure.cause.refusal)
            return
        live = [copy for copy in self._copies or () if not copy.durable.ended]
        for copy in live:
            copy.areas.send()
        self._sent = live
        self._copies = []
        if live:
            body = {"commit": [(copy.durable.key, copy.area) for copy in live]}
            self._resources.request(self.session, body, lambda _, refusal: self.committed(refusal))
        else:
            self.committed(None)

    def committed(self, refusal: Refusal | None) -> None:
        """Handles the front's confirmation (None) or refusal."""
        for copy in self._sent:
            if refusal is None:
                copy.areas.commit()
            else:
                copy.areas.fail()
        if refusal is not None:
            self.fail(refusal)
        elif not self.over:
            self._device.telemetry.checkpoints += 1
            self._finish()
            self._origin.reply()

    def fail(self, refusal: Refusal) -> None:
        """Fails the snapshot and answers its command; earlier copies stay valid."""
        if not self.over:
            self.cancel(refusal)
            self._origin.fail(refusal)

    def cancel(self, _refusal: Refusal) -> None:
        """Ends a snapshot whose failure the caller answers."""
        if not self.over:
            for copy in self._copies or ():
                copy.areas.fail()
            self._finish()

    def _finish(self) -> None:
        self.over = True
        for durable in self._durables:
            if self in durable.queue:
                durable.queue.remove(self)
        if self.track is not None:
            for durable in self._durables:
                durable.buffer.usage.discard_reads(self.track.index, self.track.done_position)
        if self._lent is not None:
            self._resources.return_track(self._lent)
        callbacks, self._callbacks = self._callbacks, []
        self.session.snapshots.pop(self, None)
        for callback in callbacks:  # after the failure of the snapshot, if any, has been recorded
            self._resources.post(callback)
        self._device.kick(self.session)
