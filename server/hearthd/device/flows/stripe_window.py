"""Staging memory lent to stripes: bounded, because a client may take any time to send or to read.

At most half of the staging memory is lent, so that copies without a network find some. A transfer that has none of it
may receive one chunk beyond that limit, so that slow clients can delay other transfers, but not block them forever.
"""

from __future__ import annotations

from collections.abc import Callable

from hearthd.device.backend.resources import HostBuffer

FAST_S = 0.25
"""If a chunk takes at most this time, in seconds, several chunks may be sent or granted concurrently afterwards."""

WINDOW = 4
"""Most chunks of one transfer under way on one fast stripe; on a slow stripe, one."""


class UnpinnedSlot:
    """Pageable memory for a chunk, used when the host locks no more pages."""

    __slots__ = ("address", "size", "view")

    def __init__(self, size: int) -> None:
        self.address = 0
        self.size = size
        self.view = memoryview(bytearray(size))


class StripeStaging:
    """Staging memory that is lent to stripes and waits for the network. Device-handle thread only."""

    def __init__(self, cap: int, release: Callable[[HostBuffer], None], on_room: Callable[[], None]) -> None:
        self._cap = cap
        self._release = release
        self._on_room = on_room
        self._lent: set[HostBuffer] = set()
        self._starved = False
        self.bytes = 0

    def room(self, size: int, alone: bool) -> bool:
        """True if `size` more bytes may be lent. `alone`: the transfer has no other chunk under way."""
        if not self.bytes or self.bytes + size <= self._cap * (1 + alone):
            return True
        self._starved = True
        return False

    def mark_lent(self, host: HostBuffer) -> None:
        """Counts memory as lent."""
        self._lent.add(host)
        self.bytes += host.size

    def take_back(self, host: HostBuffer) -> None:
        """Counts memory as returned, for use by the caller. A second call has no effect."""
        if host in self._lent:
            self._lent.remove(host)
            self.bytes -= host.size
            if self._starved:
                self._starved = False
                self._on_room()

    def release(self, host: HostBuffer) -> None:
        """Returns memory and releases it. A second call has no effect."""
        self.take_back(host)
        self._release(host)


class StripeWindow:
    """Chunks of one transfer under way on one stripe."""

    __slots__ = ("limit", "under_way")

    def __init__(self) -> None:
        self.limit = 1
        self.under_way = 0

    @property
    def room(self) -> int:
        """Number of further chunks that the stripe may take now; 0 or less if it may take none."""
        return self.limit - self.under_way

    def done(self, seconds: float) -> None:
        """Ends one chunk, which took `seconds`, and adapts the limit of the window."""
        self.under_way -= 1
        self.limit = WINDOW if seconds < FAST_S else 1
