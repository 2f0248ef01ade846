"""A small memory in which a device process of the CPU backend keeps what its kernels are doing, for who looks after it
has died of one: the front makes it, the runtime writes it (`device/cpu/runtime/record.h` has the same layout).

Neutral ground: the front imports nothing of `device/`, and `device/` nothing of `front/`. What is in it was written by
a process that runs anybody's kernels, and is read as such: every bit of it may be anything.
"""

from __future__ import annotations

import os
import signal
import struct
from dataclasses import dataclass

from hearthd.shared import sealed_memory

FILE = "crash_record"
"""The kind of the message that hands it to a device process."""

SLOTS = 512
"""Threads that launch kernels, each with a line of its own; what more there are goes unnamed."""

_HEAD = struct.Struct("=IiiIQIiIIIII")
"""State, signal, si_code, slot, address, whether there is one, sender, block (x, y, z), slot of the message, unused."""
_HEAD_BYTES = 512
_MESSAGE_BYTES = 448
_SLOT = struct.Struct("=II56s192s")
"""Whether it is taken, whether a kernel runs, the session's id, the kernel's name."""

SIZE = _HEAD_BYTES + SLOTS * _SLOT.size

_WRITTEN = 2


@dataclass(frozen=True)
class RunningKernel:
    """A kernel that had begun and not ended."""

    kernel: str
    session: str
    """Whose it was, by id; empty: nobody knows."""


@dataclass(frozen=True)
class Crash:
    """The signal that a process brought on itself, or was sent."""

    signal: int
    culprit: RunningKernel | None
    """The kernel that did it; None: it happened outside of all kernels."""
    address: int | None = None
    """What it tried to use; None where the signal or the processor does not say."""
    block: tuple[int, int, int] = (0, 0, 0)
    """Of the culprit's grid."""
    message: str = ""
    """What it said itself: a failed assertion, a trap."""
    sender: int = 0
    """The process that sent the signal, where that was another one."""


@dataclass(frozen=True)
class CrashRecord:
    """What the process was doing."""

    running: tuple[RunningKernel, ...] = ()
    crash: Crash | None = None
    """None: it ended in a way that it could not see coming, or not by a signal."""


def make() -> int:
    """An open file of `SIZE` bytes that nobody can make shorter. Raises OSError."""
    return sealed_memory.make("hearth-crash-record", SIZE)


def read(file: int) -> CrashRecord:
    """What the record says. Raises nothing for what is in it, OSError where it cannot be read."""
    return parse(os.pread(file, SIZE, 0))


def parse(data: bytes) -> CrashRecord:
    """Whatever the bytes are; fewer than `SIZE` say nothing."""
    if len(data) < SIZE:
        return CrashRecord()
    slots = [_slot(data, number) for number in range(SLOTS)]
    return CrashRecord(tuple(dict.fromkeys(slot for slot in slots if slot is not None)), _crash(data, slots))


def _slot(data: bytes, number: int) -> RunningKernel | None:
    taken, running, session, kernel = _SLOT.unpack_from(data, _HEAD_BYTES + number * _SLOT.size)
    return RunningKernel(_text(kernel), _text(session)) if taken and running else None


def _crash(data: bytes, slots: list[RunningKernel | None]) -> Crash | None:
    state, number, code, slot, address, has_address, sender, x, y, z, said_by, _ = _HEAD.unpack_from(data)
    if state != _WRITTEN or number not in signal.valid_signals():
        return None
    culprit = slots[slot - 1] if 0 < slot <= SLOTS else None
    said = data[_HEAD.size : _HEAD.size + _MESSAGE_BYTES] if culprit is not None and said_by == slot else b""
    return Crash(
        signal=number,
        culprit=culprit,
        address=address if has_address and code > 0 else None,
        block=(x, y, z),
        message=_text(said),
        sender=max(sender, 0),
    )


def _text(raw: bytes) -> str:
    """Up to the first zero, fit to be shown to people."""
    text = raw.partition(b"\0")[0].decode(errors="replace")
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
