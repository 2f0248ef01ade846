"""Parts of ranks in a collective operation, and the parts of which each operation consists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.arrays.base_array import BaseArray
    from hearth.collectives.reduction import Reduction
    from hearth.session.collective_order import RankOrder


class RankPart(NamedTuple):
    """The part of one rank in an operation. Ranks are those of the group."""

    rank: int
    kind: commands_pb2.CollectiveKind
    source: BaseArray | None = None
    destination: BaseArray | None = None
    elements: int = 0
    """NCCL's count: number of elements that each rank sends to, or receives from, each other rank."""
    dtype: str = ""
    op: commands_pb2.ReduceOp = commands_pb2.REDUCE_OP_UNSPECIFIED
    root: int | None = None
    peer: int | None = None
    factor: bytes = b""
    """Factor of a premultiplied sum: one element of `dtype`."""

    @property
    def arrays(self) -> tuple[BaseArray, ...]:
        """The source and the destination, if the part has them."""
        return tuple(array for array in (self.source, self.destination) if array is not None)

    def write(self, message: commands_pb2.CollectiveOperation, order: RankOrder) -> None:
        """Writes the part into a message.

        Args:
            message: The message.
            order: Converts ranks of the group to ranks for the daemon.
        """
        message.kind = self.kind
        if self.source is not None:
            message.source, message.source_offset = self.source._memory.handle, self.source._offset
        if self.destination is not None:
            message.destination, message.destination_offset = self.destination._memory.handle, self.destination._offset
        message.count, message.dtype, message.op = self.elements, self.dtype, self.op
        if self.factor:
            message.factor = self.factor
        if self.root is not None:
            message.root = order.rank(self.root)
        if self.peer is not None:
            message.peer = order.rank(self.peer)


def parts_of_ranks(
    kind: commands_pb2.CollectiveKind,
    sources: Sequence[BaseArray | None],
    destinations: Sequence[BaseArray | None],
    elements: int,
    dtype: str,
    reduction: Reduction | None = None,
    root: int | None = None,
) -> list[RankPart]:
    """Makes the parts of an operation.

    Args:
        kind: Kind of the operation.
        sources: For each rank, in the group's order, the array to read; None: the rank reads nothing.
        destinations: For each rank the array to write; None: the rank writes nothing.
        elements: NCCL's count.
        dtype: Name of the elements' type.
        reduction: The reduction, if there is one.
        root: The rank that alone sends or receives, if there is one.

    Returns:
        One part for each rank.
    """
    op = commands_pb2.REDUCE_OP_UNSPECIFIED if reduction is None else reduction.op
    factors = reduction.factors if reduction is not None and reduction.factors else (b"",) * len(sources)
    return [
        RankPart(rank, kind, source, destination, elements, dtype, op, root, factor=factor)
        for rank, (source, destination, factor) in enumerate(zip(sources, destinations, factors, strict=True))
    ]


def at_root(array: BaseArray, root: int, ranks: int) -> list[BaseArray | None]:
    """Returns the array of each rank if only the root has one.

    Args:
        array: The root's array.
        root: The root.
        ranks: Number of ranks of the group.
    """
    return [array if rank == root else None for rank in range(ranks)]


def by_rank(parts: Iterable[RankPart], ranks: Iterable[int] = ()) -> dict[int, list[RankPart]]:
    """Groups parts by rank.

    Args:
        parts: The parts.
        ranks: Ranks to include even if they have no part.

    Returns:
        The parts of each rank, in their order.
    """
    ranked: dict[int, list[RankPart]] = {rank: [] for rank in ranks}
    for part in parts:
        ranked.setdefault(part.rank, []).append(part)
    return ranked
