"""Renewals of a session's lease, as the daemon's status shows them."""

from __future__ import annotations

from collections.abc import Callable

import hearth
from tests.support.daemon.harness import DaemonProcess

_RISE_S = 0.5
"""Seconds by which a renewal raises the remaining lease, at least."""


def lease_renewed(daemon: DaemonProcess, node: hearth.Node) -> Callable[[], bool]:
    """Returns a condition that becomes true when the lease of this session, which has no stream, has been renewed. The
    condition fails if the session has ended."""
    lowest = float("inf")

    def renewed() -> bool:
        nonlocal lowest
        (left,) = [
            session["lease_left_seconds"] for session in daemon.status()["sessions"] if session["id"] == node.session_id
        ]
        lowest = min(lowest, left)
        return bool(left > lowest + _RISE_S)

    return renewed
