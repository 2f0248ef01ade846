"""Summary of the daemon's work, on one line: for `systemctl status`."""

from __future__ import annotations

from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.supervisor import SERVING, STATE_NAMES, Supervisor


def summary(supervisor: Supervisor, sessions: SessionTable) -> str:
    """ "2 devices (device 1 lost: ...), 3 sessions of 2 tenants" """
    ill = [
        f"device {device.ordinal} {STATE_NAMES[device.state]}" + (f": {device.detail}" if device.detail else "")
        for device in supervisor
        if device.state != SERVING
    ]
    devices = _count(len(supervisor.devices), "device") + (f" ({'; '.join(ill)})" if ill else "")
    tenants = {session.tenant.name for session in sessions}
    of = f" of {_count(len(tenants), 'tenant')}" if len(tenants) > 1 else ""
    return f"{devices}, {_count(len(sessions), 'session')}{of}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
