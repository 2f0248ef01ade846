"""Runs a command as on a kernel without Landlock: `python -m tests.environments.without_landlock COMMAND...`.

A seccomp filter answers the three system calls with ENOSYS, like a kernel built without them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_CALLS = range(444, 447)
"""Numbers of landlock_create_ruleset, landlock_add_rule and landlock_restrict_self, the same on every architecture of
Linux."""
_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    """The struct sock_fprog of Linux."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid() -> None:
    """Forbids the calls to this process and its future children."""
    instructions = [(_LOAD_NUMBER, 0, 0, 0)]
    instructions += [(_IF_EQUAL, len(_CALLS) - index, 0, call) for index, call in enumerate(_CALLS)]
    instructions += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    text = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    program = _Program(len(instructions), text)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
