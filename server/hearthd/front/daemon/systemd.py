"""Notifications to systemd (`Type=notify`), and the line that `systemctl status` shows.

Without systemd they do nothing.
"""

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
"""Time, in microseconds, that systemd is asked to wait after each message of a daemon that starts or stops. It is
longer than a clean stop takes, and than several intervals between messages."""


class Notifier:
    """Sends READY, RELOADING, STOPPING, STATUS, and the watchdog notification while the daemon is healthy."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._notifier = sdnotify.SystemdNotifier() if environ.get("NOTIFY_SOCKET") else None
        self._interval = 0.0
        with contextlib.suppress(ValueError):
            if environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
                self._interval = int(environ.get("WATCHDOG_USEC", "0")) / 2e6

        self._last_status = ""
        self._ready = False
        self._is_stopping = False

    def notify(self, state: str) -> None:
        """Sends a message of the sd_notify protocol to systemd. Does nothing without systemd."""
        if self._notifier is not None:
            self._notifier.notify(state)

    def status(self, text: str) -> None:
        """Sends the text that `systemctl status` shows, if it has changed."""
        if text != self._last_status and not self._is_stopping:
            self._last_status = text
            self.notify(f"STATUS={text}")

    def starting(self, text: str) -> None:
        """Reports that the daemon is starting, so that systemd continues to wait.

        Must be repeated every few seconds.
        """
        self._last_status = text
        self.notify(f"STATUS={text}\nEXTEND_TIMEOUT_USEC={_EXTENSION_US}")

    def ready(self, text: str) -> None:
        """Reports that the daemon serves, with a text for `systemctl status`."""
        self._ready, self._last_status = True, text
        self.notify(f"READY=1\nSTATUS={text}")

    def reloading(self) -> None:
        """Reports that the configuration is being read again; `reloaded` must follow.

        Supports Type=notify and Type=notify-reload (systemd 253), which needs the time.
        """
        if self._ready and not self._is_stopping:
            self.notify(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self) -> None:
        """Reports the end of a reload, after `reloading`. Does nothing before `ready` and after `stopping`."""
        if self._ready and not self._is_stopping:
            self.notify("READY=1")

    def stopping(self, status: str) -> None:
        """Reports that the daemon is stopping, so that systemd does not kill it yet.

        If the report is repeated, the stop may take any time.
        """
        self._is_stopping = True
        self.notify(f"STOPPING=1\nSTATUS={status}\nEXTEND_TIMEOUT_USEC={_EXTENSION_US}")

    async def watchdog(self, healthy: Callable[[], bool]) -> None:
        """Notifies systemd's watchdog at half its interval while `healthy` returns True.

        Runs in the event loop that serves, so that a blocked loop is detected.
        """
        while self._notifier is not None and self._interval > 0:
            if healthy():
                self.notify("WATCHDOG=1")
            await asyncio.sleep(self._interval)


def summary(supervisor: Supervisor, sessions: SessionTable) -> str:
    """Returns a summary like "2 devices (device 1 lost: ...), 3 sessions of 2 tenants"."""
    failing = [
        f"device {device.ordinal} {STATE_NAMES[device.state]}" + (f": {device.detail}" if device.detail else "")
        for device in supervisor
        if device.state != SERVING
    ]
    devices = _count(len(supervisor.devices), "device") + (f" ({'; '.join(failing)})" if failing else "")
    tenants = {session.tenant.name for session in sessions}
    of_tenants = f" of {_count(len(tenants), 'tenant')}" if len(tenants) > 1 else ""
    return f"{devices}, {_count(len(sessions), 'session')}{of_tenants}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
