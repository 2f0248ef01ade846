"""Chunk ring: the layout of the memory through which a device process passes chunks of downloads to the front.

The front creates one ring for each device process, and sends its layout together with the file; a CHUNK frame then
names a slot of the ring (`Flag.SLOT`).

Shared code: the front imports nothing of `device/`, and `device/` nothing of `front/`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FILE = "chunk_slots"
"""Kind of the message that passes the ring to a device process."""

SMALLEST = 64 << 10
"""Smallest chunk in bytes that uses a slot. Smaller chunks go through the socket, because a slot would save less than
returning it costs."""

MAX_SLOTS = 16
"""Largest number of slots: enough for two transfers with all the chunks that they may have in flight."""

MAX_RING_BYTES = 16 << 20
"""Limit of all slots together in bytes. All of them are page-locked in one call, so that any slot can be used in one
copy of the device."""

_PAGE = 4 << 10


class Layout(NamedTuple):
    """Layout of a ring: a number of slots of equal size (in bytes), one after the other."""

    slots: int
    slot_bytes: int

    @property
    def bytes(self) -> int:
        """Total size of all slots, in bytes."""
        return self.slots * self.slot_bytes

    def start(self, slot: int) -> int:
        """Returns the offset of a slot, in bytes."""
        return slot * self.slot_bytes


NONE = Layout(0, 0)


def layout(chunk_bytes: int) -> Layout:
    """Returns the layout for chunks of up to `chunk_bytes`.

    It has no slots if such chunks are too small to benefit, or too large to fit.
    """
    if chunk_bytes < SMALLEST:
        return NONE
    size = -(-chunk_bytes // _PAGE) * _PAGE
    return Layout(min(MAX_SLOTS, MAX_RING_BYTES // size), size)


def to_message(ring: Layout) -> dict[str, Any]:
    """Returns the message that is sent together with the ring's file."""
    return ring._asdict()


def from_message(body: dict[str, Any]) -> Layout:
    """Reads the layout from a message; no slots if the message contains no valid layout."""
    slots, slot_bytes = body.get("slots"), body.get("slot_bytes")
    if type(slots) is int and type(slot_bytes) is int and slots > 0 and slot_bytes > 0:
        return Layout(slots, slot_bytes)
    return NONE
