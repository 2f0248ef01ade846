"""Errors of transports for a daemon that cannot be reached, without gRPC."""

from __future__ import annotations

import errno
import socket

from hearth.errors import ClosedError, HearthError, broken

UNIX = "unix:"
SAFE = frozenset({"Describe", "RenewSession", "CloseSession", "ListSessions", "ListPublished"})
"""Calls that may be made again where the connection broke before their answer came."""
TRIES = 3
STATUS_S = 3.0
"""Limit in seconds for the daemon's answer about a transfer."""
_ABSENT = (errno.ECONNREFUSED, errno.ENOENT)


def absent(target: str) -> bool:
    """True if no process listens at the daemon's address: it has ended, and its sessions with it. Known for Unix
    sockets only, which belong to this host alone."""
    path = target.removeprefix(UNIX)
    if path == target:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) in _ABSENT


def unreached(target: str, why: str) -> HearthError:
    """Builds the error for a connection that broke, or could not be made."""
    return broken(
        f"the daemon at {target} does not answer ({why}).",
        fix="start one with `hearthd serve`, or check the address.",
    )


def closed(target: str) -> ClosedError:
    """Builds the error that every use of a closed connection raises."""
    return ClosedError(f"the connection to {target} is closed.", reason="CANCELLED", fix="connect again.")
