"""Shared ownership of an allocation among several handles of one process, and its accounting.

An allocation has holders: buffers of sessions, and the name under which it is published. It is accounted to the session
of its oldest holder, and passes to the next session when that holder leaves. The last holder frees it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from hearthd.device.backend.resources import SharedMemory
from hearthd.device.memory.reservations import Reservation, Reservations
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.ordering import Usage


class _Nothing:
    """Memory of zero bytes, which needs no mapping."""

    address = size = reserved = 0
    protected = True


NOTHING: SharedMemory = _Nothing()


class SharedAllocation(ABC):
    """An allocation with several holders.

    All buffers in it share its `usage`, so that all sessions of the process are ordered against each other.
    """

    def __init__(self, address: int, size: int, usage: Usage, accounted_session: DeviceSession | None) -> None:
        self.address = address
        self.size = size
        self.usage = usage
        self.accounted_session = accounted_session
        """The session that it is accounted to; None if it is accounted to another process."""
        self.holders: dict[object, DeviceSession] = {}
        """Holders and their sessions, oldest first."""
        self.number = 0
        """Number of the publication."""
        self.lent = False
        """True once another process of this host may read and write the memory. That cannot be revoked, so the memory
        is not shared with any further process."""
        self.on_leave: Callable[[SharedAllocation, object], None] = lambda place, holder: None
        """Called for each holder that leaves, before the last holder frees the memory."""

    @property
    def shared(self) -> SharedMemory | None:
        """The memory, if other processes can map it; otherwise None."""
        return None

    def assign(self, buffer: Buffer) -> None:
        """Makes the allocation the memory of a buffer that is one of its holders."""
        buffer.place, buffer.address, buffer.usage = self, self.address, self.usage

    def join(self, holder: object, session: DeviceSession) -> None:
        """Adds a holder that belongs to `session`: a buffer, a publication or an export."""
        self.holders[holder] = session

    def leave(self, holder: object) -> None:
        """Removes a holder. When the last holder leaves, the memory is freed after every use of it."""
        self._drop(holder)
        self.on_leave(self, holder)
        if not self.holders:
            self._release()

    def move(self, holder: object, to: SharedAllocation) -> None:
        """Moves a holder to another allocation with the same contents."""
        to.join(holder, self.holders[holder])
        self._drop(holder)
        if not self.holders:
            self._release()

    def _drop(self, holder: object) -> None:
        del self.holders[holder]
        if self.holders and self.accounted_session is not None and self.accounted_session not in self.holders.values():
            before, self.accounted_session = self.accounted_session, next(iter(self.holders.values()))
            self._count(before, -1)
            self._count(self.accounted_session, 1)

    @abstractmethod
    def _count(self, session: DeviceSession, sign: int) -> None:
        """Adds the memory to the accounting of the session, or subtracts it if `sign` is -1."""

    @abstractmethod
    def _release(self) -> None: ...


def is_lent(buffer: Buffer) -> bool:
    """True if another process of this host may write to the buffer."""
    return buffer.place is not None and bool(buffer.place.lent)


class PoolAllocation(SharedAllocation):
    """A buffer's part of a reservation from the pool."""

    def __init__(self, reservations: Reservations, session: DeviceSession, buffer: Buffer) -> None:
        super().__init__(buffer.address, buffer.size, buffer.usage, session)
        self._reservations = reservations
        self._reservation: Reservation = buffer.reservation

    def _count(self, session: DeviceSession, sign: int) -> None:
        session.allocations += sign
        session.bytes_in_use += sign * self.size
        session.bytes_peak = max(session.bytes_peak, session.bytes_in_use)
        reservation = self._reservation
        # The whole reservation, with its other buffers, is accounted to the new session.
        if sign < 0 and self.accounted_session is not None and reservation.accounted_session in (None, session):
            session.bytes_reserved -= reservation.memory.reserved
            self.accounted_session.bytes_reserved += reservation.memory.reserved
            self._reservations.transfer(reservation, self.accounted_session)

    def _release(self) -> None:
        freed = Buffer(0, self.size)
        freed.usage = self.usage
        assert self.accounted_session is not None, "memory of the pool counts with a session of this process"
        self._reservations.free(self.accounted_session, self._reservation, freed)


def shared_place(reservations: Reservations, session: DeviceSession, buffer: Buffer) -> SharedAllocation:
    """Returns the allocation that holds the buffer; the memory of a buffer in the pool can be shared from now on."""
    if buffer.place is None:
        buffer.place = PoolAllocation(reservations, session, buffer)
        buffer.place.join(buffer, session)
        buffer.reservation = None
    place: SharedAllocation = buffer.place
    return place


class MappedAllocation(SharedAllocation):
    """Memory that other processes also map. `release` frees it after its last use."""

    def __init__(
        self,
        reservations: Reservations,
        memory: SharedMemory,
        size: int,
        accounted_session: DeviceSession | None,
        release: Callable[[MappedAllocation], None],
        *,
        lent: bool = False,
    ) -> None:
        super().__init__(memory.address, size, Usage(), accounted_session)
        self._reservations = reservations
        self.memory = memory
        self.lent = lent
        self._free_mapping = release
        if accounted_session is not None:
            self._count(accounted_session, 1)

    @property
    def shared(self) -> SharedMemory | None:
        """The memory, unless it has been lent to another process; then None."""
        return None if self.lent else self.memory

    def account_to_session(self) -> None:
        """Accounts the memory to a session of this process from now on.

        Called when the process that it was accounted to has dropped it.
        """
        if self.accounted_session is None and self.holders:
            self.accounted_session = next(iter(self.holders.values()))
            self._count(self.accounted_session, 1)

    def _count(self, session: DeviceSession, sign: int) -> None:
        session.allocations += sign
        session.bytes_in_use += sign * self.size
        session.bytes_reserved += sign * self.memory.reserved
        self._reservations.count(session.tenant, sign * self.memory.reserved)
        session.bytes_peak = max(session.bytes_peak, session.bytes_in_use)

    def _release(self) -> None:
        if self.accounted_session is not None:
            self._count(self.accounted_session, -1)
        self._free_mapping(self)
