"""Memory that this process can share with a device process: segments, and the table that finds them by address.

A segment is a memfd: it has no name that another process could guess, and it exists until no process maps it. It
belongs to no connection, and may be registered with several devices (`hearth.transport.segments`).
"""

from __future__ import annotations

import bisect
import fcntl
import itertools
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

_numbers = itertools.count(1).__next__
T = TypeVar("T")


def possible() -> bool:
    """True if this system supports sealed memfds, which sharing needs."""
    return hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


class Segment:
    """Memory of a fixed `size` in bytes, initially zero, whose descriptor can be passed to other processes.

    Raises `OSError` if the system provides no memory or no descriptor.
    """

    __slots__ = ("__weakref__", "address", "bytes", "descriptor", "number", "size", "spoiled")

    def __init__(self, size: int) -> None:
        self.descriptor = -1
        descriptor = os.memfd_create("hearth", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            # Before Python 3.13, the mapping also holds a separate descriptor.
            mapping = mmap.mmap(descriptor, size, **({"trackfd": False} if sys.version_info >= (3, 13) else {}))
        except BaseException:
            os.close(descriptor)
            raise
        self.descriptor = descriptor
        self.number = _numbers()
        """Number of the segment in this process; each connection uses another number for it."""
        self.size = size
        self.bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(mapping, np.uint8)
        self.address: int = self.bytes.__array_interface__["data"][0]
        self.spoiled = False
        """True if a device process may still write to the segment though its completion is not tracked: the memory is
        never reused."""

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Signals:
    """Completion signals of copies: a device of the same host writes a finished copy's request number to `word[0]`.

    The daemon's answer to the same request arrives later, because the device process must first observe the end and
    report it. A thread that polls for the answer (`hearth.transport.spin_wait`) also polls the signal word, and
    continues as soon as it finds the number. A signal means success, and is written only if no other outcome is
    possible. The answer follows nevertheless, and the next receiver processes it. Without a signal, a copy is completed
    by its answer alone.

    Launches have no signals: a signal costs the device process as much time as it saves the thread that waits for a
    short kernel.
    """

    __slots__ = ("_segment", "word")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment  # kept: the device process is notified when the segment is garbage-collected
        self.word = segment.bytes.data.cast("Q")
        """Number of the request of the attachment that was completed last."""


class SegmentPosition(NamedTuple):
    """Position within a segment; `offset` in bytes."""

    segment: Segment
    offset: int


class AddressTable(Generic[T]):
    """Table of non-overlapping address ranges, each with an item. Not thread-safe."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._entries: list[tuple[int, T]] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, size: int, item: T) -> None:
        """Adds a range, and removes the ranges that it overlaps.

        Args:
            start: First address.
            size: Size in bytes.
            item: Item of the range.
        """
        first, last = self._overlapping(start, start + size)
        self._starts[first:last] = [start]
        self._entries[first:last] = [(start + size, item)]

    def remove(self, start: int, item: T) -> None:
        """Removes the range that begins at `start` if it belongs to `item`.

        Args:
            start: First address.
            item: Item of the range, compared by identity.
        """
        index = bisect.bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start and self._entries[index][1] is item:
            del self._starts[index], self._entries[index]

    def find(self, start: int, size: int) -> tuple[T, int] | None:
        """Returns the item whose range contains the whole given range, and the offset in bytes within it.

        Args:
            start: First address.
            size: Size in bytes.

        Returns:
            Item and offset, or None if there is no such item.
        """
        index = bisect.bisect_right(self._starts, start) - 1
        if index < 0 or self._entries[index][0] < start + size:
            return None
        return self._entries[index][1], start - self._starts[index]

    def _overlapping(self, start: int, end: int) -> tuple[int, int]:
        """Returns the index interval of the entries that overlap the range."""
        first = bisect.bisect_right(self._starts, start)
        if first and self._entries[first - 1][0] > start:
            first -= 1
        return first, max(first, bisect.bisect_left(self._starts, end))


class KnownSegments:
    """Segments in which arrays of this process may lie. Safe for use from any thread and from the garbage collector."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: AddressTable[weakref.ref[Segment]] = AddressTable()
        self._collected: deque[tuple[int, weakref.ref[Segment]]] = deque()

    def add(self, segment: Segment) -> None:
        """Makes the segment known to `find`, until it is garbage-collected.

        Args:
            segment: Segment of this process.
        """
        start, collected = segment.address, self._collected
        reference = weakref.ref(segment, lambda expired: collected.append((start, expired)))
        with self._lock:
            self._remove_collected()
            self._table.add(start, segment.size, reference)

    def find(self, address: int, size: int) -> SegmentPosition | None:
        """Returns the segment that contains these bytes, with the offset in it; None: there is none.

        Args:
            address: First address.
            size: Size in bytes.
        """
        if not len(self._table):
            return None
        with self._lock:
            self._remove_collected()
            entry = self._table.find(address, size)
            segment = entry[0]() if entry is not None else None
        return SegmentPosition(segment, entry[1]) if entry is not None and segment is not None else None

    def forked(self) -> None:
        """Replaces the lock in the child process of a fork, because another thread may have held it."""
        self._lock = threading.Lock()

    def _remove_collected(self) -> None:
        while self._collected:
            self._table.remove(*self._collected.popleft())


known_segments = KnownSegments()
"""All segments of this process."""


def address_of(data: memoryview) -> int:
    """Returns the address of contiguous memory."""
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address
