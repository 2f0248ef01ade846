"""All-reduce between the device processes of one node, through one shared memory segment.

The segment is an anonymous file that peers open through `/proc/<pid>/fd/<fd>`: it has no name, and it is gone when
the processes are.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.module import load_runtime
from hearthd.device.cpu.toolchain import Toolchain

DTYPES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
OPS = ("sum", "mean", "min", "max", "prod")
MAX_RANKS = 128

_TIMED_OUT, _ABORTED, _MISMATCH = 1, 2, 3


def _library(toolchain: Toolchain | None) -> ctypes.CDLL:
    library = load_runtime(toolchain)
    library.hearth_reduce_bytes.restype = ctypes.c_uint64
    library.hearth_reduce_missing.restype = ctypes.c_uint64
    library.hearth_reduce_missing.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    library.hearth_reduce_init.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    library.hearth_reduce_ranks.argtypes = [ctypes.c_void_p]
    library.hearth_reduce_abort.argtypes = [ctypes.c_void_p]
    library.hearth_all_reduce.argtypes = [
        ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint,
        ctypes.c_uint, ctypes.c_int64,
    ]  # fmt: skip
    return library


class SharedReduce:
    """One rank's end of a segment. `create` once, `attach` in every rank."""

    _created: dict[bytes, int] = {}  # noqa: RUF012 - descriptors of segments that this process made
    _created_lock = threading.Lock()

    def __init__(self, library: ctypes.CDLL, memory: mmap.mmap, rank: int, ranks: int, descriptor: bytes) -> None:
        self.rank = rank
        self.ranks = ranks
        self._library = library
        self._memory = memory
        self._view: ctypes.c_char | None = ctypes.c_char.from_buffer(memory)
        self._base = ctypes.addressof(self._view)
        self._descriptor = descriptor
        self._busy = threading.Lock()  # held while the segment is read and written
        self._state = threading.Lock()  # guards closing against abort()
        self._closed = False

    @classmethod
    def create(cls, ranks: int, toolchain: Toolchain | None = None) -> bytes:
        """Make a segment for `ranks` ranks; the descriptor is for `attach`, in this process or any other of the user.

        The segment must be kept by this process until all ranks have attached: until `release`, or `close` of the
        rank that attached here.
        """
        if not 1 <= ranks <= MAX_RANKS:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"{ranks} ranks were asked for; a communicator has 1 to {MAX_RANKS}.",
                details={"ranks": ranks, "max_ranks": MAX_RANKS},
            )
        library = _library(toolchain)
        size = int(library.hearth_reduce_bytes(ranks))
        fd = os.memfd_create("hearth-reduce", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            with mmap.mmap(fd, size) as memory:
                view = ctypes.c_char.from_buffer(memory)
                library.hearth_reduce_init(ctypes.addressof(view), ranks)
                del view
        except BaseException:
            os.close(fd)
            raise
        descriptor = f"{os.getpid()}:{fd}".encode()
        with cls._created_lock:
            cls._created[descriptor] = fd
        return descriptor

    @classmethod
    def release(cls, descriptor: bytes) -> None:
        """Give up the descriptor in the process that created it; ranks that have attached are not affected."""
        with cls._created_lock:
            fd = cls._created.pop(descriptor, None)
        if fd is not None and descriptor.startswith(f"{os.getpid()}:".encode()):
            os.close(fd)

    @classmethod
    def attach(cls, descriptor: bytes, rank: int, ranks: int, toolchain: Toolchain | None = None) -> SharedReduce:
        """Join the segment as `rank` of `ranks`; raises `Refusal` (COMMUNICATOR_FAILED) where it is gone or another."""
        library = _library(toolchain)
        if not 0 <= rank < ranks:
            raise Refusal(Reason.INVALID_ARGUMENT, f"Rank {rank} of {ranks} ranks was asked for.")
        pid, _, number = descriptor.decode(errors="replace").partition(":")
        if not (pid.isdecimal() and number.isdecimal()):
            raise Refusal(Reason.INVALID_ARGUMENT, f"{descriptor!r} describes no shared segment.")
        try:
            fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise Refusal(
                Reason.COMMUNICATOR_FAILED,
                f"The shared segment of process {pid} cannot be opened: {error.strerror}.",
                fix="Initialise the communicator again: the process that made it may have ended.",
            ) from None
        try:
            expected = int(library.hearth_reduce_bytes(ranks))
            actual = os.fstat(fd).st_size
            if actual != expected:
                raise Refusal(
                    Reason.COMMUNICATOR_FAILED,
                    f"The shared segment has {actual} bytes; {ranks} ranks need {expected}.",
                    details={"ranks": ranks},
                )
            memory = mmap.mmap(fd, expected)
        finally:
            os.close(fd)
        return cls(library, memory, rank, ranks, descriptor)

    def all_reduce(
        self, src_addr: int, dst_addr: int, count: int, dtype: str, op: str, timeout_s: float | None = None
    ) -> None:
        """Combine `count` elements at `src_addr` of all ranks into `dst_addr` of each; both may be the same.

        Ranks are combined in rank order, so all get the same bits; float16 and bfloat16 are summed in float32,
        integers wrap, an integer mean is cut towards zero. Blocks until every rank has taken part. Raises `Refusal`:
        COLLECTIVE_TIMEOUT when a rank does not come within `timeout_s` seconds (naming the missing ranks), and the
        communicator is then aborted for all; COLLECTIVE_MISMATCH when ranks ask for different things;
        COMMUNICATOR_FAILED when it has been aborted.
        """
        if dtype not in DTYPES or op not in OPS or count < 0:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"all_reduce of {count} elements of {dtype} with {op} was asked for.",
                fix=f"Types: {', '.join(DTYPES)}. Operations: {', '.join(OPS)}.",
                details={"dtype": dtype, "op": op, "count": count},
            )
        limit = -1 if timeout_s is None or math.isinf(timeout_s) else max(0, int(timeout_s * 1e9))
        with self._busy:
            if self._closed:
                raise self._failed("has been closed")
            status = self._library.hearth_all_reduce(
                self._base, self.rank, src_addr, dst_addr, count, DTYPES.index(dtype), OPS.index(op), limit
            )
            if status == 0:
                return
            bits = int(self._library.hearth_reduce_missing(self._base, self.rank))
            if status in (_TIMED_OUT, _MISMATCH):
                self._library.hearth_reduce_abort(self._base)  # the others must not wait for this rank now
        if status == _TIMED_OUT:
            missing = ", ".join(str(rank) for rank in range(min(self.ranks, 64)) if bits >> rank & 1) or "unknown"
            raise Refusal(
                Reason.COLLECTIVE_TIMEOUT,
                f"all_reduce waited {timeout_s:g} s for rank {missing} of {self.ranks}.",
                fix="Check that every rank calls the collective; then rebuild the communicator without the lost rank.",
                details={"missing": missing, "timeout_s": timeout_s, "rank": self.rank, "ranks": self.ranks},
            )
        if status == _MISMATCH:
            raise Refusal(
                Reason.COLLECTIVE_MISMATCH,
                f"Rank {self.rank} asked for all_reduce of {count} {dtype} with {op}; another rank asked for another.",
                fix="Call the collective with the same count, dtype and op on every rank.",
                details={"count": count, "dtype": dtype, "op": op, "rank": self.rank},
            )
        raise self._failed("was aborted")

    def abort(self) -> None:
        """Make this and every other rank's all_reduce fail, those that wait now and all later ones. Any thread may."""
        with self._state:
            if not self._closed:
                self._library.hearth_reduce_abort(self._base)

    def close(self) -> None:
        """Leave the segment. An all_reduce of this rank that still waits is aborted, and with it the communicator."""
        if not self._busy.acquire(blocking=False):
            self.abort()
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
        self.release(self._descriptor)

    def _failed(self, why: str) -> Refusal:
        return Refusal(
            Reason.COMMUNICATOR_FAILED,
            f"The communicator of rank {self.rank} {why}.",
            fix="Initialise it again.",
            details={"rank": self.rank, "ranks": self.ranks},
        )
