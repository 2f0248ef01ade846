"""Crash record: a small memory in which a device process of the CPU backend records the state of its kernels.

The front creates it and reads it after a crash; the runtime writes it (`device/cpu/runtime/record.h` has the same
layout).

Shared code: the front imports nothing of `device/`, and `device/` nothing of `front/`. The record is written by a
process that runs code of any tenant, so its contents are not trusted.
"""

from __future__ import annotations

import os
import signal
import struct
from dataclasses import dataclass

from hearthd.shared import sealed_memory

FILE = "crash_record"
"""Kind of the message that passes the record to a device process."""

SLOTS = 512
"""Limit of threads that launch kernels, each with a separate slot; further threads are not recorded."""

_HEAD = struct.Struct("=IiiIQIiIIIII")
"""State, signal, si_code, slot, address, 1 if there is an address, sender, block (x, y, z), slot of the message,
unused."""
_HEAD_BYTES = 512
_MESSAGE_BYTES = 448
_SLOT = struct.Struct("=II56s192s")
"""A slot: 1 if it is in use, 1 if a kernel runs, the session's id, the kernel's name."""

SIZE = _HEAD_BYTES + SLOTS * _SLOT.size

_WRITTEN = 2


@dataclass(frozen=True)
class RunningKernel:
    """A kernel that had started and not ended."""

    kernel: str
    session: str
    """Id of the session; empty: unknown."""


@dataclass(frozen=True)
class Crash:
    """The signal that a process caused itself, or that was sent to it."""

    signal: int
    culprit: RunningKernel | None
    """The kernel that caused the signal; None: no kernel caused it."""
    address: int | None = None
    """Address of the fault; None if the signal or the processor does not report it."""
    block: tuple[int, int, int] = (0, 0, 0)
    """Block of the grid that faulted."""
    message: str = ""
    """Message of the kernel: a failed assertion, a trap."""
    sender: int = 0
    """ID of the process that sent the signal; 0 if no process sent it."""


@dataclass(frozen=True)
class CrashRecord:
    """Last recorded state of the process."""

    running: tuple[RunningKernel, ...] = ()
    crash: Crash | None = None
    """The crash; None if the process ended without a signal, or in a way that it could not record."""


def make() -> int:
    """Returns an open file of `SIZE` bytes that no process can shorten. Raises OSError."""
    return sealed_memory.make("hearth-crash-record", SIZE)


def read(file: int) -> CrashRecord:
    """Reads the record. Raises OSError if the file cannot be read; never raises because of its contents."""
    return parse(os.pread(file, SIZE, 0))


def parse(data: bytes) -> CrashRecord:
    """Decodes a record from any bytes; fewer than `SIZE` bytes give an empty record."""
    if len(data) < SIZE:
        return CrashRecord()
    slots = [_slot(data, number) for number in range(SLOTS)]
    return CrashRecord(tuple(dict.fromkeys(slot for slot in slots if slot is not None)), _crash(data, slots))


def _slot(data: bytes, number: int) -> RunningKernel | None:
    is_used, is_running, session, kernel = _SLOT.unpack_from(data, _HEAD_BYTES + number * _SLOT.size)
    return RunningKernel(_text(kernel), _text(session)) if is_used and is_running else None


def _crash(data: bytes, slots: list[RunningKernel | None]) -> Crash | None:
    state, number, code, slot, address, has_address, sender, x, y, z, message_slot, _ = _HEAD.unpack_from(data)
    if state != _WRITTEN or number not in signal.valid_signals():
        return None
    culprit = slots[slot - 1] if 0 < slot <= SLOTS else None
    message = data[_HEAD.size : _HEAD.size + _MESSAGE_BYTES] if culprit is not None and message_slot == slot else b""
    return Crash(
        signal=number,
        culprit=culprit,
        address=address if has_address and code > 0 else None,
        block=(x, y, z),
        message=_text(message),
        sender=max(sender, 0),
    )


def _text(raw: bytes) -> str:
    """Returns the text up to the first zero byte, with non-printable characters replaced."""
    text = raw.partition(b"\0")[0].decode(errors="replace")
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
