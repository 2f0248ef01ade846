"""Red zones: patterns before and after a buffer during a validated launch, and the detection of writes to them."""

from __future__ import annotations

from dataclasses import dataclass

PATTERN = b"\xfa\xce\xd0\x0d\xbe\xef\xca\xfe"
"""Contents of the zones: neither a small number, nor zero, nor a common float, so that stray writes rarely equal it."""

SMALLEST = 4 << 10
LARGEST = 1 << 20
ALIGNMENT = 256


@dataclass(frozen=True)
class Shadow:
    """Layout of a buffer's copy between its two zones. Offsets are in bytes from the start of the copy's memory."""

    size: int
    zone: int

    @property
    def buffer_offset(self) -> int:
        """Offset of the buffer's bytes."""
        return self.zone

    @property
    def second_zone(self) -> int:
        """Offset of the second zone.

        The zone begins directly after the buffer's last byte, so that a write one byte too far is detected.
        """
        return self.zone + self.size

    @property
    def total(self) -> int:
        """Size of the copy's memory in bytes: the buffer, both zones, and padding to a whole number of patterns."""
        return 2 * self.zone + self.size + (-self.size) % len(PATTERN)


def shadow(size: int) -> Shadow:
    """Returns the layout for a buffer of `size` bytes.

    Each zone is an eighth of the buffer, at least 4 KiB and at most 1 MiB: wide enough to detect one row too many of a
    usual shape.
    """
    zone = min(max(size // 8, SMALLEST), LARGEST)
    return Shadow(size, -(-zone // ALIGNMENT) * ALIGNMENT)


def pattern(start: int, size: int) -> bytes:
    """Returns the contents of `size` bytes of a zone that starts `start` bytes into the copy's memory."""
    phase = start % len(PATTERN)
    repeated = PATTERN * (size // len(PATTERN) + 2)
    return repeated[phase : phase + size]


@dataclass(frozen=True)
class Damage:
    """Overwritten bytes of a zone: the offsets of the first and the last, and their number.

    Offsets are in bytes, relative to the buffer's start.
    """

    first: int
    last: int
    count: int


def find_damage(zone: bytes | memoryview, start: int, plan: Shadow) -> Damage | None:
    """Returns the damage to a zone that starts `start` bytes into the copy's memory; None if the zone is intact."""
    expected = pattern(start, len(zone))
    if zone == expected:
        return None
    changed = [index for index, (actual, intact) in enumerate(zip(zone, expected, strict=True)) if actual != intact]
    return Damage(start + changed[0] - plan.buffer_offset, start + changed[-1] - plan.buffer_offset, len(changed))
