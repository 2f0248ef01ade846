"""Parts of ranks in a collective operation, and the parts that each operation consists of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.arrays.base_array import BaseArray
    from hearth.session.collective_order import RankOrder


class RankPart(NamedTuple):
    """The part of a rank in an operation; ranks are the group's."""

    rank: int
    kind: commands_pb2.CollectiveKind
    source: BaseArray | None = None
    destination: BaseArray | None = None
    elements: int = 0
    """NCCL's: elements that each rank gives or gets of every other."""
    dtype: str = ""
    op: commands_pb2.ReduceOp = commands_pb2.REDUCE_OP_UNSPECIFIED
    root: int | None = None
    peer: int | None = None

    @property
    def arrays(self) -> tuple[BaseArray, ...]:
        """Source and destination, where it has them."""
        return tuple(array for array in (self.source, self.destination) if array is not None)

    def write(self, to: commands_pb2.CollectiveOperation, order: RankOrder) -> None:
        """Writes the part into a message, with the ranks of `order`."""
        to.kind = self.kind
        if self.source is not None:
            to.source, to.source_offset = self.source._memory.handle, self.source._offset
        if self.destination is not None:
            to.destination, to.destination_offset = self.destination._memory.handle, self.destination._offset
        to.count, to.dtype, to.op = self.elements, self.dtype, self.op
        if self.root is not None:
            to.root = order.rank(self.root)
        if self.peer is not None:
            to.peer = order.rank(self.peer)


def among_all(
    kind: commands_pb2.CollectiveKind,
    sources: Sequence[BaseArray],
    destinations: Sequence[BaseArray],
    elements: int,
    dtype: str,
    op: commands_pb2.ReduceOp = commands_pb2.REDUCE_OP_UNSPECIFIED,
) -> list[RankPart]:
    """The parts of an operation in which every rank gives and gets: arrays in the group's order."""
    pairs = zip(sources, destinations, strict=True)
    return [RankPart(rank, kind, source, target, elements, dtype, op) for rank, (source, target) in enumerate(pairs)]


def to_root(
    kind: commands_pb2.CollectiveKind,
    sources: Sequence[BaseArray],
    destination: BaseArray,
    root: int,
    elements: int,
    dtype: str,
    op: commands_pb2.ReduceOp = commands_pb2.REDUCE_OP_UNSPECIFIED,
) -> list[RankPart]:
    """The parts of an operation in which every rank gives, and the root alone gets."""
    return [
        RankPart(rank, kind, source, destination if rank == root else None, elements, dtype, op, root)
        for rank, source in enumerate(sources)
    ]


def from_root(
    kind: commands_pb2.CollectiveKind,
    source: BaseArray,
    destinations: Sequence[BaseArray],
    root: int,
    elements: int,
    dtype: str,
) -> list[RankPart]:
    """The parts of an operation in which the root alone gives, and every rank gets."""
    op = commands_pb2.REDUCE_OP_UNSPECIFIED
    return [
        RankPart(rank, kind, source if rank == root else None, target, elements, dtype, op, root)
        for rank, target in enumerate(destinations)
    ]


def by_rank(parts: Iterable[RankPart], ranks: Iterable[int] = ()) -> dict[int, list[RankPart]]:
    """The parts of each rank that has one, and of each of `ranks`."""
    found: dict[int, list[RankPart]] = {rank: [] for rank in ranks}
    for part in parts:
        found.setdefault(part.rank, []).append(part)
    return found
