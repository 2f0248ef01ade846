"""Number of cores that this process may use, which decides whether threads may poll instead of sleeping."""

from __future__ import annotations

import functools
import math
import os


@functools.cache
def cores() -> int:
    """Returns the number of cores on which the scheduler may run this process; at least 1.

    It is limited by the control groups (for example a container's limit), rounded up. Computed once, at the first call.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(usable, quota("/sys/fs/cgroup", "/proc/self/cgroup"))))


def quota(root: str, groups: str) -> float:
    """Returns the number of cores' worth of time that control groups allow the process; infinity: no limit.

    In version 2, each group on the path to the root has a separate ``cpu.max``, in microseconds of each period
    (https://docs.kernel.org/admin-guide/cgroup-v2.html). In version 1, the innermost group has ``cpu.cfs_quota_us``.
    `root` is the mount point of the control groups; `groups` is the file that lists the groups of the process.
    """
    limit, group = math.inf, "/"
    for line in _read(groups).splitlines():
        if line.startswith("0::/") and ".." not in line:
            group = line[3:]
    while True:
        words = _read(f"{root}/{group}/cpu.max").split()
        if len(words) == 2:
            limit = min(limit, _share(*words))
        if not group.strip("/"):
            break
        group = group.rstrip("/").rpartition("/")[0]
    return min(limit, _share(*(_read(f"{root}/cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))))


def _share(quota: str, period: str) -> float:
    if not (quota.isdecimal() and period.isdecimal() and int(quota) and int(period)):  # "max", or -1
        return math.inf
    return int(quota) / int(period)


def _read(path: str) -> str:
    """Returns the contents of a file, or an empty string on failure.

    Avoids `pathlib`, whose import would delay a new client.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, 1 << 16).decode()
        finally:
            os.close(file)
    except (OSError, ValueError):
        return ""
