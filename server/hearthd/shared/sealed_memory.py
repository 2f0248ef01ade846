"""Memory that two processes share, and neither can take away from the other. Neutral ground, as all beside `front/` and
`device/`."""

from __future__ import annotations

import errno
import fcntl
import os

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Seals: no process can take pages away from under the others, which would end them by SIGBUS."""


def make(name: str, size: int) -> int:
    """Returns an open file of `size` bytes, all zero, close-on-exec; `name` shows among the process's files.

    No process can shorten it, which would end its readers by SIGBUS. Raises OSError.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, "the system has no memfd")
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(file)
        raise
    return file
