"""The budget of file descriptors: how the process's limit is divided between devices, a reserve, and each listener.

`shares` is pure. A listener's share is the most connections that it takes, and strangers get half of that, so that
clients with a credential still get in. The reserve is for files, probes and connections that are just being refused.
"""

from __future__ import annotations

import os
import resource

MOST = 65536
"""The soft limit is raised to the hard one, up to here."""
RESERVE = 8
DEVICE = 8
"""Descriptors of one device process: its sockets, its memory and its crash report."""
LEAST = 2
"""Connections of each listener, however low the limit is."""
COMFORT = 1024
"""A limit from which on nothing is cut to less than some dozens of clients need."""
_PARTS = {
    "grpc": 24, "grpc_unix": 24, "call": 16, "stripes": 8, "lanes": 6, "http": 8, "identity": 2, "peers": 8,
}  # fmt: skip
"""Of a hundred."""


def shares(limit: int, used: int, devices: int) -> dict[str, int]:
    """The most connections of each listener.

    Args:
        limit: descriptors that the process may have.
        used: descriptors that it has before it listens.
        devices: device processes that it may have.
    """
    left = max(0, limit - used - RESERVE - DEVICE * devices)
    return {listener: max(LEAST, left * part // 100) for listener, part in _PARTS.items()}


def raise_limit() -> int:
    """Raises the soft limit on open files as far as the process may; the limit that is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY:
        return MOST
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a container's policy
            return soft
        return wanted
    return soft


def used() -> int:
    """Descriptors that the process has open; a guess where /proc is not mounted."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - paths are not wanted
    except OSError:
        return 48
