"""A daemon that is lent to one test after another, including tests that lose its device processes."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.held import GAUGES
from tests.support.daemon.tenants import tenant, tenants

REST_S = 5.0
"""Seconds to wait for an idle daemon. Resources of a session that was left open usually stay longer: then the next test
gets a new daemon."""
_HELD = (*GAUGES, "stripes", "segments", "sessions_leaving")


class LentDaemon:
    """A daemon that is started at its first use, and again if a test has ended it or left resources in it."""

    def __init__(self, cache: Path, config: Mapping[str, Any], cpu_count: int = 2) -> None:
        self._cache = cache
        self._config = config
        self._cpu_count = cpu_count
        self._daemon: DaemonProcess | None = None

    def lend(self) -> DaemonProcess:
        """Returns the daemon, idle: it differs from a new daemon only in its log, its counters and its generations."""
        if self._daemon is not None and not _becomes_idle(self._daemon):
            self.close()
        if self._daemon is None:
            self._daemon = DaemonProcess(self._cache, self._config, self._cpu_count)
        return self._daemon

    def close(self) -> None:
        """Stops the daemon, and checks that it leaves no resources."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            code, leftovers, log = daemon.stop(), daemon.left_behind(), daemon.log()[-2000:]
            daemon.remove()
            assert not leftovers, (code, log)


class TenantDaemon(LentDaemon):
    """A daemon on one CPU device with two tenants: alice, whose token is `token`, and an operator."""

    def __init__(self, cache: Path, **sections: Any) -> None:
        config, tokens = tenants("alice", tenant("operator", rights=["admin"]), **sections)
        self.token, self.operator = tokens["alice"], tokens["operator"]
        super().__init__(cache, config, 1)


def _becomes_idle(daemon: DaemonProcess) -> bool:
    deadline = time.monotonic() + REST_S
    while daemon.process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):  # the daemon may be ending
            status = daemon.status()
            if not status["sessions"] and not status["draining"] and all(map(_is_idle, status["devices"])):
                return True
        time.sleep(0.01)
    return False


def _is_idle(device: Mapping[str, Any]) -> bool:
    if any(process["state"] != "serving" or process["session"] for process in device["processes"]):
        return False
    return device["state"] == "serving" and not any(device["gauges"].get(name, 0) for name in _HELD)
