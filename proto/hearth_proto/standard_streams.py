"""Standard streams of the commands `hearth` and `hearthd`: they may be closed, and stdout may be full."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a device or file that accepts no more output."""


def open_closed() -> None:
    """Opens /dev/null in place of each standard stream that is closed.

    Otherwise the next sockets would get the numbers 0 to 2, which libraries use as standard streams, and Python's
    streams would be None.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number, which is this number
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - stays open
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - stays open
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 - stays open


def discard_unwritable(error: OSError) -> bool:
    """Returns True if `error` says that output cannot be written; /dev/null is then stdout.

    Otherwise Python would report at exit that it cannot write the buffered output.
    """
    if error.errno not in _UNWRITABLE and not isinstance(error, BrokenPipeError):
        return False
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return True
