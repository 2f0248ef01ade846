"""The account of bytes held for callers without an accepted credential, and counts of what was refused.

The total has a limit. gRPC tells no number of the bytes that it holds for a call that was not asked for its message;
such a call counts with the most that they can be, `MAX_STRANGER_BYTES`. Belongs to the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

log = structlog.get_logger("hearthd.admission")

_LOG_EVERY = 10.0
"""Seconds between two lines of the log about one limit."""


class Account:
    """Of one daemon."""

    def __init__(self, most: int, registry: CollectorRegistry) -> None:
        self.most = most
        self.held = 0
        """Bytes."""
        self.on_refused: Callable[[str], None] = lambda peer: None
        """Told the peer, gRPC's name, of each refusal."""
        self._logged: dict[str, tuple[float, int]] = {}
        Gauge(
            "hearth_admission_unauthenticated_bytes",
            "Bytes of requests held for callers without an accepted credential, at most.",
            registry=registry,
        ).set_function(lambda: self.held)
        self._refusals = Counter(
            "hearth_admission_refusals", "Requests that were refused before they were decoded, by limit.", ("limit",),
            registry=registry,
        )  # fmt: skip

    def take(self, size: int) -> bool:
        """Whether so many bytes more may be held; they are from then on, until `give`."""
        if self.held + size > self.most:
            return False
        self.held += size
        return True

    def give(self, size: int) -> None:
        """They are held no more."""
        self.held -= size

    @contextmanager
    def holding(self, size: int) -> Iterator[bool]:
        """Takes bytes for as long as it is open, where they are to be had."""
        taken = self.take(size)
        try:
            yield taken
        finally:
            if taken:
                self.give(size)

    def refused(self, limit: str, peer: str, method: str, **details: object) -> None:
        """Counts a refusal, and logs it unless one by the same limit was logged lately."""
        self._refusals.labels(limit).inc()
        self.on_refused(peer)
        now = time.monotonic()
        last, unlogged = self._logged.get(limit, (-_LOG_EVERY, 0))
        if now - last < _LOG_EVERY:
            self._logged[limit] = (last, unlogged + 1)
            return
        self._logged[limit] = (now, 0)
        log.warning("request_refused", limit=limit, peer=peer, method=method[:128], unlogged=unlogged, **details)
