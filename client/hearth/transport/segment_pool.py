"""Pool of segments for arrays, reused after an array was garbage-collected.

A new segment must be filled with pages, and registered with every device that uses it, which takes 0.05 s per GiB.
Memory that existed at a fork is not reused by either process, because each may still have arrays in it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, NamedTuple

from hearth.transport.memory_segments import Segment, known_segments

MIN_BYTES = 64 << 10
"""Minimum size, in bytes, of an array for which a segment is used. Smaller ones gain nothing: their bytes travel inside
a command."""
SLAB = 4 << 20
MAX_SLAB_BLOCK = 1 << 20
"""Largest block, in bytes, that shares a segment of `SLAB` bytes with other blocks, because a process has a limited
number of descriptors."""
_MAX_STEP = 16 << 20
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

    Up to `MAX_SLAB_BLOCK`, that is a power of two, at least `MIN_BYTES`. Larger blocks have at most 12.5 % more bytes
    than `size`.
    """
    if size <= MAX_SLAB_BLOCK:
        return max(MIN_BYTES, 1 << (size - 1).bit_length())
    step = min(1 << ((size - 1).bit_length() - 4), _MAX_STEP)
    return -(-size // step) * step


class FreeBlocks:
    """Free blocks kept for reuse, the most recently used first. No I/O; not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
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
        return self.trim(self.capacity)

    def take(self, size: int) -> Block | None:
        """Removes and returns a block of exactly this size; None: there is none.

        Args:
            size: Size in bytes.
        """
        blocks = self._by_size.get(size)
        if not blocks:
            return None
        block = blocks.pop()
        self._remove(block)
        return block

    def trim(self, max_bytes: int) -> list[Block]:
        """Drops the oldest blocks until the total is at most `max_bytes` bytes, and returns them.

        Args:
            max_bytes: Maximum total size in bytes.
        """
        dropped = []
        while self.bytes > max_bytes:
            block = next(iter(self._order.values()))
            self._by_size[block.size].pop(0)  # the oldest of its size, because it is the oldest of all
            self._remove(block)
            dropped.append(block)
        return dropped

    def _remove(self, block: Block) -> None:
        del self._order[id(block)]
        self.bytes -= block.size
        if not self._by_size[block.size]:
            del self._by_size[block.size]


class Lease:
    """Holds a block for an array, through NumPy's array interface.

    All views of the array refer to this object, which returns the block when it is garbage-collected.
    """

    __slots__ = ("__weakref__", "_block", "_pool", "is_new")

    def __init__(self, pool: SegmentPool, block: Block, is_new: bool) -> None:
        self._pool = pool
        self._block = block
        self.is_new = is_new
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
        block_size = size_class(size)
        with self._lock:
            dropped = self._settle()
            block = self._free.take(block_size)
            is_new = block is None
            if block is None:
                unused = self._unused.get(block_size)
                block = unused.pop() if unused else self._make(block_size)
        del dropped
        self._sweep()
        return Lease(self, block._replace(forks=self._forks), is_new)

    def put_back(self, block: Block) -> None:
        """Takes back the block of a garbage-collected array.

        Args:
            block: Block of a `Lease` that was garbage-collected.
        """
        self._returned.append(block)
        self._sweep()

    def trim(self) -> None:
        """Drops all free memory kept for reuse."""
        with self._lock:
            dropped = self._settle() + self._free.trim(0)
            self._unused.clear()
        del dropped

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
        self._free = FreeBlocks(self._free.capacity)
        self._unused = {}
        self._returned.clear()

    def _make(self, block_size: int) -> Block:
        slab = block_size <= MAX_SLAB_BLOCK
        segment = Segment(SLAB if slab else block_size)
        known_segments.add(segment)
        if slab:
            offsets = range(block_size, SLAB, block_size)
            self._unused[block_size] = [Block(segment, offset, block_size, self._forks) for offset in reversed(offsets)]
        return Block(segment, 0, block_size, self._forks)

    def _sweep(self) -> None:
        """Takes back blocks that were returned, unless a thread, perhaps this one, holds the lock.

        A Ctrl-C leaves the lock held after a call of `acquire`, but not after the beginning of a `with` statement.
        """
        while self._returned and not self._lock.locked():
            with self._lock:
                dropped = self._settle()
            del dropped  # segments are closed here, without the lock

    def _settle(self) -> list[Block]:
        dropped: list[Block] = []
        while self._returned:
            block = self._returned.popleft()
            if block.segment.spoiled or block.forks != self._forks:
                dropped.append(block)
            else:
                dropped += self._free.put(block)
        return dropped


pool = SegmentPool()
"""Pool of this process."""


def _after_fork() -> None:
    known_segments.forked()
    pool.forked()


os.register_at_fork(before=pool.forking, after_in_child=_after_fork)
