"""Size of the host memory that the daemon may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def share_of_host() -> int:
    """Returns, in bytes, a quarter of the memory available to this daemon.

    That is the memory of the host, or the limit of its control group.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return total // 4
