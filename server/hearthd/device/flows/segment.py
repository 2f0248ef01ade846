"""A segment: memory that a client shares with this process, and ranges of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple, Protocol

from hearth_proto.reasons import Refusal
from hearthd.device.backend.server import ComputeServer

WORD = 8
"""Bytes of a completion signal, at the segment's start."""


class SessionRef(Protocol):
    """A session (`hearthd.device.session.session.DeviceSession`), as the layers below it know it."""

    channel: int
    id: str
    tenant: str
    signals: CompletionSignals | None


class Segment:
    """`size` bytes. Copies go from and to it as with a `HostBuffer`: `address` and `view` are good while it is mapped.

    It is let go of when its client names it no more and nobody uses it: `retire` is then called, once.
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
        """Whether it is for those: see `hearthd.device.fast_path.completion_signal`."""
        self.locked = 0
        """How many of its first bytes are page-locked."""
        self.ready = self.over = False
        """Whether it may be named in commands; whether it is named no more."""
        self._retire = retire
        self._users = 1  # the client

    @property
    def pinned(self) -> bool:
        """Whether the device copies from and to it without the driver's help."""
        return self.locked >= self.size

    def mapped(self, address: int, locked: int) -> None:
        """It is there."""
        self.address, self.locked = address, locked
        self.view = memoryview((ctypes.c_ubyte * self.size).from_address(address)).cast("B")

    def hold(self) -> None:
        """Somebody uses it, until `drop`."""
        self._users += 1

    def drop(self) -> None:
        self._users -= 1
        if not self._users:
            self._retire(self)

    def end(self) -> None:
        """No command names it from now on. A second time does nothing."""
        if not self.over:
            self.over = True
            self.drop()


class SegmentSlice:
    """A slice of a segment, as host memory of a copy."""

    __slots__ = ("address", "size", "view")

    def __init__(self, address: int, size: int, view: memoryview) -> None:
        self.address = address
        self.size = size
        self.view = view


class SegmentRange(NamedTuple):
    """`size` bytes of a segment from `start` on, the memory of one transfer. A stored range holds the segment."""

    segment: Segment
    start: int
    size: int

    def part(self, at: int, size: int) -> SegmentSlice:
        """So many bytes, from the transfer's byte `at` on."""
        return SegmentSlice(self.segment.address + self.start + at, size, self.view(at, size))

    def view(self, at: int, size: int) -> memoryview:
        """The same, to be read and written here."""
        return self.segment.view[self.start + at : self.start + at + size]


class CompletionSignals:
    """Destination of a session's completion signals. A pending signal holds the segment until the device has written
    it."""

    __slots__ = ("address", "segment")

    def __init__(self, segment: Segment, address: int) -> None:
        self.segment = segment
        self.address = address


def signals_in(segment: Segment, server: ComputeServer) -> CompletionSignals | None:
    """None where the segment is too short, or the device writes none."""
    if segment.size < WORD:
        return None
    try:
        address = server.signal_address(segment.address)
    except Refusal:
        return None
    return CompletionSignals(segment, address) if address else None
