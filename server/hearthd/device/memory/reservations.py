"""Reservations: the accounting of each session's device memory, and its allocation from the pool.

A reservation is one allocation from the pool. It contains one or more buffers, and is freed with the last of them.
Every reservation is backed by memory: the pool never grants the same bytes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import Memory
from hearthd.device.backend.server import DeviceFault
from hearthd.device.context import DeviceContext
from hearthd.device.memory.deferred_free import DeferredFree
from hearthd.device.resources.budget import out_of_memory, over_quota, rounded
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_pool import PooledStream


class Reservation:
    """An allocation from the pool. `home` is the track on which it was allocated."""

    __slots__ = ("accounted_session", "home", "last", "live_buffers", "memory", "persistent", "tenant")

    def __init__(self, memory: Memory, home: PooledStream, tenant: str, persistent: bool) -> None:
        self.memory = memory
        self.home = home
        self.tenant = tenant
        self.persistent = persistent
        self.accounted_session: DeviceSession | None = None
        """The session that it is accounted to; None: the session that allocated it."""
        self.live_buffers = 0
        """Number of its buffers that have not been freed."""
        self.last: dict[int, int] = {}
        """Last position, on every track that used it, of its freed buffers or of an unused reservation."""

    @property
    def alone(self) -> bool:
        """True if the reservation is freed with its only buffer and is accounted to the session that allocated it."""
        return self.live_buffers == 1 and not (self.last or self.persistent or self.accounted_session is not None)


class Reservations:
    """Takes and frees reservations. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self._device = device
        self._held_bytes: dict[str, int] = {}
        """Pool memory, in bytes, of each tenant, including unused memory that its sessions keep."""
        self._max_bytes = device.spec.memory_limit or device.server.properties.total_memory
        self._freed_at: dict[PooledStream, int] = {}
        """Position of the last free on each track, until it is known to be done."""
        self.deferred_free = DeferredFree()
        """Memory that is being freed in pieces."""

    def bytes_held(self, tenant: str) -> int:
        """Returns the bytes of pool memory that the tenant's sessions hold, including unused memory that they keep."""
        return self._held_bytes.get(tenant, 0)

    def allocate(
        self, session: DeviceSession, size: int, track: PooledStream, buffers: Sequence[Buffer]
    ) -> Reservation:
        """Takes memory of `size` bytes for all `buffers`; `track` may use it now, other tracks after this point.

        The caller places the buffers in the reservation. Raises Refusal(OUT_OF_MEMORY) or Refusal(QUOTA_EXCEEDED) if
        the size does not fit even after the session's unused memory has been freed and the pool trimmed.
        """
        device = self._device
        reservation = session.persistent.pop(rounded(size)) if size else None
        if reservation is not None:
            device.telemetry.persistent_hits += 1
            device.tracks.settle(track, _usage(reservation.last))
            reservation.last.clear()
        else:
            memory = self._allocate(session, size, track)
            reservation = Reservation(memory, track, session.tenant, session.persistent.window)
            self._held_bytes[session.tenant] = self._held_bytes.get(session.tenant, 0) + memory.reserved
        # An allocation is a write on its track, at a separate position: pool memory may be in use until the track
        # reaches that position, by work before an earlier free on the track, or by work that the free waited for.
        device.tracks.claim_position(track, [buffer.usage for buffer in buffers])
        reservation.live_buffers = len(buffers)
        session.bytes_reserved += reservation.memory.reserved
        session.allocations += len(buffers)
        session.bytes_in_use += sum(buffer.size for buffer in buffers)
        session.bytes_peak = max(session.bytes_peak, session.bytes_in_use)
        device.telemetry.allocations += len(buffers)
        device.telemetry.allocated_bytes += size
        return reservation

    def allocate_one(self, session: DeviceSession, buffer: Buffer, track: PooledStream) -> bool:
        """Takes memory for one new buffer, and places the buffer, in the plain case.

        Returns False, without effect, if the session keeps persistent memory, or if its quota or the pool may not
        suffice.
        """
        size, persistent, tenant = buffer.size, session.persistent, session.tenant
        if persistent.bytes or persistent.window or not 0 < size <= self._max_bytes:
            return False
        held_bytes = self._held_bytes.get(tenant, 0)
        if session.device_bytes and held_bytes + rounded(size) > session.device_bytes:
            return False
        device = self._device
        memory: Memory | None = None
        try:
            memory = device.grants.allocate(size, track.stream)
            position = device.tracks.step(track)
        except DeviceFault:
            raise
        except Exception:  # `allocate` meets and handles the error again
            if memory is not None:
                device.server.free(memory, track.stream)
            return False
        reserved = memory.reserved
        self._held_bytes[tenant] = held_bytes + reserved
        buffer.reservation = reservation = Reservation(memory, track, tenant, False)
        reservation.live_buffers = 1
        buffer.address = memory.address
        usage = buffer.usage
        usage.track, usage.position = track.index, position
        session.bytes_reserved += reserved
        session.allocations += 1
        session.bytes_in_use += size
        session.bytes_peak = max(session.bytes_peak, session.bytes_in_use)
        telemetry = device.telemetry
        telemetry.allocations += 1
        telemetry.allocated_bytes += size
        return True

    def free(self, session: DeviceSession, reservation: Reservation, buffer: Buffer) -> None:
        """Frees one buffer of a reservation. With the last buffer, the memory is freed after every use of it."""
        session.allocations -= 1
        session.bytes_in_use -= buffer.size
        self._device.telemetry.frees += 1
        self._device.telemetry.freed_bytes += buffer.size
        for track, position in buffer.usage.tracks().items():
            reservation.last[track] = max(position, reservation.last.get(track, 0))
        reservation.live_buffers -= 1
        if reservation.live_buffers:
            return
        size = reservation.memory.reserved
        (reservation.accounted_session or session).bytes_reserved -= size
        if not (size and reservation.persistent and session.persistent.keep(size, reservation)):
            self._free(session, reservation)

    def free_one(self, session: DeviceSession, buffer: Buffer) -> None:
        """Frees a buffer that is `alone` in its reservation, as `free` does, and clears the buffer's reservation."""
        reservation: Reservation = buffer.reservation
        memory, home, usage = reservation.memory, free_track(session, reservation), buffer.usage
        reserved, size = memory.reserved, buffer.size
        buffer.reservation = None
        session.allocations -= 1
        session.bytes_in_use -= size
        session.bytes_reserved -= reserved
        device = self._device
        telemetry, tracks = device.telemetry, device.tracks
        telemetry.frees += 1
        telemetry.freed_bytes += size
        if usage.reads is not None or usage.track != home.index:
            tracks.settle(home, usage)
        device.server.free(memory, home.stream)
        self._held_bytes[reservation.tenant] -= reserved
        self._freed_at[home] = tracks.step(home)

    def check_quota(self, session: DeviceSession, more: int) -> None:
        """Raises Refusal(QUOTA_EXCEEDED) if the session's tenant may not have `more` additional bytes."""
        quota, held_bytes = session.device_bytes, self.bytes_held(session.tenant)
        if quota and held_bytes + rounded(more) > quota:
            raise over_quota(more, quota, held_bytes)

    def count(self, tenant: str, more: int) -> None:
        """Adds `more` bytes outside the pool to the tenant's total; a negative number subtracts."""
        self._held_bytes[tenant] = self._held_bytes.get(tenant, 0) + more

    def transfer(self, reservation: Reservation, session: DeviceSession) -> None:
        """Transfers the accounting of a reservation to another session and its tenant."""
        size = reservation.memory.reserved
        self.count(reservation.tenant, -size)
        self.count(session.tenant, size)
        reservation.tenant, reservation.accounted_session, reservation.persistent = session.tenant, session, False

    def when_settled(self, callback: Callable[[], None]) -> bool:
        """Calls `callback` when all freed memory, including memory whose free is pending, can be used by every stream.

        Returns False, without calling it, if that is already the case.
        """

        def cleared() -> None:
            if not self._when_freed(callback):
                callback()

        return self.deferred_free.after_all(cleared) or self._when_freed(callback)

    def _when_freed(self, callback: Callable[[], None]) -> bool:
        self._freed_at = {track: at for track, at in self._freed_at.items() if track.done_position < at}
        if self._freed_at:
            self._device.tracks.after_all(self._freed_at, callback)
        return bool(self._freed_at)

    def clear(self, session: DeviceSession) -> None:
        """Frees the unused memory that the session keeps, in pieces."""
        self._free_all(session, session.persistent.clear())

    def close(self, session: DeviceSession) -> None:
        """Frees the unused memory of a closing session, in pieces; memory that is freed later is not kept."""
        self._free_all(session, session.persistent.close())

    def _allocate(self, session: DeviceSession, size: int, track: PooledStream) -> Memory:
        if size > self._max_bytes:
            raise out_of_memory(size, self._device.server.memory_info(), self._device.spec.memory_limit)
        try:
            return self._within_quota(session, size, track)
        except Refusal as refusal:
            if refusal.reason not in (Reason.OUT_OF_MEMORY, Reason.QUOTA_EXCEEDED) or not session.persistent.bytes:
                raise
        for reservation in session.persistent.clear():
            self._free(session, reservation)
        self._device.server.trim()
        return self._within_quota(session, size, track)

    def _within_quota(self, session: DeviceSession, size: int, track: PooledStream) -> Memory:
        self.check_quota(session, size)
        return self._device.grants.allocate(size, track.stream)

    def _free_all(self, session: DeviceSession, reservations: list[Reservation]) -> None:
        self.deferred_free.begin(session, reservations, partial(free_track, session), partial(self._free, session))

    def _free(self, session: DeviceSession, reservation: Reservation) -> None:
        home = free_track(session, reservation)
        tracks = self._device.tracks
        tracks.settle(home, _usage(reservation.last))
        self._device.server.free(reservation.memory, home.stream)
        self._held_bytes[reservation.tenant] -= reservation.memory.reserved
        # A separate step, because the work before the free may be done long before the free.
        self._freed_at[home] = tracks.step(home)


def free_track(session: DeviceSession, reservation: Reservation) -> PooledStream:
    """Returns the track on which the session frees the reservation.

    It is the track of the allocation while the session uses it: another session may have it since the stream was
    destroyed, and must not wait for this session's uses of the memory.
    """
    home = reservation.home
    return home if home in session.streams.users else session.streams.items[0].track


def _usage(positions: dict[int, int]) -> Usage:
    usage = Usage()
    usage.reads = positions
    return usage
