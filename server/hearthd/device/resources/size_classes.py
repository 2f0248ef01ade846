"""Small blocks cut from pages, by size class: taking and giving one costs the same however many there are.

A class is a power of two. A page serves one class until nothing of it is in use and another class needs it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P", bound=Hashable)


class Block(NamedTuple, Generic[P]):
    """`size` bytes, `offset` bytes into a page."""

    page: P
    offset: int
    size: int


class SizeClasses(Generic[P]):
    """Pages of `page` bytes for blocks of up to `largest`; none is smaller than `smallest`. All are powers of two."""

    def __init__(self, page: int, smallest: int, largest: int) -> None:
        self.page = page
        self.largest = largest
        self._smallest = smallest
        self._free: dict[int, list[Block[P]]] = {}
        self._used: dict[P, set[int]] = {}

    def class_of(self, size: int) -> int:
        """The size of the block that serves `size` bytes."""
        return max(self._smallest, 1 << max(0, size - 1).bit_length())

    @property
    def pages(self) -> int:
        """Returns the number of pages that have been added and not taken back."""
        return len(self._used)

    @property
    def in_use(self) -> int:
        """Blocks on loan."""
        return sum(map(len, self._used.values()))

    def take(self, size: int) -> Block[P] | None:
        """Returns a block of at least `size` bytes, the one freed last; None where a page has to be added first."""
        free = self._free.get(self.class_of(size))
        if not free:
            return None
        block = free.pop()
        self._used[block.page].add(block.offset)
        return block

    def add(self, page: P, size: int) -> None:
        """The page serves blocks of the class of `size` from now on."""
        step = self.class_of(size)
        self._used[page] = set()
        # The first block is taken first.
        blocks = [Block(page, offset, step) for offset in range(self.page - step, -1, -step)]
        self._free[step] = blocks + self._free.get(step, [])

    def give(self, block: Block[P]) -> None:
        """Takes a block back. Raises ValueError where it is not on loan."""
        used = self._used.get(block.page)
        if used is None or block.offset not in used:
            raise ValueError(f"the block at {block.offset} of page {block.page} is not in use")
        used.discard(block.offset)
        self._free.setdefault(block.size, []).append(block)

    def idle(self) -> list[P]:
        """The pages of which nothing is in use: they are the caller's again."""
        pages = {page for page, used in self._used.items() if not used}
        if pages:
            for page in pages:
                del self._used[page]
            for size, blocks in list(self._free.items()):
                self._free[size] = [block for block in blocks if block.page not in pages]
        return list(pages)
