"""Readings of the front's resources: its memory, the memory of its control group, and its open files."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_GROUPS = Path("/sys/fs/cgroup")
_FILES = Path("/proc/self/fd")


def own_memory() -> float:
    """Returns the bytes of private physical memory of this process: the heap, without shared memory."""
    _, resident, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
    return float((resident - shared) * _PAGE)


def descriptors() -> float:
    """Returns the number of open files as a fraction of the limit."""
    count = _FILES.stat().st_size or sum(1 for _ in _FILES.iterdir())  # the size is the number of files since Linux 6.2
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0.0 if limit == resource.RLIM_INFINITY else count / limit


class GroupMemory:
    """The memory of the control group (version 2) that limits the daemon, including device processes."""

    def __init__(self, root: Path = _GROUPS, membership: Path = Path("/proc/self/cgroup")) -> None:
        self._folder: Path | None = None
        self._limit = 0
        with contextlib.suppress(OSError, StopIteration):
            line = next(line for line in membership.read_text().splitlines() if line.startswith("0::/"))
            self._find(root, line.removeprefix("0::/"))

    def _find(self, root: Path, path: str) -> None:
        """Finds the group with the lowest limit, among equal limits the nearest."""
        for folder in (root / path, *(root / path).parents):
            if not folder.is_relative_to(root):
                return
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / "memory.max").read_text())
                if limit > 0 and (not self._limit or limit < self._limit):
                    self._folder, self._limit = folder, limit

    def read(self) -> float:
        """Returns the memory in use without inactive page cache, as a fraction of the limit. 0 without a limit."""
        if self._folder is None:
            return 0.0
        used = int((self._folder / "memory.current").read_text())
        for line in (self._folder / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                used -= int(line.split()[1])
                break
        return max(0, used) / self._limit
