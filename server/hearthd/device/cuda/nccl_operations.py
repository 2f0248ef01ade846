"""NCCL calls of a collective. Pure: imports neither CuPy nor CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from hearth_proto.collectives import PEERED, PREMUL_SUM, REDUCING, SHAPES
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange

# nccl.h: ncclDataType_t and ncclRedOp_t. CuPy passes these numbers on unchanged.
DTYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8,
    "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}
REDUCTIONS = (*OPS, PREMUL_SUM)
"""Names of the reductions; the number of `premul_sum` is that of an operator made for its dtype and factor."""
BYTES = DTYPES["uint8"]

FP8_VERSION = 22400
"""NCCL 2.24, in the form of ncclGetVersion: the first version that reduces 8-bit floats."""
FP8_CAPABILITY = (9, 0)
"""Lowest compute capability of devices on which NCCL reduces 8-bit floats ("begins with sm90 capable devices")."""

Call = tuple[str, tuple[int, ...]]
"""A method of CuPy's NcclCommunicator and its arguments, except the last one, which is the stream."""

Operator = tuple[str, bytes]
"""Dtype and factor of a premultiplied sum."""


def reducible(version: int, capability: tuple[int, int]) -> tuple[str, ...]:
    """Returns the dtypes that this version of NCCL (22803 is 2.28.3) reduces at that compute capability."""
    narrow = version >= FP8_VERSION and capability >= FP8_CAPABILITY
    return tuple(name for name in DTYPES if narrow or not name.startswith("float8"))


def check(kind: str, dtype: str, op: str, allowed: Sequence[str]) -> None:
    """Raises Refusal(UNSUPPORTED), which lists what NCCL supports.

    Operations that do not reduce move bytes and accept any dtype.
    """
    if kind not in SHAPES:
        raise _unsupported(f"NCCL has no {kind or 'unnamed operation'}", kind, tuple(SHAPES), "use one of these")
    if kind not in REDUCING:
        return
    if dtype not in allowed:
        problem = f"NCCL cannot reduce {dtype or 'an unnamed dtype'}"
        if dtype in DTYPES:
            problem += " here (this needs NCCL 2.24 and a device of compute capability 9.0)"
        raise _unsupported(problem, dtype, allowed, "convert to one of these before the collective")
    if op not in REDUCTIONS:
        raise _unsupported(f"NCCL has no reduction {op!r}", op, REDUCTIONS, "use one of these")


def operators(operations: Sequence[CollectiveExchange]) -> set[Operator]:
    """Returns the premultiplied sums among the operations, for which NCCL operators must be made."""
    return {(operation.dtype, operation.factor) for operation in operations if operation.op == PREMUL_SUM}


def calls(
    operations: Sequence[CollectiveExchange],
    rank: int,
    ranks: int,
    scratch: int,
    operator_numbers: Mapping[Operator, int],
) -> list[Call]:
    """Returns the calls of `rank` for all of `operations`, in an order that matches that of the other ranks.

    Several calls must be made between ncclGroupStart and ncclGroupEnd. NCCL pairs the sends and receives of two ranks
    in the order of their calls. All ranks have the same order of operations, except for sends and receives, which may
    be anywhere among them. Their calls therefore come first, so that none is paired with a part of an all_to_all, a
    gather or a scatter. `scratch`: address of four bytes whose contents are never read. `operator_numbers`: number of
    the NCCL operator for each of `operators(operations)`.
    """
    result: list[Call] = []
    for operation in sorted(operations, key=lambda operation: operation.kind not in PEERED):
        if operation.kind in REDUCING:
            op = (
                operator_numbers[operation.dtype, operation.factor] if operation.op == PREMUL_SUM else OPS[operation.op]
            )
            root = (operation.root,) if operation.kind == "reduce" else ()
            arguments = (operation.source, operation.destination, operation.count, DTYPES[operation.dtype], op, *root)
            result.append((_REDUCTION_CALLS[operation.kind], arguments))
        else:
            result += _CALLS[operation.kind](operation, rank, ranks, scratch)
    return result


def describe(operations: Sequence[CollectiveExchange]) -> str:
    """Returns a name for messages: "all_reduce", "a batch of 3 (all_gather, recv, send)"."""
    if len(operations) == 1:
        return operations[0].kind
    return f"a batch of {len(operations)} ({', '.join(sorted({operation.kind for operation in operations}))})"


def _broadcast(operation: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    # NCCL reads the source only at the root, and writes the destination of every rank: at a root that names one buffer,
    # its contents stay.
    source, destination = operation.source or operation.destination, operation.destination or operation.source
    yield "broadcast", (source, destination, operation.count, BYTES, operation.root)


def _all_gather(operation: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "allGather", (operation.source, operation.destination, operation.count, BYTES)


def _send(operation: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "send", (operation.source, operation.count, BYTES, operation.peer)


def _recv(operation: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "recv", (operation.destination, operation.count, BYTES, operation.peer)


# A rank's part for itself is also a send and a receive, which NCCL copies in the kernel that moves the other parts:
# concurrently with them, and in one launch. A separate copy would precede them.


def _all_to_all(operation: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    for peer in range(ranks):
        yield "send", (operation.source + peer * operation.count, operation.count, BYTES, peer)
        yield "recv", (operation.destination + peer * operation.count, operation.count, BYTES, peer)


def _gather(operation: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    in_place = operation.source == operation.destination + rank * operation.count
    if rank != operation.root or not in_place:
        yield "send", (operation.source, operation.count, BYTES, operation.root)
    if rank == operation.root:
        for peer in range(ranks):
            if peer != rank or not in_place:
                yield "recv", (operation.destination + peer * operation.count, operation.count, BYTES, peer)


def _scatter(operation: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    in_place = operation.destination == operation.source + rank * operation.count
    if rank == operation.root:
        for peer in range(ranks):
            if peer != rank or not in_place:
                yield "send", (operation.source + peer * operation.count, operation.count, BYTES, peer)
    if rank != operation.root or not in_place:
        yield "recv", (operation.destination, operation.count, BYTES, operation.root)


def _barrier(operation: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "allReduce", (scratch, scratch, 1, DTYPES["int32"], OPS["sum"])


_REDUCTION_CALLS = {"all_reduce": "allReduce", "reduce": "reduce", "reduce_scatter": "reduceScatter"}
_CALLS: dict[str, Callable[[CollectiveExchange, int, int, int], Iterator[Call]]] = {
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "send": _send,
    "recv": _recv,
    "barrier": _barrier,
}


def _unsupported(problem: str, requested: str, allowed: Sequence[str], fix: str) -> Refusal:
    listed = ", ".join(allowed)
    return Refusal(
        Reason.UNSUPPORTED,
        f"{problem}; allowed are {listed}.",
        fix=fix,
        details={"requested": requested, "allowed": listed},
    )
