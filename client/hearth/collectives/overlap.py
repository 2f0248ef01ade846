"""Check of memory overlap between the parts of one rank: an error here saves other ranks a wait in vain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hearth.errors import ArgumentError
from hearth_proto.collectives import GATHERING, KINDS, SAME, SCATTERING
from hearth_proto.layouts import clash

if TYPE_CHECKING:
    from hearth.arrays.base_array import BaseArray
    from hearth.collectives.part import RankPart


class Span(NamedTuple):
    """A range of bytes in a buffer.

    Offsets of different buffers are 2^64 apart, so spans of two buffers never overlap.
    """

    start: int
    end: int

    def overlaps(self, other: Span) -> bool:
        """Checks two spans for overlap.

        Args:
            other: The other span.

        Returns:
            True if the spans have bytes in common.
        """
        return max(self.start, other.start) < min(self.end, other.end)


def span(array: BaseArray) -> Span:
    """Returns the span of a contiguous array. Spans in different buffers never overlap."""
    start = (array._memory.handle << 64) + array._offset
    return Span(start, start + array.nbytes)


def check(parts: Sequence[RankPart]) -> None:
    """Checks that the parts of one rank that run concurrently use memory without conflicts.

    Raises `ArgumentError` if the source and destination of a part overlap in another way than NCCL's in-place
    operations allow, or if a part writes memory that a concurrent part reads or writes.
    """
    if len(parts) == 1:
        source, destination = parts[0].source, parts[0].destination
        if source is None or destination is None or (source is destination and KINDS[parts[0].kind] in SAME):
            return
    reads: list[Span] = []
    writes: list[Span] = []
    for part in parts:
        source_span = None if part.source is None else span(part.source)
        destination_span = None if part.destination is None else span(part.destination)
        if source_span is not None and destination_span is not None and source_span.overlaps(destination_span):
            if not _is_in_place(KINDS[part.kind], part.rank, source_span, destination_span):
                raise _overlap_error(
                    f"source and destination of rank {part.rank} overlap: {part.source!r} and {part.destination!r}",
                    "use separate memory, or see the method's docstring for the operations that work in place.",
                )
            writes.append(
                Span(min(source_span.start, destination_span.start), max(source_span.end, destination_span.end))
            )
            continue
        if source_span is not None:
            reads.append(source_span)
        if destination_span is not None:
            writes.append(destination_span)
    if len(parts) > 1 and clash(reads, writes):
        raise _overlap_error(
            f"two operations of a batch use the same memory of rank {parts[0].rank}, and one of them writes to it",
            "run the operations one after the other, or use separate memory: operations of a batch run concurrently.",
        )


def _is_in_place(kind: str, rank: int, source: Span, destination: Span) -> bool:
    if kind in GATHERING:
        return source.start == destination.start + rank * (source.end - source.start)
    if kind in SCATTERING:
        return destination.start == source.start + rank * (destination.end - destination.start)
    return kind in SAME and source == destination


def _overlap_error(message: str, fix: str) -> ArgumentError:
    return ArgumentError(f"{message}.", fix=fix)
