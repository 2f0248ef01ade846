"""What systemd is told (`Type=notify`); nothing where no systemd asks."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping

import sdnotify

_EXTENSION_US = 15_000_000
"""How long systemd is asked to wait from each word of a stopping daemon on: more than a clean stop takes."""


class Notifier:
    """READY, STOPPING, STATUS, and the watchdog while the daemon is well."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._notifier = sdnotify.SystemdNotifier() if environ.get("NOTIFY_SOCKET") else None
        self._interval = 0.0
        with contextlib.suppress(ValueError):
            if environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
                self._interval = int(environ.get("WATCHDOG_USEC", "0")) / 2e6

    def tell(self, state: str) -> None:
        if self._notifier is not None:
            self._notifier.notify(state)

    def stopping(self, status: str) -> None:
        """It is on its way out and shall not be killed yet; said again and again, it may take as long as it likes."""
        self.tell(f"STOPPING=1\nSTATUS={status}\nEXTEND_TIMEOUT_USEC={_EXTENSION_US}")

    async def watchdog(self, healthy: Callable[[], bool]) -> None:
        """Pats the watchdog at half its time, from the loop that serves, as long as `healthy` says so."""
        while self._notifier is not None and self._interval > 0:
            if healthy():
                self.tell("WATCHDOG=1")
            await asyncio.sleep(self._interval)
