"""Attributes that a process sets for itself: not dumpable, no core file, no capabilities, few descriptors.

A process that is not dumpable is closed to other processes of its user: they can neither trace it nor open its memory,
its environment or its descriptors in /proc (prctl(2), PR_SET_DUMPABLE).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Collection
from pathlib import Path

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_CAPABILITY_VERSION_3 = 0x20080522


DEBUGGABLE = "HEARTH_DEBUGGABLE"
"""Environment variable that keeps the daemon's processes open to debuggers and profilers of their user."""


def close_to_others() -> None:
    """Makes the process not dumpable, and disables core files: other processes of the user cannot read it."""
    leave_no_core()
    if os.environ.get(DEBUGGABLE, "") not in ("", "0"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def open_to_others() -> None:
    """Makes the process dumpable again. Used in a process that was forked from one that is closed."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def leave_no_core() -> None:
    """Disables core files, which would contain the memory of all sessions of the process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def no_new_privileges() -> None:
    """Prevents programs that the process starts from gaining rights from their file (set-user-ID, capabilities)."""
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def drop_capabilities() -> None:
    """Drops all capabilities permanently; does nothing if there are none. Raises OSError if that fails."""
    if not _capabilities():
        return

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    libc = ctypes.CDLL(None, use_errno=True)
    empty_sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; low and high half
    if libc.capset(ctypes.byref(Header(_CAPABILITY_VERSION_3, 0)), empty_sets):
        number = ctypes.get_errno()
        raise OSError(number, f"capabilities cannot be dropped: {os.strerror(number)}")


def _capabilities() -> int:
    """Returns the permitted capabilities of this thread, as bits."""
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0


def keep_descriptors(descriptors: Collection[int]) -> None:
    """Closes every descriptor except `descriptors` and those of standard input, output and error."""
    remaining = {0, 1, 2, *descriptors}
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in remaining:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(entry.name))
