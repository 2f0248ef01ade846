"""The account of bytes held for callers without an accepted credential, and counts of refused requests.

The total has a limit. gRPC does not report how many bytes it holds for a call whose message has not been requested;
such a call counts with the maximum, `MAX_STRANGER_BYTES`. Belongs to the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from hearthd.shared.log import LogThrottle

log = structlog.get_logger("hearthd.admission")

_LOG_EVERY = 10.0
"""Minimum interval, in seconds, between log lines about one limit."""


class UnauthenticatedBytes:
    """The bytes held for unauthenticated callers of a daemon."""

    def __init__(self, limit: int, registry: CollectorRegistry) -> None:
        self.limit = limit
        self.held_bytes = 0
        """Number of bytes held now."""
        self.on_refused: Callable[[str], None] = lambda peer: None
        """Called with gRPC's name of the peer for each refusal."""
        self._log_throttle = LogThrottle(_LOG_EVERY)
        Gauge(
            "hearth_admission_unauthenticated_bytes",
            "Bytes of requests held for callers without an accepted credential, at most.",
            registry=registry,
        ).set_function(lambda: self.held_bytes)
        self._refusals = Counter(
            "hearth_admission_refusals", "Requests refused before they were decoded, by limit.", ("limit",),
            registry=registry,
        )  # fmt: skip

    def reserve(self, size: int) -> bool:
        """Takes `size` bytes, which are held until `release`, and returns True.

        Returns False if that would exceed the limit.
        """
        if self.held_bytes + size > self.limit:
            return False
        self.held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Releases bytes that are no longer held."""
        self.held_bytes -= size

    @contextmanager
    def holding(self, size: int) -> Iterator[bool]:
        """Holds `size` bytes while entered, and yields True; yields False if there is no room."""
        reserved = self.reserve(size)
        try:
            yield reserved
        finally:
            if reserved:
                self.release(size)

    def refused(self, limit: str, peer: str, method: str, **details: object) -> None:
        """Counts a refusal, and logs it unless one by the same limit was logged recently."""
        self._refusals.labels(limit).inc()
        self.on_refused(peer)
        times = self._log_throttle.times(limit, time.monotonic())
        if times:
            log.warning("request_refused", limit=limit, peer=peer, method=method[:128], times=times, **details)
