"""The memory that the ranks of one communicator share, on one machine.

It is an anonymous file, which its creator passes to processes that know the nonce of its descriptor. It has no name,
and disappears with the processes.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import threading
from pathlib import Path

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu import libraries
from hearthd.device.cpu.libraries import LibraryMaker
from hearthd.device.platform.segment_exchange import hand_over
from hearthd.shared import sealed_memory

MAX_RANKS = 128

_NONCE_BYTES = 16
_OTHER_BUILD = 1


_created: dict[bytes, int] = {}
"""File descriptors of segments that this process created, by the segment's descriptor text."""
_created_lock = threading.Lock()


def library(maker: LibraryMaker) -> ctypes.CDLL:
    """Loads the library of groups, with the signatures of the functions that this module and `shared_exchange` call.

    Calls release the GIL.
    """
    code = libraries.load("exchange", maker)
    code.hearth_segment_bytes.restype = ctypes.c_uint64
    code.hearth_segment_bytes.argtypes = [ctypes.c_uint]
    code.hearth_segment_init.restype = None
    code.hearth_segment_init.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_char_p]
    code.hearth_segment_differs.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_char_p]
    code.hearth_segment_abort.restype = None
    code.hearth_segment_abort.argtypes = [ctypes.c_void_p]
    code.hearth_segment_leave.restype = None
    code.hearth_segment_leave.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    code.hearth_exchange.argtypes = [
        ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip
    return code


def create(ranks: int, maker: LibraryMaker) -> bytes:
    """Creates a segment for `ranks` ranks.

    Returns a descriptor for `attach`, in this process or any other process of the user.

    This process must keep the segment until all ranks have attached, and then call `release`. Raises `Refusal`
    (INVALID_ARGUMENT) for an impossible number of ranks.
    """
    if not 1 <= ranks <= MAX_RANKS:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{ranks} ranks were requested; a communicator has 1 to {MAX_RANKS}.",
            details={"ranks": ranks, "max_ranks": MAX_RANKS},
        )
    code = library(maker)
    size = int(code.hearth_segment_bytes(ranks))
    nonce = secrets.token_bytes(_NONCE_BYTES)
    fd = sealed_memory.make("hearth-exchange", size)
    try:
        with mmap.mmap(fd, size) as memory:
            view = ctypes.c_char.from_buffer(memory)
            code.hearth_segment_init(ctypes.addressof(view), ranks, nonce)
            del view
        hand_over().keep(nonce, fd)
    except OSError as error:
        os.close(fd)
        raise Refusal(
            Reason.COMMUNICATOR_FAILED,
            f"The shared segment cannot be handed to other ranks: {error}.",
            fix="Try again; see the daemon's log, and its limit of open files.",
        ) from None
    except BaseException:
        os.close(fd)
        raise
    descriptor = f"{_machine()}:{os.getpid()}:{fd}:{nonce.hex()}".encode()
    with _created_lock:
        _created[descriptor] = fd
    return descriptor


def release(descriptor: bytes) -> None:
    """Drops the descriptor in the process that created it; ranks that have attached are not affected."""
    with _created_lock:
        fd = _created.pop(descriptor, None)
    # not in a forked process, where the file descriptor may be a different file
    if fd is not None and _parse(descriptor)[1] == os.getpid():
        hand_over().drop(_parse(descriptor)[3])
        os.close(fd)


def attach(descriptor: bytes, ranks: int, maker: LibraryMaker) -> mmap.mmap:
    """Maps the segment.

    Raises `Refusal`: UNSUPPORTED on another machine; COMMUNICATOR_FAILED if the segment is gone or does not match the
    descriptor; INVALID_ARGUMENT for an invalid descriptor.
    """
    code = library(maker)
    machine, pid, _, nonce = _parse(descriptor)
    if machine != _machine():
        raise Refusal(
            Reason.UNSUPPORTED,
            "Groups of the CPU backend are limited to one machine; this rank is on another machine than the group, "
            "or in a container with a separate process namespace.",
            fix="Use CPU devices of one machine; a group over several machines needs GPUs.",
            details={"requested": machine, "allowed": _machine()},
        )
    try:
        fd = hand_over().fetch(nonce)
    except OSError as error:
        raise Refusal(
            Reason.COMMUNICATOR_FAILED,
            f"The shared segment of process {pid} cannot be opened: {error.strerror}.",
            fix="Initialise the communicator again: the process that made it may have ended. Daemons whose devices "
            "form a group run as one user.",
            details={"errno": error.errno or 0},
        ) from None
    try:
        return _map(code, fd, ranks, nonce)
    finally:
        os.close(fd)


def _map(code: ctypes.CDLL, fd: int, ranks: int, nonce: bytes) -> mmap.mmap:
    expected = int(code.hearth_segment_bytes(ranks))
    actual = os.fstat(fd).st_size
    if actual != expected:
        raise Refusal(
            Reason.COMMUNICATOR_FAILED,
            f"The shared segment has {actual} bytes; {ranks} ranks need {expected}.",
            details={"ranks": ranks},
        )
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & sealed_memory.SEALS == sealed_memory.SEALS
    except OSError:
        sealed = False
    memory = mmap.mmap(fd, expected) if sealed else None
    differs = -1
    if memory is not None:
        view = ctypes.c_char.from_buffer(memory)
        differs = code.hearth_segment_differs(ctypes.addressof(view), ranks, nonce)
        del view
        if not differs:
            return memory
        memory.close()
    if differs == _OTHER_BUILD:
        raise Refusal(
            Reason.COMMUNICATOR_FAILED,
            "The shared segment was made by another build of the CPU backend.",
            fix="Run the same version, with the same C++ compiler, in all daemons whose devices form a group.",
        )
    raise Refusal(
        Reason.COMMUNICATOR_FAILED,
        "The shared segment is gone; another file has taken its place.",
        fix="Initialise the communicator again: the process that made it may have ended.",
    )


def _parse(descriptor: bytes) -> tuple[str, int, int, bytes]:
    """Splits a descriptor into (machine, process ID, file descriptor, nonce). Raises `Refusal` (INVALID_ARGUMENT)."""
    machine, _, process = descriptor.decode(errors="replace").partition(":")
    fields = process.split(":")
    if len(fields) == 3 and fields[0].isdecimal() and fields[1].isdecimal():
        try:
            nonce = bytes.fromhex(fields[2])
        except ValueError:
            nonce = b""
        if len(nonce) == _NONCE_BYTES:
            return machine, int(fields[0]), int(fields[1]), nonce
    raise Refusal(Reason.INVALID_ARGUMENT, f"{descriptor!r} describes no shared segment.")


def _machine() -> str:
    """Returns the scope in which process IDs are valid: this boot of this machine, and the PID namespace.

    Raises `Refusal`.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError as error:
        raise Refusal(
            Reason.UNSUPPORTED,
            f"The CPU backend's groups need /proc, which identifies the machine: {error}.",
        ) from None
