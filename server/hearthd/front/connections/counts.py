"""Connections as metrics, and as log lines at a bounded rate."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from hearthd.shared.log import LogThrottle

log = structlog.get_logger("hearthd.connections")

LOG_INTERVAL = 5.0
"""Minimum interval, in seconds, between log lines about the same event, listener and reason. Each line has the number
of events since the last one."""


class ConnectionCounts:
    """Connection counts of a daemon, over all listeners."""

    def __init__(self, registry: CollectorRegistry | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open = Gauge(
            "hearth_connections", "Open connections, lanes excepted, by listener.", ("listener",), registry=registry
        )
        self._refused = Counter(
            "hearth_connections_refused", "Connections closed by a limit or a deadline.", ("listener", "reason"),
            registry=registry,
        )  # fmt: skip
        self._held = Counter(
            "hearth_connections_held", "Connections of penalized peers whose data had to wait for its turn.",
            ("listener",), registry=registry,
        )  # fmt: skip
        self._log_throttle = LogThrottle(LOG_INTERVAL)

    def connection_opened(self, listener: str) -> None:
        """Counts an admitted connection in `hearth_connections`. `connection_closed` follows once."""
        self._open.labels(listener).inc()

    def connection_closed(self, listener: str) -> None:
        """Removes a connection that was counted as opened, including one that was evicted."""
        self._open.labels(listener).dec()

    def connection_refused(self, listener: str, peer: str, reason: str) -> None:
        """Counts a connection that was refused or closed, by listener and reason.

        `reason`: full, strangers, address, descriptors, silent, flood or penalty.
        Logs at most one line in `LOG_INTERVAL` seconds for each listener and reason.
        """
        self._refused.labels(listener, reason).inc()
        self._log_throttled("connection_refused", listener, peer, reason)

    def connection_held(self, listener: str, peer: str) -> None:
        """Counts a connection of a penalized peer whose data is held back, by listener.

        Logs at most one line in `LOG_INTERVAL` seconds for each listener.
        """
        self._held.labels(listener).inc()
        self._log_throttled("connection_held", listener, peer, "penalty")

    def _log_throttled(self, event: str, listener: str, peer: str, reason: str) -> None:
        times = self._log_throttle.times((event, listener, reason), self._clock())
        if times:
            log.warning(event, listener=listener, reason=reason, peer=peer, times=times)
