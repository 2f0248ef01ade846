"""Collectives by NCCL: one communicator per group of devices, one rank per device process."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import cupy
from cupy.cuda import nccl
from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cuda.errors import CudaError, raise_status, translate
from hearthd.device.cuda.streams import Stream
from hearthd.device.server import Exchange

# nccl.h: ncclDataType_t and ncclRedOp_t
_DTYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}
_UNHANDLED_CUDA_ERROR = 1
_IN_PROGRESS = 7
_CLOSE_SECONDS = 5.0


class NcclCommunicator:
    """One rank. Once `abort` is under way nothing else touches the communicator: NCCL frees it there."""

    def __init__(self, communicator: Any, device: int, rank: int, ranks: int) -> None:
        self._communicator = communicator
        self._device = device
        self._rank = rank
        self._ranks = ranks
        self._failure = ""
        self._lock = threading.Lock()
        self._aborted = False

    def enqueue(self, operations: Sequence[Exchange], stream: Stream) -> None:
        for each in operations:
            self._all_reduce(each.source, each.destination, each.count, each.dtype, each.op, stream)

    def _all_reduce(self, source: int, destination: int, count: int, dtype: str, op: str, stream: Stream) -> None:
        check(dtype, op)
        failure = self._failure
        if failure:
            raise self._refusal("all_reduce", failure)
        try:
            self._communicator.allReduce(source, destination, count, _DTYPES[dtype], _OPS[op], stream.pointer)
        except nccl.NcclError as error:
            if error.status == _UNHANDLED_CUDA_ERROR:
                self._raise_fault(stream)
            self._failure = self._failure or str(error)
            raise self._refusal("all_reduce", str(error)) from error

    def failed(self) -> str:
        with self._lock:  # so that `abort` does not free the communicator while it is asked
            if not self._failure:
                try:
                    self._communicator.check_async_error()
                except nccl.NcclError as error:
                    if error.status != _IN_PROGRESS:
                        self._failure = str(error)
                except KeyError:  # CuPy has no text for "in progress"
                    pass
            return self._failure

    def abort(self) -> None:
        with self._lock:
            if self._aborted:
                return
            self._aborted = True
            self._failure = self._failure or "the communicator was aborted"
        try:
            runtime.setDevice(self._device)
            self._communicator.abort()
        except CudaError:  # the device is lost; so is the communicator
            pass

    def _raise_fault(self, stream: Stream) -> None:
        """NCCL only says that CUDA failed; a sticky error shows on the stream."""
        status: int = runtime.streamQuery(stream.pointer)
        if status not in (0, 600):
            raise_status(status, "running all_reduce", Reason.COMMUNICATOR_FAILED)

    def _refusal(self, doing: str, why: str) -> Refusal:
        return Refusal(
            Reason.COMMUNICATOR_FAILED,
            f"{doing} on rank {self._rank} of {self._ranks} failed: {why}.",
            fix="abort the communicator on every rank, then make a new one",
            details={"rank": self._rank, "ranks": self._ranks, "nccl_error": why},
        )


class NcclCommunicators:
    """`join` and `unique_id` run on helper threads, everything else on the device-handle thread."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._joined: list[NcclCommunicator] = []
        # NCCL connects ranks when a collective first needs it, inside the call: that would make the device-handle
        # thread wait for a peer. Connected in `join`, on a helper thread, it never does. What is set stays.
        os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")

    @property
    def available(self) -> bool:
        return bool(nccl.available)

    def check(self, kind: str, dtype: str, op: str) -> None:
        self._require()
        check(dtype, op)

    def unique_id(self, ranks: int) -> bytes:
        self._require()
        try:
            unique = nccl.get_unique_id()
        except nccl.NcclError as error:
            raise Refusal(Reason.COMMUNICATOR_FAILED, f"NCCL gives no unique id: {error}.") from error
        # CuPy 13 has a tuple of signed numbers, CuPy 14 bytes.
        return unique if isinstance(unique, bytes) else bytes(number & 0xFF for number in unique)

    def forget(self, unique_id: bytes) -> None:
        """NCCL has nothing to give back."""

    def join(self, unique_id: bytes, rank: int, ranks: int) -> NcclCommunicator:
        """Returns when all ranks have joined; NCCL gives no way to end the wait from outside."""
        self._require()
        identity: object = unique_id
        if int(cupy.__version__.partition(".")[0]) < 14:
            identity = tuple(number - 256 if number > 127 else number for number in unique_id)
        try:
            runtime.setDevice(self._device)
            communicator = nccl.NcclCommunicator(ranks, identity, rank)
        except (nccl.NcclError, ValueError, TypeError, AssertionError) as error:
            raise Refusal(
                Reason.COMMUNICATOR_FAILED,
                f"Joining as rank {rank} of {ranks} failed: {error}.",
                fix="check that every rank has the same unique id, a rank of its own, and can reach the others; "
                "NCCL_DEBUG=WARN in the daemon's environment says more",
                details={"rank": rank, "ranks": ranks},
            ) from error
        except CudaError as error:
            raise translate(error, f"joining as rank {rank} of {ranks}", Reason.COMMUNICATOR_FAILED) from error
        joined = NcclCommunicator(communicator, self._device, rank, ranks)
        with self._lock:
            # Kept for `close`: CuPy ends an object that nobody has with ncclCommDestroy, which may wait for peers.
            self._joined = [each for each in self._joined if not each._aborted]
            self._joined.append(joined)
        return joined

    def close(self) -> None:
        """Aborts what is left, for at most a few seconds. Never raises."""
        with self._lock:
            joined, self._joined = self._joined, []
        threads = [threading.Thread(target=each.abort, name="nccl-abort", daemon=True) for each in joined]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_CLOSE_SECONDS)

    def _require(self) -> None:
        if not nccl.available:
            raise Refusal(
                Reason.UNSUPPORTED,
                "This daemon has no NCCL, which collectives need.",
                fix="install nvidia-nccl-cu12 or nvidia-nccl-cu13 beside the daemon",
            )


def check(dtype: str, op: str) -> None:
    """Raises Refusal(UNSUPPORTED) that names what NCCL can reduce."""
    if dtype not in _DTYPES:
        raise Refusal(
            Reason.UNSUPPORTED,
            f"NCCL cannot reduce {dtype or 'an unnamed dtype'}; it can {', '.join(_DTYPES)}.",
            fix="convert to one of these before the collective",
            details={"requested": dtype, "allowed": ", ".join(_DTYPES)},
        )
    if op not in _OPS:
        raise Refusal(
            Reason.UNSUPPORTED,
            f"NCCL has no reduction {op!r}; it has {', '.join(_OPS)}.",
            fix="use one of these",
            details={"requested": op, "allowed": ", ".join(_OPS)},
        )
