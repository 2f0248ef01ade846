"""The index of durable copies: their areas in the file, and the host memory that they may use. Pure.

Every buffer has two areas in its session's file: for the copy that is complete, and for the copy that is being taken.
Both are counted from the start, so that no later checkpoint fails because of a lack of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hearth_proto.reasons import Reason, Refusal

PAGE = 4096
"""Page size in bytes. Areas are multiples of it."""

Hole = tuple[int, int]
"""Offset and length of an unused part of the file."""


@dataclass
class DurableCopy:
    """The copies of one durable buffer.

    `committed` is the area (0 or 1) that holds its last complete copy; None: there is none.
    """

    key: int
    handle: int
    size: int
    offset: int
    span: int
    committed: int | None = None
    superseded: bool = False
    """True once another buffer has the same handle: this buffer was freed, or is no longer durable."""

    @property
    def extent(self) -> Hole:
        """The offset and length, in bytes, of both areas together."""
        return self.offset, 2 * self.span


def span_of(size: int) -> int:
    """Returns the size of one area in bytes."""
    return -(-size // PAGE) * PAGE


class StoreIndex:
    """The copies of one session on one device.

    An area of the file is never reused; a copy that is removed leaves a hole.
    """

    def __init__(self) -> None:
        self.copies: dict[int, DurableCopy] = {}
        self.bytes = 0
        self._end = 0
        self._key_by_handle: dict[int, int] = {}  # the newest key of each handle

    def reserve(self, key: int, handle: int, size: int) -> DurableCopy:
        """Reserves two areas for a buffer. The caller has checked the limits."""
        if key in self.copies or size < 0:
            raise ValueError(f"copy {key} of {size} bytes")
        previous = self._key_by_handle.get(handle)
        if previous is not None:
            self.copies[previous].superseded = True
        self._key_by_handle[handle] = key
        copy = DurableCopy(key, handle, size, self._end, span_of(size))
        self._end += 2 * copy.span
        self.bytes += 2 * copy.span
        self.copies[key] = copy
        return copy

    def commit(self, areas: Iterable[tuple[int, int]]) -> None:
        """Marks areas as complete copies, taken at the same moment: either all of them are marked, or none."""
        committed = [(self.copies[key], area) for key, area in areas]
        for copy, area in committed:
            if area not in (0, 1):
                raise ValueError(f"area {area}")
            copy.committed = area

    def forget(self, keys: Iterable[int]) -> list[Hole]:
        """Removes buffers that are no longer durable, and returns their areas. Unknown keys are ignored."""
        removed = [copy for key in keys if (copy := self.copies.pop(key, None)) is not None]
        for copy in removed:
            self.bytes -= 2 * copy.span
            if self._key_by_handle.get(copy.handle) == copy.key:
                del self._key_by_handle[copy.handle]
        return [copy.extent for copy in removed if copy.span]

    def discard_incomplete(self) -> list[Hole]:
        """Removes the buffers that have no complete copy or were superseded, after the device process has ended.

        Returns their areas.
        """
        return self.forget([key for key, copy in self.copies.items() if copy.committed is None or copy.superseded])


@dataclass(frozen=True)
class StoreUse:
    """The usage and limit to check for a request, and their owner in words. `allowed` 0: no limit."""

    owner: str
    in_use: int
    allowed: int


def charge(sizes: Sequence[int]) -> int:
    """Returns the bytes of host memory for buffers of these sizes."""
    return sum(2 * span_of(size) for size in sizes)


def check(requested: int, uses: Iterable[StoreUse]) -> None:
    """Raises Refusal(QUOTA_EXCEEDED), with all numbers, if a limit is exceeded."""
    for use in uses:
        if use.allowed and use.in_use + requested > use.allowed:
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"Durable buffers that take {requested} bytes of host memory were requested (two copies of each, in "
                f"pages); {use.owner} has {use.in_use} of at most {use.allowed} in use.",
                fix="Make fewer or smaller buffers durable, stop it for others (gpu.durable(x, durable=False)), or "
                "have "
                "the limit raised (durable_bytes).",
                details={
                    "requested": requested,
                    "allowed": use.allowed,
                    "in_use": use.in_use,
                    "limit": use.owner,
                },
            )
