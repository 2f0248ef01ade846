"""Readiness of the node: one rule for `/readyz`, `grpc.health.v1`, the status document and the metrics."""

from __future__ import annotations

from typing import Any

from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.supervisor import FENCED, SERVING, STATE_NAMES, Supervisor


def ready(supervisor: Supervisor, refuses_new: bool) -> bool:
    """Returns True if work may be sent here: a device serves, and so does every device that is not fenced.

    `refuses_new`: whether the daemon drains, or is overloaded.
    """
    states = [device.state for device in supervisor]
    usable = [state for state in states if state != FENCED]
    return not refuses_new and bool(usable) and all(state == SERVING for state in usable)


def readiness(supervisor: Supervisor, sessions: SessionTable) -> dict[str, Any]:
    """The document of `/readyz`: whether work may be sent here, and why not."""
    return {
        "ready": ready(supervisor, sessions.refuses_new),
        "draining": sessions.draining,
        "overloaded": sessions.overloaded(),
        "devices": [
            {"ordinal": device.ordinal, "state": STATE_NAMES[device.state], "detail": device.detail}
            for device in supervisor
        ],
    }
