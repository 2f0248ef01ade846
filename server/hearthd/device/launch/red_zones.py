"""Red zones: what stands before and behind a buffer while a launch is validated, and what is found in it afterwards."""

from __future__ import annotations

from dataclasses import dataclass

PATTERN = b"\xfa\xce\xd0\x0d\xbe\xef\xca\xfe"
"""No small number, no zero, no usual float: a kernel that writes beyond its buffer hardly ever writes just this."""

SMALLEST = 4 << 10
LARGEST = 1 << 20
ALIGNMENT = 256


@dataclass(frozen=True)
class Shadow:
    """Where a copy of a buffer lies between its zones, bytes from the start of the shadow's memory."""

    size: int
    zone: int

    @property
    def inside(self) -> int:
        """Where the buffer's bytes start."""
        return self.zone

    @property
    def behind(self) -> int:
        """Where the zone behind them starts: at their very end, so that a write one byte too far is found."""
        return self.zone + self.size

    @property
    def total(self) -> int:
        return 2 * self.zone + self.size + (-self.size) % len(PATTERN)


def shadow(size: int) -> Shadow:
    """Zones of an eighth of the buffer, from 4 KiB to 1 MiB: wide enough for a row too many of what it may be."""
    zone = min(max(size // 8, SMALLEST), LARGEST)
    return Shadow(size, -(-zone // ALIGNMENT) * ALIGNMENT)


def pattern(start: int, size: int) -> bytes:
    """What a zone holds that starts `start` bytes into the shadow."""
    phase = start % len(PATTERN)
    whole = PATTERN * (size // len(PATTERN) + 2)
    return whole[phase : phase + size]


@dataclass(frozen=True)
class Damage:
    """Bytes of a zone that were written: the first and last, relative to the buffer's start, and how many."""

    first: int
    last: int
    count: int


def damage(zone: bytes | memoryview, start: int, plan: Shadow) -> Damage | None:
    """What was written to a zone that starts `start` bytes into the shadow."""
    expected = pattern(start, len(zone))
    if zone == expected:
        return None
    changed = [index for index, (is_, was) in enumerate(zip(zone, expected, strict=True)) if is_ != was]
    return Damage(start + changed[0] - plan.inside, start + changed[-1] - plan.inside, len(changed))
