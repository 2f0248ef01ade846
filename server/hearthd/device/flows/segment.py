"""Segment: memory that a client shares with this process, and ranges of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple, Protocol

from hearth_proto.reasons import Refusal
from hearthd.device.backend.server import ComputeServer

WORD = 8
"""Size of a completion signal, in bytes; it lies at the segment's start."""


class SessionRef(Protocol):
    """A session (`hearthd.device.session.session.DeviceSession`), as far as the layers below it need it."""

    channel: int
    id: str
    tenant: str
    signals: CompletionSignals | None


class Segment:
    """`size` bytes of shared memory.

    Copies use it like a `HostBuffer`; `address` and `view` are valid while it is mapped.

    `retire` is called once, after the client has released the segment and its last use has ended.
    """

    __slots__ = ("_retire", "_users", "address", "ident", "locked", "over", "ready", "session", "signals", "size",
                 "view")  # fmt: skip

    def __init__(self, ident: int, size: int, session: SessionRef, retire: Callable[[Segment], None]) -> None:
        self.ident = ident
        self.size = size
        self.session = session
        self.address = 0
        self.view = memoryview(b"")
        self.signals = False
        """True if the segment is for completion signals; see `hearthd.device.transfers.completion_signal`."""
        self.locked = 0
        """Number of leading bytes that are page-locked."""
        self.ready = self.over = False
        """`ready`: commands may use the segment. `over`: later commands may not use it any more."""
        self._retire = retire
        self._users = 1  # the client counts as one user

    @property
    def pinned(self) -> bool:
        """True if the whole segment is page-locked, so that the device can copy from and to it directly."""
        return self.locked >= self.size

    def mapped(self, address: int, locked: int) -> None:
        """Sets the address of the mapping, and the number of page-locked bytes."""
        self.address, self.locked = address, locked
        self.view = memoryview((ctypes.c_ubyte * self.size).from_address(address)).cast("B")

    def hold(self) -> None:
        """Adds a use of the segment, which ends with `drop`."""
        self._users += 1

    def drop(self) -> None:
        """Ends a use of the segment. The end of the last use retires the segment."""
        self._users -= 1
        if not self._users:
            self._retire(self)

    def end(self) -> None:
        """Prevents use of the segment by later commands. A second call has no effect."""
        if not self.over:
            self.over = True
            self.drop()


class SegmentRange(NamedTuple):
    """`size` bytes of a segment, starting at byte `start`: the memory of one copy.

    Code that stores a range must `hold` the segment.
    """

    segment: Segment
    start: int
    size: int

    def view(self, at: int, size: int) -> memoryview:
        """Returns `size` bytes, starting at byte `at` of the range, as a view for the host."""
        return self.segment.view[self.start + at : self.start + at + size]


class CompletionSignals(NamedTuple):
    """Destination of a session's completion signals.

    A pending signal holds the segment until the device has written the signal.
    """

    segment: Segment
    address: int


def signals_in(segment: Segment, server: ComputeServer) -> CompletionSignals | None:
    """Returns the destination of completion signals in a segment.

    Returns None if the segment is too short, or if the device cannot write signals.
    """
    if segment.size < WORD:
        return None
    try:
        address = server.signal_address(segment.address)
    except Refusal:
        return None
    return CompletionSignals(segment, address) if address else None
