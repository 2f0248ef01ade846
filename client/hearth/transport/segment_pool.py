"""Pool of segments for arrays, reused after an array is gone.

A new segment has to be filled with pages, and registered with every device that uses it, which takes 0.05 s per GiB.
Memory that existed at a fork is not reused by either process, because each may still have arrays in it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, NamedTuple

from hearth.transport.memory_segments import Segment, known

LEAST = 64 << 10
"""Minimum size, in bytes, of an array for which a segment is used. Smaller ones gain nothing: their bytes travel inside
a command."""
SLAB = 4 << 20
SLABBED = 1 << 20
"""Largest block, in bytes, that shares a segment of `SLAB` bytes with other blocks, because a process has a limited
number of descriptors."""
_STEP_MAX = 16 << 20
CACHE = 1 << 30
"""Maximum total size, in bytes, of free blocks kept for reuse."""


class Block(NamedTuple):
    """Part of a segment, used by one array at a time.

    `forks` is the number of forks of this process when the block was leased or made.
    """

    segment: Segment
    offset: int
    size: int
    forks: int


def size_class(size: int) -> int:
    """Returns the size, in bytes, of the block for `size` bytes.

    Up to `SLABBED`, that is a power of two, at least `LEAST`. Larger blocks have at most 12.5 % more bytes than `size`.
    """
    if size <= SLABBED:
        return max(LEAST, 1 << (size - 1).bit_length())
    step = min(1 << ((size - 1).bit_length() - 4), _STEP_MAX)
    return -(-size // step) * step


class FreeBlocks:
    """Free blocks kept for reuse, the most recently used first. No I/O; not thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0
        self._by_size: dict[int, list[Block]] = {}
        self._order: dict[int, Block] = {}  # by id(), the oldest first

    def __len__(self) -> int:
        return len(self._order)

    def put(self, block: Block) -> list[Block]:
        """Adds a block. Returns the blocks that are dropped for it, the oldest first.

        Args:
            block: Block that no array uses.
        """
        self._by_size.setdefault(block.size, []).append(block)
        self._order[id(block)] = block
        self.bytes += block.size
        return self.trim(self.most)

    def take(self, size: int) -> Block | None:
        """Removes and returns a block of exactly this size; None: there is none.

        Args:
            size: Size in bytes.
        """
        same = self._by_size.get(size)
        if not same:
            return None
        block = same.pop()
        self._leave(block)
        return block

    def trim(self, most: int) -> list[Block]:
        """Drops the oldest blocks until the total is at most `most` bytes, and returns them.

        Args:
            most: Maximum total size in bytes.
        """
        gone = []
        while self.bytes > most:
            block = next(iter(self._order.values()))
            same = self._by_size[block.size]
            del same[next(index for index, each in enumerate(same) if each is block)]
            self._leave(block)
            gone.append(block)
        return gone

    def _leave(self, block: Block) -> None:
        del self._order[id(block)]
        self.bytes -= block.size
        if not self._by_size[block.size]:
            del self._by_size[block.size]


class Lease:
    """Holds a block for an array, through NumPy's array interface.

    All views of the array refer to this object, which returns the block when it is garbage-collected.
    """

    __slots__ = ("__weakref__", "_block", "_pool", "fresh")

    def __init__(self, pool: SegmentPool, block: Block, fresh: bool) -> None:
        self._pool = pool
        self._block = block
        self.fresh = fresh
        """True if the memory was never used before, and so is zero."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        block = self._block
        address = block.segment.address + block.offset
        return {"data": (address, False), "shape": (block.size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        if block is not None:
            self._pool.put_back(block)


class SegmentPool:
    """Blocks of this process. Thread-safe; `put_back` may also be called by the garbage collector."""

    def __init__(self, cache: int = CACHE) -> None:
        self._lock = threading.Lock()
        self._free = FreeBlocks(cache)
        self._unused: dict[int, list[Block]] = {}  # blocks of slabs that were never used, by size
        self._returned: deque[Block] = deque()
        self._forks = 0

    def lease(self, size: int) -> Lease:
        """Returns page-aligned memory for `size` bytes. Raises `OSError` if the system provides none.

        Args:
            size: Size in bytes.
        """
        kind = size_class(size)
        with self._lock:
            gone = self._settle()
            block = self._free.take(kind)
            fresh = block is None
            if block is None:
                unused = self._unused.get(kind)
                block = unused.pop() if unused else self._make(kind)
        del gone
        self._sweep()
        return Lease(self, block._replace(forks=self._forks), fresh)

    def put_back(self, block: Block) -> None:
        """Takes a block back after its array is gone.

        Args:
            block: Block of a `Lease` that was garbage-collected.
        """
        self._returned.append(block)
        self._sweep()

    def trim(self) -> None:
        """Drops all free memory kept for reuse."""
        with self._lock:
            gone = self._settle() + self._free.trim(0)
            self._unused.clear()
        del gone

    @property
    def cached(self) -> int:
        """Total size, in bytes, of the free blocks kept for reuse."""
        self._sweep()
        return self._free.bytes

    def forking(self) -> None:
        """Called before a fork: the child process shares all memory that exists now."""
        self._forks += 1

    def forked(self) -> None:
        """Drops the free blocks in the child process of a fork: they belong to the parent."""
        self._lock = threading.Lock()
        self._free = FreeBlocks(self._free.most)
        self._unused = {}
        self._returned.clear()

    def _make(self, kind: int) -> Block:
        slab = kind <= SLABBED
        segment = Segment(SLAB if slab else kind)
        known.add(segment)
        if slab:
            offsets = range(kind, SLAB, kind)
            self._unused[kind] = [Block(segment, offset, kind, self._forks) for offset in reversed(offsets)]
        return Block(segment, 0, kind, self._forks)

    def _sweep(self) -> None:
        """Takes back blocks that were returned while another thread held the lock."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                gone = self._settle()
            finally:
                self._lock.release()
            del gone  # segments are closed here, without the lock

    def _settle(self) -> list[Block]:
        gone: list[Block] = []
        while self._returned:
            block = self._returned.popleft()
            if block.segment.spoiled or block.forks != self._forks:
                gone.append(block)
            else:
                gone += self._free.put(block)
        return gone


pool = SegmentPool()
"""Pool of this process."""


def _after_fork() -> None:
    known.forked()
    pool.forked()


os.register_at_fork(before=pool.forking, after_in_child=_after_fork)
