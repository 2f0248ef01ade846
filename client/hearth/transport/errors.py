"""Transport errors for unreachable daemons, and helpers of all transports. Without gRPC."""

from __future__ import annotations

import errno
import socket

from hearth.errors import ClosedError, HearthError, broken

UNIX = "unix:"
SAFE = frozenset({"Describe", "RenewSession", "CloseSession", "ListSessions", "ListPublished"})
"""Calls that may be repeated if the connection broke before their answer arrived."""
TRIES = 3
STATUS_S = 3.0
"""Timeout, in seconds, of the daemon's answer about a transfer."""
_ABSENT = (errno.ECONNREFUSED, errno.ENOENT)


def absent(target: str) -> bool:
    """True if no process listens at the daemon's address, so that the daemon and its sessions have ended.

    Known only for Unix sockets, which are local to this host.
    """
    path = target.removeprefix(UNIX)
    if path == target:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) in _ABSENT


def unreached(target: str, reason: str) -> HearthError:
    """Returns the error for a connection that broke or could not be made.

    Args:
        target: Address of the daemon.
        reason: Reason, for the message.
    """
    return broken(
        f"the daemon at {target} does not answer ({reason}).",
        fix="start a daemon with `hearthd serve`, or check the address.",
    )


def closed(target: str) -> ClosedError:
    """Returns the error that every use of a closed connection raises."""
    return ClosedError(f"the connection to {target} is closed.", reason="CANCELLED", fix="connect again.")
