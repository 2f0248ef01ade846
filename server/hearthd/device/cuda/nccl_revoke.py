"""ncclCommRevoke, which CuPy does not bind."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable


@functools.cache
def function() -> Callable[[int, int], int] | None:
    """ncclCommRevoke of the library that CuPy has loaded; None: it is older than NCCL 2.28.7, which has it."""
    try:
        found = ctypes.CDLL("libnccl.so.2", os.RTLD_NOLOAD | os.RTLD_NOW).ncclCommRevoke
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_int)
    found.restype = ctypes.c_int

    def revoke(communicator: int, flags: int) -> int:
        status: int = found(communicator, flags)
        return status

    return revoke
