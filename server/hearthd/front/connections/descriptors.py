"""The budget of file descriptors: divides the process's limit among devices, a reserve, and each listener.

`budget` is pure. A listener's share is its maximum number of connections. Unauthenticated connections get at most half
of the share, so that clients with a credential can still connect. The reserve is for files, probes and connections that
are being refused.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

MOST = 65536
"""Maximum value to which the soft limit is raised; the hard limit is never exceeded."""
RESERVE = 8
"""Number of descriptors for files, probes and connections that are being refused."""
DEVICE = 8
"""Number of descriptors for one device process: its sockets, its memory and its crash report."""
MIN_CONNECTIONS = 2
"""Minimum number of connections of each listener, however low the limit is."""
RECOMMENDED_LIMIT = 1024
"""The lowest limit with which every listener has connections for some dozens of clients."""
_PERCENTAGES = {
    "grpc": 24, "grpc_unix": 24, "call": 16, "stripes": 8, "lanes": 6, "http": 8, "identity": 2, "peers": 8,
}  # fmt: skip
"""Shares of the listeners, in percent."""
_LONG_LIVED = ("grpc", "grpc_unix", "call")
"""Listeners whose connections stay open in the front while their clients use them."""


class DescriptorBudget(NamedTuple):
    """The division of one limit on open files."""

    limit: int
    """Number of descriptors that the process may have."""
    shares: dict[str, int]
    """Maximum number of connections of each listener."""
    needed: int
    """The lowest limit that leaves enough connections for clients, including the number that the configuration
    requests."""

    @property
    def is_too_low(self) -> bool:
        """True if the limit is too low."""
        return self.limit < self.needed


def budget(limit: int, used: int, devices: int, requested: int = 0) -> DescriptorBudget:
    """Divides the limit on open files.

    Args:
        limit: number of descriptors that the process may have.
        used: number of descriptors that it has open before it listens.
        devices: maximum number of device processes.
        requested: connections of a listener that the configuration requests; 0: as many as fit.
    """
    reserved = used + RESERVE + DEVICE * devices
    available = max(0, limit - reserved)
    shares = {
        listener: max(MIN_CONNECTIONS, available * percentage // 100) for listener, percentage in _PERCENTAGES.items()
    }
    needed = 0
    if requested:
        needed = max(reserved + -(-100 * requested // _PERCENTAGES[listener]) for listener in _LONG_LIVED)
    return DescriptorBudget(limit, shares, max(RECOMMENDED_LIMIT, needed))


def raise_limit() -> int:
    """Raises the soft limit on open files as far as the process may, and returns the limit that is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY:
        return MOST
    if soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):  # a container's policy
            return soft
        return target
    return soft


USED = 48
"""Approximate number of descriptors that a daemon has open before it listens."""


def used() -> int:
    """Returns the number of open descriptors of the process. If /proc is not mounted, returns the estimate `USED`."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - paths are not wanted
    except OSError:
        return USED
