"""Persistent memory of one session: memory that stays with the session when it is freed.

Memory allocated inside a persistent window is persistent. Windows nest: opening one increments a count, closing one
decrements it, and new memory is persistent while the count is not 0. The allocation makes memory persistent, not the
free, because the time at which Python frees an array is unpredictable. A freed block serves the session's next
allocation of exactly the same reserved size, inside a window or not, and stays persistent. It returns to the pool in a
clean-up, with the end of the session, or when the session itself would otherwise run out of memory; never to make room
for other sessions.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from hearth_proto.reasons import Reason, Refusal

B = TypeVar("B")


class PersistentBlocks(Generic[B]):
    """The free persistent blocks of one session, by exact reserved size in bytes."""

    def __init__(self) -> None:
        self._free: dict[int, list[B]] = {}
        self._depth = 0
        self._closed = False
        self.bytes = 0
        """Total size of the free blocks, in bytes."""

    @property
    def window(self) -> bool:
        """True if memory that is allocated now becomes persistent."""
        return self._depth > 0

    def enter(self) -> None:
        """Opens a window, inside the windows that are already open."""
        self._depth += 1

    def leave(self) -> None:
        """Closes a window. Raises Refusal(INVALID_ARGUMENT) if none is open."""
        if not self._depth:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                "AUTO closes a window of persistent allocations, and none is open",
                fix="send as many AUTO as PERSISTENT",
                details={"windows": 0},
            )
        self._depth -= 1

    def pop(self, size: int) -> B | None:
        """Removes and returns the most recently freed block of this reserved size, or None."""
        blocks = self._free.get(size)
        if not blocks:
            return None
        self.bytes -= size
        block = blocks.pop()
        if not blocks:
            del self._free[size]
        return block

    def keep(self, size: int, block: B) -> bool:
        """Stores a freed block. Returns False if the session has ended, so that the block must go back to the pool."""
        if self._closed:
            return False
        self._free.setdefault(size, []).append(block)
        self.bytes += size
        return True

    def clear(self) -> list[B]:
        """Removes and returns all free blocks."""
        freed = [block for blocks in self._free.values() for block in blocks]
        self._free.clear()
        self.bytes = 0
        return freed

    def close(self) -> list[B]:
        """Removes and returns all free blocks; later frees are not kept."""
        self._closed = True
        self._depth = 0
        return self.clear()
