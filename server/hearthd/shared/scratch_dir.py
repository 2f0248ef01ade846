"""Scratch directory, which is removed even if its process is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class Scratch:
    """A directory whose name begins with `prefix`, and subdirectories in it.

    Creating one removes the directories that killed processes left under the same prefix.
    """

    def __init__(self, prefix: str) -> None:
        for stale in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            _remove_unless_used(stale)
        self._path, self._descriptor = self._create(prefix)
        self._subdirectories = 0

    @staticmethod
    def _create(prefix: str) -> tuple[Path, int]:
        while True:
            path = Path(tempfile.mkdtemp(prefix=prefix))
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # another process has removed it, before it was known to be in use
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # held until this process ends
            if os.fstat(descriptor).st_nlink:
                return path, descriptor
            os.close(descriptor)  # removed as above, but a moment later

    def room(self) -> Path:
        """Creates a new empty subdirectory that only this user can access, and returns its path."""
        self._subdirectories += 1
        path = self._path / str(self._subdirectories)
        path.mkdir(mode=0o700)
        return path

    def close(self) -> None:
        """Removes the directory with everything in it, ignoring errors."""
        shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._descriptor)


def _remove_unless_used(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_symlink() or path.stat().st_uid != os.geteuid():
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
