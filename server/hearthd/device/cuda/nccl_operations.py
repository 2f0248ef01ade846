"""NCCL calls of a collective. Pure: it imports neither CuPy nor CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hearth_proto.collectives import PEERED, REDUCING
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange

# nccl.h: ncclDataType_t and ncclRedOp_t. CuPy hands these numbers on as they are.
DTYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8,
    "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}
BYTES = DTYPES["uint8"]

FP8_VERSION = 22400
"""NCCL 2.24, as ncclGetVersion writes it: the first that reduces 8-bit floats."""
FP8_CAPABILITY = (9, 0)
"""The least compute capability of a device that NCCL reduces them on ("begins with sm90 capable devices")."""

Call = tuple[str, tuple[int, ...]]
"""A method of CuPy's NcclCommunicator and its arguments but for the last, the stream."""


def reducible(version: int, capability: tuple[int, int]) -> tuple[str, ...]:
    """The dtypes that this version of NCCL (22803 is 2.28.3) can reduce on a device of that compute capability."""
    narrow = version >= FP8_VERSION and capability >= FP8_CAPABILITY
    return tuple(name for name in DTYPES if narrow or not name.startswith("float8"))


def check(kind: str, dtype: str, op: str, allowed: Sequence[str]) -> None:
    """Raises Refusal(UNSUPPORTED) that names what NCCL has. What does not reduce moves bytes, of whatever dtype."""
    if kind not in _CALLS:
        raise _unsupported(f"NCCL has no {kind or 'unnamed operation'}", kind, tuple(_CALLS), "use one of these")
    if kind not in REDUCING:
        return
    if dtype not in allowed:
        why = f"NCCL cannot reduce {dtype or 'an unnamed dtype'}"
        if dtype in DTYPES:
            why += " here (it takes NCCL 2.24 and a device of compute capability 9.0)"
        raise _unsupported(why, dtype, allowed, "convert to one of these before the collective")
    if op not in OPS:
        raise _unsupported(f"NCCL has no reduction {op!r}", op, tuple(OPS), "use one of these")


def calls(operations: Sequence[CollectiveExchange], rank: int, ranks: int, scratch: int) -> list[Call]:
    """The calls of `rank` that do all of `operations`, in an order that goes together with that of the other ranks.

    More than one of them belong between ncclGroupStart and ncclGroupEnd. NCCL pairs the sends and receives of two ranks
    in the order of their calls. Ranks agree on the order of the operations, but for sends and receives, which they may
    have anywhere among them: those come first, so that none meets a part of an all_to_all, a gather or a scatter.
    `scratch`: memory for four bytes, which are never read.
    """
    made: list[Call] = []
    for each in operations:
        if each.kind in PEERED:
            made += _CALLS[each.kind](each, rank, ranks, scratch)
    for each in operations:
        if each.kind not in PEERED:
            made += _CALLS[each.kind](each, rank, ranks, scratch)
    return made


def named(operations: Sequence[CollectiveExchange]) -> str:
    """Returns names for messages: "all_reduce", "a batch of 3 (all_gather, recv, send)"."""
    if len(operations) == 1:
        return operations[0].kind
    return f"a batch of {len(operations)} ({', '.join(sorted({each.kind for each in operations}))})"


def _all_reduce(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "allReduce", (it.source, it.destination, it.count, DTYPES[it.dtype], OPS[it.op])


def _reduce(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "reduce", (it.source, it.destination, it.count, DTYPES[it.dtype], OPS[it.op], it.root)


def _reduce_scatter(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "reduceScatter", (it.source, it.destination, it.count, DTYPES[it.dtype], OPS[it.op])


def _broadcast(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    # NCCL reads the source of the root only, and writes the destination of all: a root that names one buffer keeps it.
    yield "broadcast", (it.source or it.destination, it.destination or it.source, it.count, BYTES, it.root)


def _all_gather(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "allGather", (it.source, it.destination, it.count, BYTES)


def _send(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "send", (it.source, it.count, BYTES, it.peer)


def _recv(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "recv", (it.destination, it.count, BYTES, it.peer)


# A rank's part to itself goes by a send and a receive, too, which NCCL copies in the kernel that moves the other parts:
# at the same time as they move, and in one launch. A separate copy would come before them.


def _all_to_all(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    for peer in range(ranks):
        yield "send", (it.source + peer * it.count, it.count, BYTES, peer)
        yield "recv", (it.destination + peer * it.count, it.count, BYTES, peer)


def _gather(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    in_place = it.source == it.destination + rank * it.count
    if rank != it.root or not in_place:
        yield "send", (it.source, it.count, BYTES, it.root)
    if rank == it.root:
        for peer in range(ranks):
            if peer != rank or not in_place:
                yield "recv", (it.destination + peer * it.count, it.count, BYTES, peer)


def _scatter(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    in_place = it.destination == it.source + rank * it.count
    if rank == it.root:
        for peer in range(ranks):
            if peer != rank or not in_place:
                yield "send", (it.source + peer * it.count, it.count, BYTES, peer)
    if rank != it.root or not in_place:
        yield "recv", (it.destination, it.count, BYTES, it.root)


def _barrier(it: CollectiveExchange, rank: int, ranks: int, scratch: int) -> Iterator[Call]:
    yield "allReduce", (scratch, scratch, 1, DTYPES["int32"], OPS["sum"])


_CALLS: dict[str, Callable[[CollectiveExchange, int, int, int], Iterator[Call]]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "send": _send,
    "recv": _recv,
    "barrier": _barrier,
}


def _unsupported(why: str, requested: str, allowed: Sequence[str], fix: str) -> Refusal:
    listed = ", ".join(allowed)
    return Refusal(
        Reason.UNSUPPORTED,
        f"{why}; allowed are {listed}.",
        fix=fix,
        details={"requested": requested, "allowed": listed},
    )
