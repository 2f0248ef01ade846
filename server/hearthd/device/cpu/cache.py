"""Directories for results that the compiler produces once and later processes reuse: private to the user, never shared.

Device processes load the contents, so a directory that another user could write to is not used.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

UNUSED_S = 30 * 24 * 3600.0

_lock = threading.Lock()
_temporary: dict[int, Path] = {}
_building: dict[Path, threading.Lock] = {}


def default_cache_dir() -> Path:
    """Returns `$XDG_CACHE_HOME/hearth/cpu`, or else `~/.cache/hearth/cpu`.

    If neither is usable, returns a directory private to this process.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path("~").expanduser() / ".cache"
    try:
        return private_dir(root / "hearth" / "cpu")
    except OSError:
        return _process_dir()


def private_dir(path: Path) -> Path:
    """Creates `path` if necessary and returns it.

    Raises PermissionError if other users can write to it or this user cannot.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} belongs to or can be written by other users")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written")
    return path


def build_once(parent: Path, name: str, build: Callable[[Path], None]) -> Path:
    """Returns the directory `parent/name`, which `build` makes in a scratch directory that is then renamed in one step.

    One process of the node builds the directory, and others wait for it; if that process dies, the next one builds it.
    """
    final = parent / name
    if final.is_dir():
        with contextlib.suppress(OSError):
            os.utime(final)  # marks it as in use, so that `_prune` keeps it
        return final
    with _lock:
        build_lock = _building.setdefault(final, threading.Lock())
    # so that neither threads of one process nor several processes build it twice
    with build_lock, _file_lock(parent / f".{name}.lock"):
        if final.is_dir():
            return final
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=parent))
        try:
            build(scratch)
            try:
                scratch.rename(final)
            except OSError:
                if not final.is_dir():
                    raise
        finally:
            if scratch.exists():
                shutil.rmtree(scratch, ignore_errors=True)
        _prune(parent)
    return final


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Holds a file lock that ends with the process.

    If the file system has no locks, the only effect is that work may be done twice.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        path.unlink(missing_ok=True)  # a waiting process finds the result, or builds it
        os.close(descriptor)


def _prune(parent: Path) -> None:
    """Removes entries that no process has used for a month.

    They were built for a compiler or a version that no longer exists.
    """
    oldest = time.time() - UNUSED_S
    for entry in parent.iterdir():
        with contextlib.suppress(OSError):
            if entry.is_dir() and entry.stat().st_mtime < oldest:
                shutil.rmtree(entry, ignore_errors=True)


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child of the process that created the directory
        shutil.rmtree(path, ignore_errors=True)


def _process_dir() -> Path:
    pid = os.getpid()
    with _lock:
        if pid not in _temporary:
            path = Path(tempfile.mkdtemp(prefix="hearth-cpu-"))
            _temporary[pid] = path
            atexit.register(_remove, path, pid)
        return _temporary[pid]
