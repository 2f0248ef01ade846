"""Who has which slot of the memory that chunks go to the front through. Pure."""

from __future__ import annotations


class ChunkSlots:
    """`count` slots. Each is free, or kept for a copy of the device that has not come to its end, or with the front.

    A copy may wait as long as its stream does, for a kernel that runs for minutes: so copies have half of the slots at
    the most, and the others are for chunks that are there and go at once. The slot that was used last is used next: it
    is the likeliest to be in a cache.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._kept: set[int] = set()
        self._away: set[int] = set()

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def in_use(self) -> int:
        return len(self._kept) + len(self._away)

    def keep(self) -> int | None:
        """A slot for a copy that is about to be given to the device; None: there is none for that. `send` or `drop` is
        to follow."""
        if not self._free or len(self._kept) >= self.count // 2:
            return None
        slot = self._free.pop()
        self._kept.add(slot)
        return slot

    def drop(self, slot: int) -> None:
        """What was copied there is not sent. Raises ValueError for a slot that is not kept."""
        self._take(self._kept, slot, "is not kept")
        self._free.append(slot)

    def send(self, slot: int | None = None) -> int | None:
        """A slot for what goes to the front now: the one that was kept for it, else a free one; None: there is none.
        Raises ValueError for a slot that is not kept."""
        if slot is not None:
            self._take(self._kept, slot, "is not kept")
        elif self._free:
            slot = self._free.pop()
        else:
            return None
        self._away.add(slot)
        return slot

    def returned(self, slot: int) -> None:
        """The front has taken what was there. Raises ValueError for a slot that it did not have."""
        self._take(self._away, slot, "is not with the front")
        self._free.append(slot)

    def _take(self, holders: set[int], slot: int, lack: str) -> None:
        if slot not in holders:
            raise ValueError(f"slot {slot} of {self.count} {lack}")
        holders.remove(slot)
