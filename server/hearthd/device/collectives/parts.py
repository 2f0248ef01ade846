"""Part of one rank in a collective operation, and its location in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hearth_proto.collectives import GATHERING, ITEM_SIZES, SAME, SCATTERING
from hearth_proto.layouts import clash
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.session.buffer import Buffer


class BufferRange(NamedTuple):
    """A range of a buffer; offset and size in bytes."""

    buffer: Buffer
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class CollectivePart:
    """The part of one rank in an operation.

    Fields that the operation's kind does not use are empty and need not match.
    """

    kind: str
    count: int
    dtype: str
    op: str
    root: int
    peer: int
    rank: int
    source: BufferRange | None
    """Range of the source; None: this rank sends no data."""
    destination: BufferRange | None
    factor: bytes = b""
    """Factor of `premul_sum`, which may differ between ranks."""

    @property
    def signature(self) -> dict[str, Any]:
        """Fields that the front compares with those of the other ranks."""
        return {
            "kind": self.kind,
            "count": self.count,
            "dtype": self.dtype,
            "reduce": self.op,
            "root": self.root,
            "peer": self.peer,
        }

    @property
    def size(self) -> int:
        """Number of bytes read or written, whichever is larger."""
        return max(memory.size if memory is not None else 0 for memory in (self.source, self.destination))

    def locate(self) -> tuple[int, int]:
        """Returns the addresses of source and destination, 0 for one that this rank does not have.

        Raises Refusal for a range outside its buffer (OUT_OF_BOUNDS), without memory (BUFFER_LOST, ALLOCATION_FAILED)
        or not writable (READ_ONLY), and Refusal(INVALID_ARGUMENT) for misaligned elements and for ranges that overlap
        other than as allowed by the in-place rule of the kind.
        """
        source_address = destination_address = 0
        if self.destination is not None:
            buffer, offset, size = self.destination
            buffer.check_writable(f"{self.kind}, destination")
            destination_address = buffer.range(offset, size, f"{self.kind}, destination")
        if self.source is not None:
            buffer, offset, size = self.source
            source_address = buffer.range(offset, size, f"{self.kind}, source")
        if self.op:
            self._check_aligned(source_address, destination_address)
        self._check_apart(source_address, destination_address)
        return source_address, destination_address

    def _check_aligned(self, source_address: int, destination_address: int) -> None:
        item = ITEM_SIZES[self.dtype]
        for name, memory, address in (
            ("source", self.source, source_address),
            ("destination", self.destination, destination_address),
        ):
            if memory is not None and memory.size and address % item:
                raise Refusal(
                    Reason.INVALID_ARGUMENT,
                    f"{self.kind}, {name}: {self.dtype} at byte {memory.offset} of buffer {memory.buffer.handle}",
                    fix=f"start at a multiple of {item} bytes",
                    details={"offset": memory.offset, "alignment": item},
                )

    def _check_apart(self, source_address: int, destination_address: int) -> None:
        source, destination = self.source, self.destination
        if source is None or destination is None or not (source.size and destination.size):
            return
        if (
            source_address >= destination_address + destination.size
            or destination_address >= source_address + source.size
        ):
            return
        if self.in_place(source_address, destination_address):
            return
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{self.kind}: bytes [{source.offset}..{source.offset + source.size}) of buffer {source.buffer.handle} and "
            f"[{destination.offset}..{destination.offset + destination.size}) of buffer {destination.buffer.handle} "
            "overlap",
            fix=_IN_PLACE.get(self.kind, "keep source and destination apart"),
            details={"kind": self.kind, "rank": self.rank},
        )

    def in_place(self, source_address: int, destination_address: int) -> bool:
        """True if source and destination are placed as in NCCL's in-place operations."""
        if self.kind in SAME:
            return source_address == destination_address
        rank_offset = self.rank * self.count * ITEM_SIZES.get(self.dtype, 0)
        if self.kind in GATHERING:
            return source_address == destination_address + rank_offset
        return self.kind in SCATTERING and destination_address == source_address + rank_offset

    def exchange(self, source_address: int, destination_address: int) -> CollectiveExchange | None:
        """Returns the backend's operation; None: no data is moved. Operations that do not reduce move bytes."""
        if self.kind == "barrier":
            return CollectiveExchange("barrier")
        if not self.count:
            return None
        count, dtype = (self.count, self.dtype) if self.op else (self.count * ITEM_SIZES[self.dtype], "uint8")
        return CollectiveExchange(
            self.kind, source_address, destination_address, count, dtype, self.op, self.root, self.peer, self.factor
        )


_IN_PLACE = {
    **dict.fromkeys(SAME, "name the same range as source and destination, or keep them apart"),
    **dict.fromkeys(GATHERING, "let the source be this rank's part of the destination, or keep them apart"),
    **dict.fromkeys(SCATTERING, "let the destination be this rank's part of the source, or keep them apart"),
}


def locate(parts: Iterable[CollectivePart]) -> list[CollectiveExchange]:
    """Returns the exchanges that the backend runs as one group.

    Raises the same errors as `CollectivePart.locate`, and Refusal(INVALID_ARGUMENT) if one of the operations writes
    memory that another one reads or writes.
    """
    exchanges: list[CollectiveExchange] = []
    reads: list[tuple[int, int]] = []
    writes: list[tuple[int, int]] = []
    for part in parts:
        source_address, destination_address = part.locate()
        exchange = part.exchange(source_address, destination_address)
        if exchange is None:
            continue
        exchanges.append(exchange)
        source = (source_address, source_address + part.source.size) if part.source is not None else None
        destination = (
            (destination_address, destination_address + part.destination.size) if part.destination is not None else None
        )
        if source is not None and destination is not None and part.in_place(source_address, destination_address):
            writes.append((min(source_address, destination_address), max(source[1], destination[1])))
            continue
        if source is not None:
            reads.append(source)
        if destination is not None:
            writes.append(destination)
    if len(exchanges) > 1 and clash(reads, writes):
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            "two operations of one collective use the same memory, and one of them writes it: they run concurrently",
            fix="send them one after the other, or give each separate memory",
        )
    return exchanges
