"""Slots of the chunk memory, and their present owners. Pure."""

from __future__ import annotations


class ChunkSlots:
    """`count` slots, each of which is free, reserved for a device copy under way, or passed to the front.

    A copy may have to wait as long as its stream, for example for a kernel that runs for minutes. Therefore copies may
    reserve at most half of the slots, and the rest serves chunks that are ready to send. The slot that was used last is
    used next, because it is most likely to be in a cache.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._reserved: set[int] = set()
        self._at_front: set[int] = set()

    @property
    def reserved(self) -> int:
        """Number of slots reserved for copies under way."""
        return len(self._reserved)

    @property
    def in_use(self) -> int:
        """Number of slots that are not free: reserved, or passed to the front."""
        return len(self._reserved) + len(self._at_front)

    def reserve(self) -> int | None:
        """Reserves a slot for a copy that is about to be submitted.

        The caller must call `send` or `drop` later. Returns None if no slot is free, or if copies already have half of
        the slots.
        """
        if not self._free or len(self._reserved) >= self.count // 2:
            return None
        slot = self._free.pop()
        self._reserved.add(slot)
        return slot

    def drop(self, slot: int) -> None:
        """Frees a reserved slot whose contents are not sent. Raises ValueError if the slot is not reserved."""
        self._remove(self._reserved, slot, "is not reserved")
        self._free.append(slot)

    def send(self, slot: int | None = None) -> int | None:
        """Passes a slot to the front: the reserved `slot`, or a free one.

        Returns None if no slot is free. Raises ValueError if `slot` is not reserved.
        """
        if slot is not None:
            self._remove(self._reserved, slot, "is not reserved")
        elif self._free:
            slot = self._free.pop()
        else:
            return None
        self._at_front.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Frees a slot whose contents the front has read. Raises ValueError if the slot was not passed to the front."""
        self._remove(self._at_front, slot, "is not with the front")
        self._free.append(slot)

    def _remove(self, holders: set[int], slot: int, problem: str) -> None:
        if slot not in holders:
            raise ValueError(f"slot {slot} of {self.count} {problem}")
        holders.remove(slot)
