"""Memory that clients share with a device process: what is taken of it, and how a copy from or to it is cut. Pure."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator

from hearth_proto.reasons import Reason, Refusal

PART = 16 << 20
"""Bytes. A segment is page-locked in parts of this size, and no copy crosses the border of one: of what two calls have
locked, CUDA does not promise that one copy may span it. A part is page-locked in about a millisecond, during which CUDA
may block other threads, and copied in a third of one: others get their turns between. A smaller one would show in
the time of a copy: the device takes a microsecond or two from one to the next."""

MOST = 256
"""Segments of one session, those that are on their way in or out among them."""

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Required seals: no process can take pages away from under a copy, which would end this process by SIGBUS."""

_FIX = "make it with memfd_create(MFD_ALLOW_SEALING), ftruncate it, and add F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL"


def check_sealed(seals: int) -> None:
    """`seals`: what F_GET_SEALS says of the file; -1: that it is none that has any. Raises Refusal(INVALID_ARGUMENT)
    for anything but a memfd whose size is for ever."""
    if seals < 0:
        raise Refusal(Reason.INVALID_ARGUMENT, "a segment's descriptor is no memfd", fix=_FIX)
    if seals & SEALS != SEALS:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"a segment's memfd has the seals {seals:#x}; its size has to be sealed for ever ({SEALS:#x})",
            fix=_FIX,
            details={"seals": seals, "needed": SEALS},
        )
    if seals & (fcntl.F_SEAL_WRITE | getattr(fcntl, "F_SEAL_FUTURE_WRITE", 0x10)):
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            "a segment's memfd is sealed against writing, so nothing could be read into it",
            fix="leave F_SEAL_WRITE and F_SEAL_FUTURE_WRITE out",
            details={"seals": seals},
        )


def check_size(announced: object, size: int) -> int:
    """The size of a segment that its client says to have `announced` bytes. Raises Refusal(INVALID_ARGUMENT)."""
    if type(announced) is not int or announced <= 0 or announced != size:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"a segment of {announced!r:.40} bytes was announced; its memfd has {size}",
            fix="announce the memfd's size, which is more than 0",
            details={"size": size},
        )
    return size


def check_room(size: int, held: int, most: int, number: int) -> None:
    """Raises Refusal(QUOTA_EXCEEDED) where one more segment may not be taken: all together have `held` of `most` bytes,
    and the session has `number` of them."""
    if number >= MOST:
        raise Refusal(
            Reason.QUOTA_EXCEEDED,
            f"the session shares {number} segments with this device; the most is {MOST}",
            fix="release some, or make them larger",
            details={"requested": number + 1, "allowed": MOST},
        )
    if held + size > most:
        raise Refusal(
            Reason.QUOTA_EXCEEDED,
            f"a segment of {size} bytes beside {held} that are shared already; the most is {most}",
            fix="release segments that are not needed, or have the operator raise lanes.segment_bytes, or the tenant's "
            "pinned_bytes",
            details={"requested": size, "held": held, "allowed": most},
        )


def check_range(what: str, segment: int, segment_size: int, offset: int, size: int) -> None:
    """Raises Refusal(OUT_OF_BOUNDS) where `size` bytes at `offset` are not all in the segment."""
    if offset + size > segment_size:
        raise Refusal(
            Reason.OUT_OF_BOUNDS,
            f"{what}: bytes [{offset}..{offset + size}) of segment {segment}, which has {segment_size}",
            fix="stay within the segment",
            details={"segment": segment, "offset": offset, "size": size, "segment_size": segment_size},
        )


def parts(size: int, part: int = PART) -> Iterator[tuple[int, int]]:
    """(start, length) of each part of a segment."""
    for start in range(0, size, part):
        yield start, min(part, size - start)


def step(offset: int, left: int, part: int = PART) -> int:
    """Returns how many of `left` bytes from `offset` of a segment on one copy takes."""
    return min(left, part - offset % part)
