"""Operations of a Collective: the checks that one rank can make before any operation is resolved to memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hearth_proto.collectives import ITEM_SIZES, KINDS, NUMBERS, OPS, PEERED, PREMUL_SUM, SHAPES
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.collectives.parts import BufferRange, CollectivePart
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.handle_table import HandleTable

MAX_OPERATIONS = 1024
"""Largest number of operations of one Collective."""

Check = Callable[[str, str, str], None]
"""Raises Refusal(UNSUPPORTED) for a kind, dtype and reduction that the backend cannot do."""

_OPS = {number: name for name, number in OPS.items()}


def parse(
    operations: Sequence[commands_pb2.CollectiveOperation],
    buffers: HandleTable[Buffer],
    rank: int,
    ranks: int,
    check: Check,
) -> list[CollectivePart]:
    """Returns the parts of `rank` among `ranks`.

    Raises Refusal for operations that no rank could do, whatever the other ranks present.
    """
    if len(operations) > MAX_OPERATIONS:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"a collective of {len(operations)} operations; the maximum is {MAX_OPERATIONS}",
            fix="split it into several collectives",
            details={"operations": len(operations), "allowed": MAX_OPERATIONS},
        )
    parts = [_parse_operation(operation, buffers, rank, ranks, check) for operation in operations]
    to_itself = {part.kind for part in parts if part.kind in PEERED and part.peer == rank}
    if len(to_itself) == 1:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"rank {rank} has a {to_itself.pop()} with itself, but not the matching operation",
            fix="put the send and the recv into one Collective",
            details={"rank": rank, "peer": rank},
        )
    return parts


def _parse_operation(
    operation: commands_pb2.CollectiveOperation, buffers: HandleTable[Buffer], rank: int, ranks: int, check: Check
) -> CollectivePart:
    kind = KINDS.get(operation.kind, "")
    shape = SHAPES.get(kind)
    if shape is None:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{operation.kind} is not a kind of collective",
            fix=f"one of {', '.join(SHAPES)}",
            details={"requested": operation.kind},
        )
    if kind == "barrier":
        return CollectivePart(kind, 0, "", "", 0, 0, rank, None, None)
    item = ITEM_SIZES.get(operation.dtype)
    if item is None:
        raise Refusal(
            Reason.UNSUPPORTED,
            f"{kind} of {operation.dtype!r}",
            fix=f"one of {', '.join(ITEM_SIZES)}",
            details={"dtype": operation.dtype},
        )
    op = _reduction(kind, operation, check) if shape.reduces else ""
    peer = operation.peer if shape.peered else 0
    root = operation.root if shape.rooted else 0
    for field, value in (("root", root), ("peer", peer)):
        if value >= ranks:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"{kind} with {field} {value} in a group of {ranks}",
                fix=f"ranks are numbered from 0 to {ranks - 1}",
                details={field: value, "ranks": ranks},
            )
    size = operation.count * item

    def buffer_range(handle: int, offset: int, times: int, needed: bool) -> BufferRange | None:
        if not times or not needed:
            return None
        return BufferRange(buffers.find(handle), offset, size * (ranks if times == 2 else 1))

    at_root = rank == root
    source = buffer_range(operation.source, operation.source_offset, shape.source, at_root or not shape.source_at_root)
    destination = buffer_range(
        operation.destination,
        operation.destination_offset,
        shape.destination,
        at_root or not shape.destination_at_root,
    )
    if kind == "broadcast" and source == destination:
        destination = None  # the root's array stays as it is, so it may be read-only and others may read it meanwhile
    return CollectivePart(
        kind,
        operation.count,
        operation.dtype,
        op,
        root,
        peer,
        rank,
        source,
        destination,
        operation.factor if shape.reduces else b"",
    )


def _reduction(kind: str, operation: commands_pb2.CollectiveOperation, check: Check) -> str:
    op = _OPS.get(operation.op)
    if op is None:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{kind} with {operation.op}, which is not a reduction",
            fix=f"one of {', '.join(OPS)}",
            details={"requested": operation.op},
        )
    if operation.dtype not in NUMBERS:
        raise Refusal(
            Reason.UNSUPPORTED,
            f"{kind} of {operation.dtype!r}: this dtype cannot be reduced",
            fix="reduce numbers: view booleans as uint8, complex numbers as twice as many of their parts",
            details={"dtype": operation.dtype},
        )
    expected = NUMBERS[operation.dtype] if op == PREMUL_SUM else 0
    if len(operation.factor) != expected:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{kind} of {operation.dtype} with {op} and a factor of {len(operation.factor)} bytes",
            fix=f"a factor of {expected} bytes: premul_sum takes one element of the dtype, other reductions take none",
            details={"requested": len(operation.factor), "allowed": expected},
        )
    check(kind, operation.dtype, op)
    return op
