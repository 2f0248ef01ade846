"""A file with a random key that only its owner can read. Shared code: imports nothing of `front/` or `device/`."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

SIZE = 32
"""Size of a key in bytes."""


def ensure(path: str) -> None:
    """Creates the file if it does not exist.

    Several processes may call it at the same time. Raises OSError, also if other users can read the file or it contains
    no key.
    """
    key_file = Path(path)
    if not key_file.exists():
        key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=key_file.parent, prefix=".key-") as file:  # has mode 0600
            file.write(secrets.token_bytes(SIZE))
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(file.name, key_file)
    read(path)


def read(path: str) -> bytes:
    """Returns the key. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(f"{path} must be a file of this user that no other user can read; chmod 600 {path}")
        key = file.read(4096)
    if len(key) < SIZE:
        raise OSError(f"{path} has {len(key)} bytes; a key has at least {SIZE}")
    return key
