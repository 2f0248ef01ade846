"""Which memory the parts of one rank may share: refused here, where otherwise the other ranks would wait in vain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hearth.errors import ArgumentError
from hearth_proto.v1 import commands_pb2 as c

if TYPE_CHECKING:
    from hearth.array import DeviceArray
    from hearth.collective_parts import Part

_SAME = (c.COLLECTIVE_KIND_ALL_REDUCE, c.COLLECTIVE_KIND_REDUCE, c.COLLECTIVE_KIND_BROADCAST)
_GATHER = (c.COLLECTIVE_KIND_ALL_GATHER, c.COLLECTIVE_KIND_GATHER)
_SCATTER = (c.COLLECTIVE_KIND_REDUCE_SCATTER, c.COLLECTIVE_KIND_SCATTER)


class Span(NamedTuple):
    """Bytes of a buffer."""

    buffer: int
    start: int
    end: int

    def meets(self, other: Span) -> bool:
        """Whether they have bytes in common."""
        return self.buffer == other.buffer and max(self.start, other.start) < min(self.end, other.end)


def span(array: DeviceArray) -> Span:
    """Where a contiguous array lies."""
    return Span(array._memory.handle, array._offset, array._offset + array.nbytes)


def check(parts: Sequence[Part]) -> None:
    """Raises `ArgumentError` where a part's source and destination overlap but as NCCL's in-place operations have it,
    and where one part writes what another one, which runs at the same time, reads or writes."""
    if len(parts) == 1:
        source, destination = parts[0].source, parts[0].destination
        if source is None or destination is None or (source is destination and parts[0].kind in _SAME):
            return
    reads: list[Span] = []
    writes: list[Span] = []
    for part in parts:
        since = None if part.source is None else span(part.source)
        to = None if part.destination is None else span(part.destination)
        if since is not None and to is not None and since.meets(to):
            if not _in_place(part.kind, part.rank, since, to):
                raise _overlap(
                    f"source and destination of rank {part.rank} overlap: {part.source!r} and {part.destination!r}",
                    "keep them apart, or see the method's docstring for where in place is possible.",
                )
            writes.append(Span(to.buffer, min(since.start, to.start), max(since.end, to.end)))
            continue
        if since is not None:
            reads.append(since)
        if to is not None:
            writes.append(to)
    if len(parts) > 1 and _meet(reads, writes):
        raise _overlap(
            f"two operations of a batch use the same memory of rank {parts[0].rank}, and one of them writes it",
            "they run at once: do one after the other, or give each its own memory.",
        )


def _meet(reads: Iterable[Span], writes: Iterable[Span]) -> bool:
    """Whether something is written that is read or written besides."""
    buffer = used = written = 0  # of this buffer, how far the spans reach that begin before
    for span, writes_it in sorted([(each, False) for each in reads] + [(each, True) for each in writes]):
        if span.start == span.end:
            continue
        if span.buffer != buffer:
            buffer, used, written = span.buffer, 0, 0
        if span.start < (used if writes_it else written):
            return True
        used = max(used, span.end)
        if writes_it:
            written = max(written, span.end)
    return False


def _in_place(kind: c.CollectiveKind, rank: int, source: Span, destination: Span) -> bool:
    if kind in _GATHER:
        return source.start == destination.start + rank * (source.end - source.start)
    if kind in _SCATTER:
        return destination.start == source.start + rank * (destination.end - destination.start)
    return kind in _SAME and source == destination


def _overlap(what: str, fix: str) -> ArgumentError:
    return ArgumentError(f"{what}.", reason="INVALID_ARGUMENT", fix=fix)
