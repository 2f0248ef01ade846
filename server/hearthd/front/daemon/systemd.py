"""Notifications to systemd (`Type=notify`), and the line that `systemctl status` shows; none without systemd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping

import sdnotify

from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.supervisor import SERVING, STATE_NAMES, Supervisor

_EXTENSION_US = 15_000_000
"""Microseconds that systemd is asked to wait after each message of a daemon that starts or stops: more than a clean
stop takes, and a few of the messages."""


class Notifier:
    """READY, RELOADING, STOPPING, STATUS, and the watchdog while the daemon is well."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._notifier = sdnotify.SystemdNotifier() if environ.get("NOTIFY_SOCKET") else None
        self._interval = 0.0
        with contextlib.suppress(ValueError):
            if environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
                self._interval = int(environ.get("WATCHDOG_USEC", "0")) / 2e6

        self._told = ""
        self._ready = False
        self._over = False

    def tell(self, state: str) -> None:
        if self._notifier is not None:
            self._notifier.notify(state)

    def status(self, text: str) -> None:
        """Sends the text that `systemctl status` shows, if it has changed."""
        if text != self._told and not self._over:
            self._told = text
            self.tell(f"STATUS={text}")

    def starting(self, text: str) -> None:
        """Reports that the daemon is starting and must not be given up yet; to be repeated every few seconds."""
        self._told = text
        self.tell(f"STATUS={text}\nEXTEND_TIMEOUT_USEC={_EXTENSION_US}")

    def ready(self, text: str) -> None:
        self._ready, self._told = True, text
        self.tell(f"READY=1\nSTATUS={text}")

    def reloading(self) -> None:
        """The configuration is read again; `reloaded` has to follow. Understood by Type=notify and by
        Type=notify-reload (systemd 253), which asks for the time."""
        if self._ready and not self._over:
            self.tell(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self) -> None:
        if self._ready and not self._over:
            self.tell("READY=1")

    def stopping(self, status: str) -> None:
        """Reports that the daemon is stopping and must not be killed yet; repeated, it may take as long as it likes."""
        self._over = True
        self.tell(f"STOPPING=1\nSTATUS={status}\nEXTEND_TIMEOUT_USEC={_EXTENSION_US}")

    async def watchdog(self, healthy: Callable[[], bool]) -> None:
        """Pats the watchdog at half its time, from the loop that serves, as long as `healthy` says so."""
        while self._notifier is not None and self._interval > 0:
            if healthy():
                self.tell("WATCHDOG=1")
            await asyncio.sleep(self._interval)


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
