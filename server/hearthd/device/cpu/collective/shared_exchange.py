"""Collectives and messages between the device processes of one machine, through one shared memory segment."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterable, Sequence

from hearth_proto.collectives import NUMBERS, PEERED, PREMUL_SUM, REDUCING, ROOTED
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cpu import libraries
from hearthd.device.cpu.collective import shared_segment
from hearthd.device.cpu.libraries import DTYPES, KINDS, OPS, LibraryMaker

_TIMED_OUT, _ABORTED, _MISMATCH = 1, 2, 3
_LIMIT = 1 << 63
_KIND = {name: index for index, name in enumerate(KINDS)}
_DTYPE = {name: index for index, name in enumerate(DTYPES)}
_OP = {name: index for index, name in enumerate(OPS)}


class _Operation(ctypes.Structure):
    _fields_ = (
        ("source", ctypes.c_uint64),
        ("destination", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("reduce", ctypes.c_uint64),
        ("scale", ctypes.c_uint64),
        ("factor", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("op", ctypes.c_uint32),
        ("root", ctypes.c_uint32),
        ("peer", ctypes.c_uint32),
    )


class _Report(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("dtype", ctypes.c_uint32),
        ("op", ctypes.c_uint32),
        ("root", ctypes.c_uint32),
        ("operation", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("missing", ctypes.c_uint64 * (shared_segment.MAX_RANKS // 64)),
    )


class ExchangeCall:
    """Checked operations of one rank for one exchange."""

    def __init__(self, operations: Sequence[CollectiveExchange]) -> None:
        self.operations = tuple(operations)
        self.array = (_Operation * len(self.operations))(*map(_operation, self.operations))


class SharedExchange:
    """The end of one rank in a segment, which `shared_segment.create` has made."""

    def __init__(self, memory: mmap.mmap, rank: int, ranks: int, descriptor: bytes, maker: LibraryMaker) -> None:
        self.rank = rank
        self.ranks = ranks
        self._maker = maker
        self._reductions: dict[str, libraries.Arithmetic] = {}
        self._code = shared_segment.library(maker)
        self._memory = memory
        self._view: ctypes.c_char | None = ctypes.c_char.from_buffer(memory)
        self._base = ctypes.addressof(self._view)
        self._descriptor = descriptor
        self._busy = threading.Lock()  # held while the segment is read and written
        self._state = threading.Lock()  # held while closing and in abort()
        self._closed = False

    @classmethod
    def attach(cls, descriptor: bytes, rank: int, ranks: int, maker: LibraryMaker) -> SharedExchange:
        """Joins the segment as `rank` of `ranks`. Raises `Refusal` as `shared_segment.attach` does."""
        if not 0 <= rank < ranks:
            raise Refusal(Reason.INVALID_ARGUMENT, f"Rank {rank} of {ranks} ranks was requested.")
        memory = shared_segment.attach(descriptor, ranks, maker)
        return cls(memory, rank, ranks, descriptor, maker)

    def prepare(self, operations: Sequence[CollectiveExchange]) -> ExchangeCall:
        """Checks operations for `run`.

        Raises `Refusal` (INVALID_ARGUMENT) for operations that no segment with this number of ranks supports.
        """
        for operation in operations:
            size = NUMBERS.get(operation.dtype, -1)
            rank = operation.root if operation.kind in ROOTED else operation.peer if operation.kind in PEERED else 0
            reduction = _OP.get(operation.op) if operation.kind in REDUCING else 0
            total = operation.count * size * self.ranks
            if (
                operation.kind not in _KIND
                or size < 0
                or reduction is None
                or len(operation.factor) != (size if operation.kind in REDUCING and operation.op == PREMUL_SUM else 0)
                or not (0 <= rank < self.ranks and 0 <= total < _LIMIT)
            ):
                raise Refusal(
                    Reason.INVALID_ARGUMENT,
                    f"{_describe(operation)} was requested in a group of {self.ranks} ranks.",
                    fix=f"Operations: {', '.join(KINDS)}. Types: {', '.join(DTYPES)}. Reductions: {', '.join(OPS)}.",
                    details={
                        "kind": operation.kind,
                        "dtype": operation.dtype,
                        "op": operation.op,
                        "count": operation.count,
                    },
                )
        return ExchangeCall(operations)

    def run(self, call: ExchangeCall, timeout_s: float) -> None:
        """Runs all operations of the call as one group. Blocks until every participating rank has done its part.

        Collectives run in the order of the list, sends and receives in any order, so that none of them waits for
        another.

        Reductions combine in rank order, so all ranks get the same bits. Floats of 8 and 16 bits are computed in
        float32 and rounded once, integers wrap around, and an integer mean is truncated towards zero. In-place
        operations are those of NCCL.

        Raises `Refusal`: COLLECTIVE_TIMEOUT if there was no progress for `timeout_s` seconds (it names the missing
        ranks; the communicator is then aborted for all ranks); COLLECTIVE_MISMATCH if ranks request different
        operations (the communicator is aborted as well); COMMUNICATOR_FAILED if the communicator was aborted;
        NO_COMPILER if the arithmetic had to be compiled first, and that failed.
        """
        limit = int(timeout_s * 1e9)
        report = _Report()
        self._load(call)  # not while busy: an abort must not wait for the compiler
        with self._busy:
            if self._closed:
                raise self._failure("has been closed")
            status = self._code.hearth_exchange(
                self._base, self.rank, call.array, len(call.operations), limit, ctypes.byref(report)
            )
            if status == 0:
                return
            if status != _ABORTED:
                self._code.hearth_segment_abort(self._base)  # the other ranks must not wait for this rank now
        if status == _TIMED_OUT:
            raise self._timed_out(call.operations[report.operation], report.missing, timeout_s)
        if status == _MISMATCH:
            raise self._mismatch(call.operations[report.operation], report)
        raise self._failure(
            "was aborted" if status == _ABORTED else "has a different size from the one that this rank expects"
        )

    def _load(self, call: ExchangeCall) -> None:
        """Loads the arithmetic of the call, compiled first if this machine has not used it before."""
        try:
            for operation, entry in zip(call.operations, call.array, strict=True):
                if operation.kind in REDUCING:
                    dtype = operation.dtype
                    if dtype not in self._reductions:
                        self._reductions[dtype] = libraries.reduction(dtype, self._maker)
                    entry.reduce = self._reductions[dtype].reduce
                    entry.scale = self._reductions[dtype].scale if operation.op == PREMUL_SUM else 0
        except BaseException:
            self.abort()  # the other ranks must not wait for this rank now
            raise

    def abort(self) -> None:
        """Makes running and later operations of this and every other rank fail. Any thread may call it."""
        with self._state:
            if not self._closed:
                self._code.hearth_segment_abort(self._base)

    def close(self) -> None:
        """Leaves the segment.

        A waiting call of this rank fails; the other ranks continue to wait for this rank, as ranks on GPUs do, and
        get the reason from the front.
        """
        if not self._busy.acquire(blocking=False):
            with self._state:
                if not self._closed:
                    self._code.hearth_segment_leave(self._base, self.rank)
            self._busy.acquire()
        try:
            with self._state:
                if self._closed:
                    return
                self._closed = True
                self._view = None
                self._memory.close()
        finally:
            self._busy.release()
        shared_segment.release(self._descriptor)

    def _timed_out(self, operation: CollectiveExchange, bits: Iterable[int], timeout_s: float) -> Refusal:
        missing_ranks = [64 * i + bit for i, word in enumerate(bits) for bit in range(64) if word >> bit & 1]
        missing = ", ".join(map(str, missing_ranks)) or "unknown"
        return Refusal(
            Reason.COLLECTIVE_TIMEOUT,
            f"{operation.kind} waited {timeout_s:g} s for rank {missing} of {self.ranks}.",
            fix="Check that every rank calls the collective; then rebuild the communicator without the lost rank.",
            details={"missing": missing, "timeout_s": timeout_s, "rank": self.rank, "ranks": self.ranks},
        )

    def _mismatch(self, operation: CollectiveExchange, report: _Report) -> Refusal:
        root, op = (report.root if KINDS[report.kind] in ROOTED else 0), OPS[report.op]
        reported = CollectiveExchange(KINDS[report.kind], 0, 0, report.count, DTYPES[report.dtype], op, root, self.rank)
        return Refusal(
            Reason.COLLECTIVE_MISMATCH,
            f"Rank {self.rank} called {_describe(operation)}, rank {report.rank} for {_describe(reported)}.",
            fix="Call the collective with the same kind, count, dtype, reduction and root on every rank.",
            details={
                "rank": self.rank,
                "odd_rank": report.rank,
                "mine": _describe(operation),
                "theirs": _describe(reported),
            },
        )

    def _failure(self, event: str) -> Refusal:
        return Refusal(
            Reason.COMMUNICATOR_FAILED,
            f"The communicator of rank {self.rank} {event}.",
            fix="Initialise it again.",
            details={"rank": self.rank, "ranks": self.ranks},
        )


def _operation(operation: CollectiveExchange) -> _Operation:
    """Returns the C structure of an operation.

    Fields that its kind does not use are 0, so that ranks need not agree on them.
    """
    kind = operation.kind
    return _Operation(
        operation.source,
        operation.destination,
        operation.count,
        0,  # this and the next one are set just before the operation runs
        0,
        int.from_bytes(operation.factor, "little"),
        _KIND[kind],
        _DTYPE[operation.dtype],
        _OP[operation.op] if kind in REDUCING else 0,
        operation.root if kind in ROOTED else 0,
        operation.peer if kind in PEERED else 0,
    )


def _describe(operation: CollectiveExchange) -> str:
    """Returns a description of the operation, such as `reduce of 7 float32 with sum to rank 2`."""
    words = [operation.kind]
    if operation.kind != "barrier":
        words += ["of", str(operation.count), operation.dtype]
    if operation.kind in REDUCING:
        words += ["with", operation.op or "no reduction"]
    if operation.kind in ROOTED:
        words += ["at rank", str(operation.root)]
    elif operation.kind in PEERED:
        words += ["to rank" if operation.kind == "send" else "from rank", str(operation.peer)]
    return " ".join(words)
