"""Conversion of CUDA's error codes to refusals and device faults.

Runtime and driver use the same numbers (cudaError and CUresult, CUDA 10.1 and newer), so one table serves both. The
codes in `FATAL` are those after which, according to the CUDA headers, the process must be terminated and relaunched,
and those that only a lost device gives: every later call would fail as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cupy_backends.cuda.api import driver as cu
from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.server import DeviceFault

CudaError: tuple[type[RuntimeError], ...] = (runtime.CUDARuntimeError, cu.CUDADriverError)
"""CuPy's exceptions for failed calls; both have the code as `status`."""

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NO_DEVICE = 100
INVALID_DEVICE = 101
NOT_FOUND = 500
NOT_READY = 600

FATAL: Mapping[int, str] = {
    4: "the CUDA driver is shutting down",
    46: "the device is unavailable, or in exclusive use by another process",
    214: "an uncorrectable ECC error",
    220: "an uncorrectable NVLink error",
    226: "an exception on the device was contained: an access to a peer's memory, or a hardware error",
    700: "a kernel used an illegal address",
    702: "a kernel ran longer than the device's own time limit",
    709: "the context is destroyed",
    710: "a kernel's assert() failed",
    714: "a hardware stack error: the call stack is corrupt or overflowed",
    715: "a kernel ran an illegal instruction",
    716: "a kernel used a misaligned address",
    717: "a kernel used an address outside the address space that the instruction allows",
    718: "a kernel's program counter left its code",
    719: "a kernel failed while it ran",
    721: "a kernel left tensor memory allocated",
    810: "the MPS server ended this client",
    911: "a device outside the GPU failed",
    999: "the driver reports an unknown error",
}


def status_of(error: Exception) -> int:
    """Returns the code of an error of CUDA; 0 if the exception has none."""
    return int(getattr(error, "status", 0))


def is_fatal(error: Exception) -> bool:
    """True if the device process cannot survive the error."""
    return status_of(error) in FATAL


def translate(
    error: RuntimeError,
    doing: str,
    reason: Reason = Reason.INTERNAL,
    *,
    fix: str = "",
    details: Mapping[str, object] | None = None,
) -> Exception:
    """Returns the exception for `error`, which CuPy raised while `doing` ("allocating 4096 bytes").

    The exception is a `DeviceFault` for a fatal code, otherwise a `Refusal`: `OUT_OF_MEMORY` if the device ran out of
    memory, else `reason`.
    """
    status = status_of(error)
    if status in FATAL:
        return DeviceFault(f"{doing}: {FATAL[status]} ({error}, CUDA error {status})")
    doing = doing[:1].upper() + doing[1:]
    all_details = {"cuda_error": str(error).partition(":")[0], "cuda_status": status, **(details or {})}
    if status == OUT_OF_MEMORY:
        return Refusal(
            Reason.OUT_OF_MEMORY,
            f"{doing} failed: the device is out of memory.",
            fix=fix or "free buffers or modules that are no longer needed, then try again",
            details=all_details,
        )
    return Refusal(reason, f"{doing} failed: {error} (CUDA error {status}).", fix=fix, details=all_details)


@contextmanager
def translated(
    doing: str, reason: Reason = Reason.INTERNAL, *, fix: str = "", details: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Raises the exception of `translate` in place of CuPy's.

    Work of every launch and copy calls `translate` instead: entering a context takes about a microsecond.
    """
    try:
        yield
    except CudaError as error:
        raise translate(error, doing, reason, fix=fix, details=details) from error


def raise_status(status: int, doing: str, reason: Reason = Reason.INTERNAL) -> None:
    """Raises the exception of `translate` for any status except success."""
    if status:
        with translated(doing, reason):
            runtime.check_status(status)


def checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the results of a function of `cuda.bindings` without its status.

    Raises CuPy's exceptions for an error status.
    """
    status = int(result[0])
    if status:
        cu.check_status(status)
    return result[1:]
