"""Slots of the chunk memory, and their owners. Pure."""

from __future__ import annotations


class ChunkSlots:
    """`count` slots. Each is free, reserved for a copy of the device that has not ended, or with the front.

    A copy may wait as long as its stream does, for a kernel that runs for minutes: so copies have at most half of the
    slots, and the others are for chunks that are ready to send. The slot that was used last is used next: it is the
    likeliest to be in a cache.
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
        """Reserves a slot for a copy that is about to be submitted, to be followed by `send` or `drop`; None: copies
        have all their slots."""
        if not self._free or len(self._kept) >= self.count // 2:
            return None
        slot = self._free.pop()
        self._kept.add(slot)
        return slot

    def drop(self, slot: int) -> None:
        """Frees a reserved slot whose contents are not sent. Raises ValueError for a slot that is not reserved."""
        self._take(self._kept, slot, "is not kept")
        self._free.append(slot)

    def send(self, slot: int | None = None) -> int | None:
        """Passes a slot to the front: the reserved `slot`, else a free one; None: no slot is free. Raises ValueError
        for a slot that is not reserved."""
        if slot is not None:
            self._take(self._kept, slot, "is not kept")
        elif self._free:
            slot = self._free.pop()
        else:
            return None
        self._away.add(slot)
        return slot

    def returned(self, slot: int) -> None:
        """Frees a slot whose contents the front has taken. Raises ValueError for a slot that is not with the front."""
        self._take(self._away, slot, "is not with the front")
        self._free.append(slot)

    def _take(self, holders: set[int], slot: int, lack: str) -> None:
        if slot not in holders:
            raise ValueError(f"slot {slot} of {self.count} {lack}")
        holders.remove(slot)
