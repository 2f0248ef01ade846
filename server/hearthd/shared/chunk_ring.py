"""The memory through which a device process hands chunks of downloads to the front: how it is laid out, and what its
hand-over says. The front makes it, one for each device process; a CHUNK then names a slot of it (`Flag.SLOT`).

Neutral ground: the front imports nothing of `device/`, and `device/` nothing of `front/`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FILE = "chunk_slots"
"""The kind of the message that hands it to a device process."""

SMALLEST = 64 << 10
"""Bytes. A shorter chunk goes through the socket: what a slot saves is less than what its return costs."""

MOST = 16
"""Slots: two transfers with all the chunks that they may have under way."""

MOST_BYTES = 16 << 20
"""Limit of all slots together, in bytes: as much as is page-locked in one call, so that any slot serves one copy of the
device."""

_PAGE = 4 << 10


class Layout(NamedTuple):
    """A number of slots of equal size, in bytes, one behind the other."""

    slots: int
    slot_bytes: int

    @property
    def bytes(self) -> int:
        return self.slots * self.slot_bytes

    def start(self, slot: int) -> int:
        """Returns the start of a slot."""
        return slot * self.slot_bytes


NONE = Layout(0, 0)


def layout(chunk_bytes: int) -> Layout:
    """Returns the layout for chunks of up to `chunk_bytes`; no slots where they are not worth it, or none fits."""
    if chunk_bytes < SMALLEST:
        return NONE
    size = -(-chunk_bytes // _PAGE) * _PAGE
    return Layout(min(MOST, MOST_BYTES // size), size)


def to_message(what: Layout) -> dict[str, Any]:
    """Returns the message that goes with the file."""
    return what._asdict()


def from_message(body: dict[str, Any]) -> Layout:
    """The other way; no slots where it says nothing of the kind."""
    slots, slot_bytes = body.get("slots"), body.get("slot_bytes")
    if type(slots) is int and type(slot_bytes) is int and slots > 0 and slot_bytes > 0:
        return Layout(slots, slot_bytes)
    return NONE
