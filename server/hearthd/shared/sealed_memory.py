"""Memory that two processes share, and that neither can shrink.

Shared code: imports nothing of `front/` or `device/`.
"""

from __future__ import annotations

import errno
import fcntl
import os

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Seals that prevent every process from removing pages, which would kill the other processes by SIGBUS."""


def make(name: str, size: int) -> int:
    """Returns an open file of `size` zero bytes, close-on-exec; `name` is shown among the process's open files.

    No process can shorten the file, which would kill its readers by SIGBUS. Raises OSError.
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
