"""Files with keys that only their owner can read. Shared code: imports nothing of `front/` or `device/`."""

from __future__ import annotations

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
    if not Path(path).exists():
        create(path, secrets.token_bytes(SIZE))
    read(path)


def create(path: str, content: bytes) -> bool:
    """Creates a file that only its owner can access, with its directory. The file appears with its whole content.

    Returns False if the file exists, perhaps since another process has created it. Raises OSError.
    """
    directory = Path(path).parent
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".key-") as file:  # has mode 0600
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            return False
    return True


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
