"""Policy for memory that clients share with a device process. Pure.

Decides which segments are accepted, and how a copy from or to a segment is divided.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator

from hearth_proto.reasons import Reason, Refusal

PART = 16 << 20
"""Size, in bytes, of the parts in which a segment is page-locked. No copy crosses a border between parts, because CUDA
does not promise that one copy may span memory that two calls have locked. Locking a part takes about a millisecond,
during which CUDA may block other threads, and copying it a third of that, so that other sessions can run in between.
Smaller parts would slow the copy down: the device takes one or two microseconds between two copies."""

MAX_SEGMENTS = 256
"""Most segments of one session, including those that are being mapped or unmapped."""

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Required seals, so that no process can remove pages during a copy, which would end this process by SIGBUS."""

_FIX = "make it with memfd_create(MFD_ALLOW_SEALING), ftruncate it, and add F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL"


def check_sealed(seals: int) -> None:
    """Raises Refusal(INVALID_ARGUMENT) unless the file is a memfd with a permanently fixed size.

    `seals` is the result of F_GET_SEALS; -1: the file cannot have seals.
    """
    if seals < 0:
        raise Refusal(Reason.INVALID_ARGUMENT, "a segment's descriptor is not a memfd", fix=_FIX)
    if seals & SEALS != SEALS:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"a segment's memfd has the seals {seals:#x}; its size must be sealed permanently ({SEALS:#x})",
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
    """Returns the size of a segment for which the client announced `announced` bytes.

    Raises Refusal(INVALID_ARGUMENT) if that differs from the file's size.
    """
    if type(announced) is not int or announced <= 0 or announced != size:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"a segment of {announced!r:.40} bytes was announced; its memfd has {size}",
            fix="announce the memfd's size, which is more than 0",
            details={"size": size},
        )
    return size


def check_room(size: int, shared_bytes: int, max_bytes: int, count: int) -> None:
    """Raises Refusal(QUOTA_EXCEEDED) if a segment of `size` bytes may not be added.

    All segments together have `shared_bytes` of `max_bytes` bytes, and the session has `count` segments.
    """
    if count >= MAX_SEGMENTS:
        raise Refusal(
            Reason.QUOTA_EXCEEDED,
            f"the session shares {count} segments with this device; the maximum is {MAX_SEGMENTS}",
            fix="release some, or make them larger",
            details={"requested": count + 1, "allowed": MAX_SEGMENTS},
        )
    if shared_bytes + size > max_bytes:
        raise Refusal(
            Reason.QUOTA_EXCEEDED,
            f"a segment of {size} bytes in addition to {shared_bytes} that are shared already; "
            f"the maximum is {max_bytes}",
            fix="release segments that are not needed, or have the operator raise lanes.segment_bytes, or the tenant's "
            "pinned_bytes",
            details={"requested": size, "held": shared_bytes, "allowed": max_bytes},
        )


def check_range(subject: str, segment: int, segment_size: int, offset: int, size: int) -> None:
    """Raises Refusal(OUT_OF_BOUNDS) unless all `size` bytes at `offset` are in the segment."""
    if offset + size > segment_size:
        raise Refusal(
            Reason.OUT_OF_BOUNDS,
            f"{subject}: bytes [{offset}..{offset + size}) of segment {segment}, which has {segment_size}",
            fix="stay within the segment",
            details={"segment": segment, "offset": offset, "size": size, "segment_size": segment_size},
        )


def parts(size: int, part: int = PART) -> Iterator[tuple[int, int]]:
    """Yields (start, length) of each part of a segment."""
    for start in range(0, size, part):
        yield start, min(part, size - start)


def step(offset: int, remaining: int, part: int = PART) -> int:
    """Returns the size of the next copy, from byte `offset` to the end of that part: at most `remaining` bytes."""
    return min(remaining, part - offset % part)
