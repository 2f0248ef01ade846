"""Restore of durable buffers, which runs before any other work of the process.

Allocates memory under their previous handles, and fills it from the session's file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from hearth_proto.layouts import RowLayout
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.durable.buffers import DurableBuffer, not_restored
from hearthd.device.durable.resources import DurableResources
from hearthd.device.durable.snapshot_policy import SnapshotAreas
from hearthd.device.flows.stripe_window import UnpinnedSlot
from hearthd.device.memory.deferred_allocation import DEFERRED_ALLOCATION, DeferredAllocation
from hearthd.device.operation import Operation, Origin, submit
from hearthd.device.platform.event_loop import countdown
from hearthd.device.transfers.buffer_copy import BufferCopy


def restore(
    resources: DurableResources,
    origin: Origin,
    copies: Sequence[tuple[DurableBuffer, SnapshotAreas]],
    done: Callable[[dict[int, str]], None],
) -> None:
    """Submits the allocations and copies of all durable buffers of one session.

    At the end, `done` is called with the reasons for all buffers that could not be restored, by key; never without
    `copies`.
    """
    failed: dict[int, str] = {}
    complete_one = countdown(len(copies), lambda: done(failed))

    def buffer_done(durable: DurableBuffer, refusal: Refusal | None) -> None:
        if refusal is not None:
            failed[durable.key] = refusal.message
        complete_one()

    for durable, areas in copies:
        durable.grant(areas)
        buffer_restore = BufferRestore(resources, origin, durable, areas, partial(buffer_done, durable))
        for operation in buffer_restore.operations():
            submit(operation)


class RestoreChunk(NamedTuple):
    """Bytes, starting at byte `at`, being read into `host`."""

    at: int
    size: int
    host: HostBuffer


class BufferRestore:
    """The restore of one buffer. Device-handle thread only."""

    def __init__(
        self,
        resources: DurableResources,
        origin: Origin,
        durable: DurableBuffer,
        areas: SnapshotAreas,
        done: Callable[[Refusal | None], None],
    ) -> None:
        self._resources = resources
        self._device = resources.device
        self._origin = origin
        self._session = origin.session
        self._durable = durable
        self._buffer = durable.buffer
        self._areas = areas
        self._done = done
        self._track = origin.stream.track
        self._allocation = DeferredAllocation(resources.device, resources.reservations, origin.session, self._reserve)
        self._copy = BufferCopy(resources.device, origin, durable.buffer, RowLayout(0, durable.buffer.size))
        self._requested = 0
        self._submitted = 0
        self._chunks: deque[RestoreChunk] = deque()
        self._over = False

    def operations(self) -> tuple[Operation, Operation]:
        """Returns two operations: the first allocates the memory, the second fills it."""
        allocate = Operation(self._origin, self._allocate, writes=(DEFERRED_ALLOCATION, self._buffer))
        fill = Operation(self._origin, self._fill, writes=(self._buffer,))
        allocate.on_failure = fill.on_failure = self._fail
        return allocate, fill

    # ---- memory ----

    def _allocate(self) -> bool:
        try:
            return self._over or self._allocation.run()
        except Refusal as refusal:
            self._fail(refusal)
            return True

    def _reserve(self) -> None:
        buffer = self._buffer
        reservation = self._resources.reservations.allocate(self._session, buffer.size, self._track, [buffer])
        buffer.reservation = reservation
        buffer.address = self._copy.address = reservation.memory.address

    # ---- contents ----

    def _fill(self) -> bool:
        try:
            if not self._over and self._advance():
                self._device.tracks.on_complete(self._track, partial(self._finish, None))
                return True
        except Refusal as refusal:
            self._fail(refusal)
        return self._over

    def _advance(self) -> bool:
        """Reads and uploads as much as there is room for.

        Returns True once all bytes have been submitted to the device.
        """
        while self._chunks:
            if not self._put(self._chunks[0]):
                return False
            self._submitted += self._chunks.popleft().size
        size = self._buffer.size
        while self._requested < size:
            if not self._read_chunk(
                min(size - self._requested, self._resources.allowance.chunk(self._session.pinned_bytes))
            ):
                return False
        return self._submitted == size

    def _read_chunk(self, size: int) -> bool:
        resources, staging = self._resources, self._device.staging
        file = resources.file(self._session)
        if file is None or not resources.allowance.acquire(size, early=False):
            return False
        host: HostBuffer | None = staging.find(size, self._session)
        if host is None:
            resources.give_back(size, early=False)
            # Without page-locked memory, one chunk at a time.
            if staging.refusal(size) is None or self._requested > self._submitted:
                return False
            host = UnpinnedSlot(size)
        chunk = RestoreChunk(self._requested, size, host)
        self._requested += size
        assert self._areas.committed is not None, "only complete copies are restored"
        file_offset = self._areas.at(self._areas.committed) + chunk.at
        resources.files.read(file, host.view[:size], file_offset, partial(self._arrived, chunk))
        return True

    def _arrived(self, chunk: RestoreChunk, error: OSError | None) -> None:
        """Handles the end of a read from the file."""
        if error is not None:
            self._fail(Refusal(Reason.BUFFER_LOST, f"its copy in the host's memory cannot be read: {error}"))
        if self._over:
            self._release(chunk)
        else:
            self._chunks.append(chunk)
            self._device.kick(self._session)

    def _put(self, chunk: RestoreChunk) -> bool:
        """Submits a chunk to the device. Returns False if the chunk must wait."""
        track = self._track
        if isinstance(chunk.host, UnpinnedSlot):
            return self._copy.put_now(chunk.at, chunk.host.view)
        if track.full:
            return False
        self._copy.upload(chunk.host, 0, chunk.at, chunk.size)
        self._device.tracks.on_complete(track, partial(self._release, chunk))
        return True

    def _release(self, chunk: RestoreChunk) -> None:
        self._resources.release(chunk.host, chunk.size, early=False)

    # ---- completion ----

    def _fail(self, refusal: Refusal) -> None:
        """Ends the restore of the buffer with a failure.

        The handle stays valid and carries the reason why it has no memory.
        """
        if self._over:
            return
        buffer = self._buffer
        buffer.lost = not_restored(refusal)
        reservation, buffer.reservation = buffer.reservation, None
        if reservation is not None:
            self._resources.reservations.free(self._session, reservation, buffer)
        self._durable.end()
        while self._chunks:
            self._release(self._chunks.popleft())
        self._finish(refusal)

    def _finish(self, refusal: Refusal | None) -> None:
        if not self._over:
            self._over = True
            self._done(refusal)
            self._device.kick(self._session)  # so that the remaining operations end
