"""Directories for what the compiler makes once and later processes reuse: private to the user, never shared.

What lies there is loaded into device processes, so a directory that another user could write to is not used.
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
    """`$XDG_CACHE_HOME/hearth/cpu`, else `~/.cache/hearth/cpu`; where neither can be had, private to this process."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path("~").expanduser() / ".cache"
    try:
        return private_dir(root / "hearth" / "cpu")
    except OSError:
        return _process_dir()


def private_dir(path: Path) -> Path:
    """Create `path` if need be and check that only this user can write to it; raises PermissionError otherwise."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} belongs to or can be written by other users")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written")
    return path


def build_once(parent: Path, name: str, build: Callable[[Path], None]) -> Path:
    """The directory `parent/name`, made by `build` in a scratch directory and put in place in one step.

    One process of the node builds it, others wait for it; where that one dies, the next one builds it.
    """
    final = parent / name
    if final.is_dir():
        with contextlib.suppress(OSError):
            os.utime(final)  # in use: `_prune` keeps it
        return final
    with _lock:
        ours = _building.setdefault(final, threading.Lock())
    with ours, _alone(parent / f".{name}.lock"):  # threads of one process, and processes, need not do it twice
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
def _alone(path: Path) -> Iterator[None]:
    """Holds a lock that ends with the process. Without one, where the file system has none, work is only done twice."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        path.unlink(missing_ok=True)  # a waiting process finds the result, or builds it
        os.close(descriptor)


def _prune(parent: Path) -> None:
    """Removes entries that no process has used for a month: they were built for a compiler or a version that is
    gone."""
    before = time.time() - UNUSED_S
    for entry in parent.iterdir():
        with contextlib.suppress(OSError):
            if entry.is_dir() and entry.stat().st_mtime < before:
                shutil.rmtree(entry, ignore_errors=True)


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child of the process that made it
        shutil.rmtree(path, ignore_errors=True)


def _process_dir() -> Path:
    pid = os.getpid()
    with _lock:
        if pid not in _temporary:
            path = Path(tempfile.mkdtemp(prefix="hearth-cpu-"))
            _temporary[pid] = path
            atexit.register(_remove, path, pid)
        return _temporary[pid]
