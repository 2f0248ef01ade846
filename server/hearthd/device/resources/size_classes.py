"""Small blocks cut from pages, by size class: taking or freeing a block costs the same however many there are.

A class is a power of two. A page serves one class until none of its blocks is in use and another class needs the page.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P", bound=Hashable)


class Block(NamedTuple, Generic[P]):
    """A block of `size` bytes, at `offset` bytes into a page."""

    page: P
    offset: int
    size: int


class SizeClasses(Generic[P]):
    """Blocks of `smallest` to `largest` bytes, cut from pages of `page` bytes. All three are powers of two."""

    def __init__(self, page: int, smallest: int, largest: int) -> None:
        self.page = page
        self.largest = largest
        self._smallest = smallest
        self._free: dict[int, list[Block[P]]] = {}
        self._used: dict[P, set[int]] = {}

    def class_of(self, size: int) -> int:
        """Returns the size of the block that serves `size` bytes."""
        return 1 << (max(size, self._smallest) - 1).bit_length()

    @property
    def pages(self) -> int:
        """Number of pages that were added and have not been returned by `idle`."""
        return len(self._used)

    @property
    def in_use(self) -> int:
        """Number of blocks in use."""
        return sum(map(len, self._used.values()))

    def allocate(self, size: int) -> Block[P] | None:
        """Returns a block of at least `size` bytes, the most recently freed one; None if a page must be added first."""
        free = self._free.get(self.class_of(size))
        if not free:
            return None
        block = free.pop()
        self._used[block.page].add(block.offset)
        return block

    def add(self, page: P, size: int) -> None:
        """Adds a page, which serves blocks of the class of `size` from now on."""
        block_size = self.class_of(size)
        self._used[page] = set()
        # Blocks are taken from the end of the list, so the first block of the page comes last.
        blocks = [Block(page, offset, block_size) for offset in range(self.page - block_size, -1, -block_size)]
        self._free[block_size] = blocks + self._free.get(block_size, [])

    def free(self, block: Block[P]) -> None:
        """Frees a block. Raises ValueError if it is not in use."""
        used = self._used.get(block.page)
        if used is None or block.offset not in used:
            raise ValueError(f"the block at {block.offset} of page {block.page} is not in use")
        used.discard(block.offset)
        self._free.setdefault(block.size, []).append(block)

    def idle(self) -> list[P]:
        """Removes and returns the pages of which no block is in use."""
        pages = {page for page, used in self._used.items() if not used}
        if pages:
            for page in pages:
                del self._used[page]
            for size, blocks in list(self._free.items()):
                self._free[size] = [block for block in blocks if block.page not in pages]
        return list(pages)
