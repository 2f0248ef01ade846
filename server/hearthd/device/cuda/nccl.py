"""NCCL's communicators: one for each group of devices, with one rank in each device process."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import cupy
from cupy.cuda import nccl
from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cuda.errors import NOT_READY, CudaError, raise_status, translate
from hearthd.device.cuda.nccl_operations import (
    BYTES,
    DTYPES,
    Call,
    Operator,
    calls,
    check,
    describe,
    operators,
    reducible,
)
from hearthd.device.cuda.streams import Stream

_UNHANDLED_CUDA_ERROR = 1
_IN_PROGRESS = 7
_HOST_IMMEDIATE = 1
"""ncclScalarHostImmediate: NCCL reads the factor from host memory before the call that makes the operator returns."""
_CLOSE_SECONDS = 5.0

_CONNECT_SECONDS = 60.0
"""Timeout in seconds of the first exchange with every other rank on the device, which may be queued after other work
there."""
_CONNECT_CHECK_SECONDS = 0.001

_SCRATCH_BYTES = 512
_SENT, _RECEIVED = 128, 256
"""Offsets in the scratch memory of the bytes for connecting; those of barriers are at its beginning."""

_SETTINGS = {
    # NCCL connects ranks when a collective first needs the connection, inside the call: the device-handle thread would
    # then wait for a peer. With 0, the connections of collectives are made in `join`, on a helper thread.
    "NCCL_RUNTIME_CONNECT": "0",
    # Work of a large group reaches the kernels through a ring buffer, and the call waits for the device if the buffer
    # is full. 1,024 operations (hearthd.device.collectives.request) of about 100 bytes for each of 100 ranks fit 16
    # MiB.
    "NCCL_WORK_FIFO_BYTES": str(16 << 20),
    # NVLink multicast: programs that use it have put GPUs out of service that others share. The machine's owner may
    # enable it in the daemon's environment (1, or 2 to let NCCL decide); NCCL's own files of settings come second.
    "NCCL_NVLS_ENABLE": "0",
}
"""Environment variables that NCCL reads at its first use. Values from the daemon's environment have precedence."""

_FAILURES: tuple[type[Exception], ...] = (nccl.NcclError, KeyError) if nccl.available else (KeyError,)
"""CuPy's exceptions for failures of NCCL; KeyError means a code for which CuPy has no text."""

_REFUSED: tuple[type[Exception], ...] = (*_FAILURES, ValueError, TypeError, AssertionError)
"""`_FAILURES`, and the exceptions for an invalid id."""


class NcclCommunicator:
    """Communicator of one rank.

    After `abort` has begun, no other call may use the communicator, because NCCL frees it.
    """

    def __init__(self, communicator: Any, device: int, rank: int, ranks: int, scratch: int) -> None:
        self._communicator = communicator
        self._device = device
        self._rank = rank
        self._ranks = ranks
        self._scratch = scratch
        self._failure = ""
        self._lock = threading.Lock()
        self.aborted = False
        """True once `abort` has begun; the communicator must not be used any more."""

    @property
    def can_stop(self) -> bool:
        return _revoke_function() is not None

    def enqueue(self, operations: Sequence[CollectiveExchange], stream: Stream) -> None:
        failure = self._failure
        if failure:
            raise self._refusal(describe(operations), failure)
        try:
            with self._temporary_operators(operators(operations)) as operator_numbers:
                # All calls are prepared first: an error in between would leave the peers with an incomplete group.
                prepared = calls(operations, self._rank, self._ranks, self._scratch, operator_numbers)
                issue(self._communicator, prepared, stream.pointer)
        except _FAILURES as error:
            if _status(error) == _UNHANDLED_CUDA_ERROR:
                _raise_fault(stream.pointer, describe(operations))
            self._failure = self._failure or _error_text(error)
            raise self._refusal(describe(operations), _error_text(error)) from error

    @contextmanager
    def _temporary_operators(self, required: set[Operator]) -> Iterator[Mapping[Operator, int]]:
        """Makes NCCL operators for premultiplied sums, and destroys them at the end of the block.

        NCCL allows that as soon as the calls that use them have returned, while the operations run. Raises CuPy's
        exception if NCCL refuses an operator.
        """
        numbers: dict[Operator, int] = {}
        if not required:
            yield numbers
            return
        create, destroy = _operator_functions()
        communicator = self._communicator.comm
        try:
            for dtype, factor in sorted(required):
                number = ctypes.c_int()
                status = create(ctypes.byref(number), factor, DTYPES[dtype], _HOST_IMMEDIATE, communicator)
                if status:
                    raise nccl.NcclError(status)
                numbers[dtype, factor] = number.value
            yield numbers
        finally:
            for operator_number in numbers.values():
                destroy(operator_number, communicator)

    def failure_reason(self) -> str:
        with self._lock:  # so that `abort` does not free the communicator during the query
            if not self._failure:
                try:
                    self._communicator.check_async_error()
                except _FAILURES as error:
                    if _status(error) != _IN_PROGRESS:
                        self._failure = _error_text(error)
            return self._failure

    def stop(self) -> None:
        """Calls ncclCommRevoke: running kernels of the communicator end, and no more can be enqueued.

        Returns when all have ended.
        """
        revoke = _revoke_function()
        assert revoke is not None
        with self._lock:
            if self.aborted:
                return
            self._failure = self._failure or "the communicator was stopped"
        runtime.setDevice(self._device)
        status = revoke(self._communicator.comm, 0)
        if status:
            raise RuntimeError(f"ncclCommRevoke: NCCL error {status}")

    def abort(self) -> None:
        with self._lock:
            if self.aborted:
                return
            self.aborted = True
            self._failure = self._failure or "the communicator was aborted"
        with suppress(*CudaError):  # if the device is lost, the communicator is lost, too
            runtime.setDevice(self._device)
            self._communicator.abort()

    def connect(self) -> None:
        """Exchanges a byte with every other rank, and waits until all have done so.

        Called on a helper thread by every rank, before anything else is enqueued.

        NCCL connects two ranks at the first send between them, inside the call, with messages between the two.
        Connecting here ensures that no call on the device-handle thread waits for a peer. Sends of all sizes use the
        same connection as this byte. Raises CuPy's exceptions, Refusal(COMMUNICATOR_FAILED).
        """
        exchanges: list[Call] = []
        for peer in range(self._ranks):
            if peer != self._rank:
                exchanges.append(("send", (self._scratch + _SENT, 1, BYTES, peer)))
                exchanges.append(("recv", (self._scratch + _RECEIVED, 1, BYTES, peer)))
        if not exchanges:
            return
        stream = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
        try:
            issue(self._communicator, exchanges, stream)
            self._wait(stream)
        finally:
            runtime.streamDestroy(stream)

    def _wait(self, stream: int) -> None:
        """Polls the stream until its work is done, because CUDA's own wait would never end if a peer is gone."""
        deadline = time.monotonic() + _CONNECT_SECONDS
        while (status := runtime.streamQuery(stream)) == NOT_READY:
            failure = self.failure_reason()
            if failure or time.monotonic() > deadline:
                raise self._refusal("connecting", failure or f"not all ranks arrived within {_CONNECT_SECONDS:g} s")
            time.sleep(_CONNECT_CHECK_SECONDS)
        raise_status(status, "connecting the ranks of a group", Reason.COMMUNICATOR_FAILED)

    def _refusal(self, doing: str, reason: str) -> Refusal:
        return Refusal(
            Reason.COMMUNICATOR_FAILED,
            f"{doing} on rank {self._rank} of {self._ranks} failed: {reason}.",
            fix="abort the communicator on every rank, then make a new one",
            details={"rank": self._rank, "ranks": self._ranks, "nccl_error": reason},
        )


class NcclCommunicators:
    """Factory of NCCL communicators.

    `join` and `unique_id` run on helper threads, all other methods on the device-handle thread.
    """

    def __init__(self, device: int, capability: tuple[int, int]) -> None:
        """Sets NCCL's environment variables.

        Makes no NCCL call that would allocate on the device, because most processes never have a group.
        """
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        self._device = device
        self._reducible = reducible(nccl.get_version(), capability) if nccl.available else ()
        self._lock = threading.Lock()
        self._joined: list[NcclCommunicator] = []
        self._scratch = 0

    @property
    def available(self) -> bool:
        """True if CuPy has loaded NCCL."""
        return bool(nccl.available)

    def check(self, kind: str, dtype: str, op: str) -> None:
        self._require_nccl()
        check(kind, dtype, op, self._reducible)

    def unique_id(self, ranks: int) -> bytes:
        self._require_nccl()
        try:
            unique = nccl.get_unique_id()
        except _FAILURES as error:
            raise Refusal(Reason.COMMUNICATOR_FAILED, f"NCCL gives no unique id: {_error_text(error)}.") from error
        # CuPy 13 has a tuple of signed numbers, CuPy 14 bytes.
        return unique if isinstance(unique, bytes) else bytes(number & 0xFF for number in unique)

    def forget(self, unique_id: bytes) -> None:
        """Does nothing, because NCCL keeps no state for an id."""

    def join(self, unique_id: bytes, rank: int, ranks: int) -> NcclCommunicator:
        """Joins a communicator.

        Returns when all ranks have joined and are connected pairwise; NCCL provides no way to cancel the wait for the
        other ranks.
        """
        self._require_nccl()
        identity: object = unique_id
        if int(cupy.__version__.partition(".")[0]) < 14:
            identity = tuple(number - 256 if number > 127 else number for number in unique_id)
        try:
            runtime.setDevice(self._device)
            scratch = self._scratch_memory()
            communicator = nccl.NcclCommunicator(ranks, identity, rank)
            joined = NcclCommunicator(communicator, self._device, rank, ranks, scratch)
            self._connect(joined)
        except _REFUSED as error:
            raise Refusal(
                Reason.COMMUNICATOR_FAILED,
                f"Joining as rank {rank} of {ranks} failed: {_error_text(error)}.",
                fix="check that every rank has the same unique id and a distinct number, and can reach the others; "
                "set NCCL_DEBUG=WARN in the daemon's environment for details",
                details={"rank": rank, "ranks": ranks},
            ) from error
        except CudaError as error:
            raise translate(error, f"joining as rank {rank} of {ranks}", Reason.COMMUNICATOR_FAILED) from error
        with self._lock:
            # Kept for `close`: CuPy destroys an unreferenced object with ncclCommDestroy, which may wait for peers.
            self._joined = [member for member in self._joined if not member.aborted]
            self._joined.append(joined)
        return joined

    @staticmethod
    def _connect(joined: NcclCommunicator) -> None:
        try:
            joined.connect()
        except BaseException:
            joined.abort()  # otherwise garbage collection of the object would call ncclCommDestroy
            raise

    def _scratch_memory(self) -> int:
        """Returns the memory for barriers and for connecting, whose contents are never read.

        One block serves all communicators of the process. It is never freed, because that would wait for the device.
        """
        with self._lock:
            if not self._scratch:
                self._scratch = runtime.malloc(_SCRATCH_BYTES)
            return self._scratch

    def close(self) -> None:
        """Aborts the remaining communicators; waits at most 5 seconds. Never raises."""
        with self._lock:
            joined, self._joined = self._joined, []
        threads = [
            threading.Thread(target=communicator.abort, name="nccl-abort", daemon=True) for communicator in joined
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _require_nccl(self) -> None:
        if not nccl.available:
            raise Refusal(
                Reason.UNSUPPORTED,
                "This daemon has no NCCL, which collectives need.",
                fix="install nvidia-nccl-cu12 or nvidia-nccl-cu13 in the daemon's environment",
            )


def issue(communicator: Any, prepared: Sequence[Call], stream: int) -> None:
    """Makes the calls, as one group if there is more than one.

    Raises CuPy's exception for the first call that failed. Always calls ncclGroupEnd, because the thread's next calls
    would otherwise belong to the group.
    """
    if len(prepared) == 1:
        ((name, arguments),) = prepared
        getattr(communicator, name)(*arguments, stream)
        return
    if not prepared:
        return
    nccl.groupStart()
    try:
        for name, arguments in prepared:
            getattr(communicator, name)(*arguments, stream)
    except BaseException:
        with suppress(*_FAILURES):
            nccl.groupEnd()  # NCCL has recorded the failed call, and launches none
        raise
    nccl.groupEnd()


def _status(error: Exception) -> int:
    status: int = error.args[0] if isinstance(error, KeyError) else getattr(error, "status", 0)
    return status


def _error_text(error: Exception) -> str:
    return f"NCCL error {error.args[0]}" if isinstance(error, KeyError) else str(error)


def _raise_fault(stream: int, doing: str) -> None:
    """Raises the sticky CUDA error of the stream, if there is one: NCCL reports only that CUDA failed."""
    status: int = runtime.streamQuery(stream)
    if status not in (0, NOT_READY):
        raise_status(status, f"running {doing}", Reason.COMMUNICATOR_FAILED)


@functools.cache
def _revoke_function() -> Callable[[int, int], int] | None:
    """Returns ncclCommRevoke of the library that CuPy has loaded, because CuPy does not bind it.

    Returns None before NCCL 2.28.7.
    """
    try:
        function = ctypes.CDLL("libnccl.so.2", os.RTLD_NOLOAD | os.RTLD_NOW).ncclCommRevoke
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_int)
    function.restype = ctypes.c_int
    return function


@functools.cache
def _operator_functions() -> tuple[Callable[..., int], Callable[..., int]]:
    """Returns ncclRedOpCreatePreMulSum and ncclRedOpDestroy of the library that CuPy has loaded.

    CuPy does not bind them. Every NCCL from 2.11 on has them.
    """
    library = ctypes.CDLL("libnccl.so.2", os.RTLD_NOLOAD | os.RTLD_NOW)
    create, destroy = library.ncclRedOpCreatePreMulSum, library.ncclRedOpDestroy
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    create.argtypes = (ctypes.POINTER(integer), ctypes.c_char_p, integer, integer, pointer)
    destroy.argtypes = (integer, pointer)
    return create, destroy
