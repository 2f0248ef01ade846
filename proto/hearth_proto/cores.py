"""The number of cores that this process may use, which decides if it may poll where it could sleep."""

from __future__ import annotations

import functools
import math
import os


@functools.cache
def cores() -> int:
    """Returns the cores that the scheduler gives the process, and no more than its control groups (a container's limit)
    let it use, rounded up; 1 at least. Determined at the first call."""
    given = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(given, quota("/sys/fs/cgroup", "/proc/self/cgroup"))))


def quota(root: str, groups: str) -> float:
    """The cores' worth of time that control groups leave a process; infinite: all.

    With version 2 each group on the way has a separate ``cpu.max``, microseconds of each period
    (https://docs.kernel.org/admin-guide/cgroup-v2.html); of version 1 the innermost has ``cpu.cfs_quota_us``.
    `root`: where they are mounted; `groups`: the file that says in which of them the process is.
    """
    least, group = math.inf, "/"
    for line in _read(groups).splitlines():
        if line.startswith("0::/") and ".." not in line:
            group = line[3:]
    while True:
        words = _read(f"{root}/{group}/cpu.max").split()
        if len(words) == 2:
            least = min(least, _share(*words))
        if not group.strip("/"):
            break
        group = group.rstrip("/").rpartition("/")[0]
    return min(least, _share(*(_read(f"{root}/cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))))


def _share(quota: str, period: str) -> float:
    if not (quota.isdecimal() and period.isdecimal() and int(quota) and int(period)):  # "max", or -1
        return math.inf
    return int(quota) / int(period)


def _read(path: str) -> str:
    """Without `pathlib`, which a client that has just begun would have to import for it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, 1 << 16).decode()
        finally:
            os.close(file)
    except (OSError, ValueError):
        return ""
