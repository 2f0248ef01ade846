"""All connection limits of one daemon, created from its configuration.

They are a limiter for each listener that accepts connections itself, the guard of gRPC's listeners, and the methods
that report credentials to both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from hearthd.front.config.front_limits import ConnectionSettings
from hearthd.front.config.http import HttpSettings
from hearthd.front.connections import descriptors
from hearthd.front.connections.counts import ConnectionCounts
from hearthd.front.connections.guard import FAILED_COST, UNKNOWN_COST, ConnectionGuard
from hearthd.front.connections.limiter import ConnectionLimiter, ConnectionSlot
from hearthd.front.connections.strangers import UnauthenticatedLimits

log = structlog.get_logger("hearthd.connections")

_CALLING: ContextVar[ConnectionSlot | str] = ContextVar("calling", default="")
"""The connection of the running call. Code that accepts or refuses the credential of the call thus needs no reference
to the call."""
_PROBES = 16
"""Number of HTTP connections beyond the limits, for probes."""


def _half(most: int, wanted: int) -> int:
    """Returns the limit on strangers among `most` connections: `wanted`, or half of them."""
    return max(1, min(wanted, most // 2))


def enter_call(context: Any) -> None:
    """Records the connection of the call that begins in this task."""
    slot = getattr(context, "slot", None)
    _CALLING.set(context.peer() if slot is None else slot)


def current_call() -> ConnectionSlot | str:
    """Returns the slot of a framed call, or gRPC's name of the peer for other calls.

    Empty outside of calls. The call itself is never returned, because tasks that the call starts would keep it alive.
    """
    return _CALLING.get()


class ConnectionLimits:
    """The connection limits of a daemon. Belongs to the event loop."""

    def __init__(
        self,
        settings: ConnectionSettings,
        registry: CollectorRegistry | None = None,
        guarded: Callable[[], bool] = lambda: False,
    ) -> None:
        """Creates the limits. `guarded` returns True if there are tenants, so that calls have to show credentials."""
        self.settings = settings
        self.counts = ConnectionCounts(registry)
        bounds = UnauthenticatedLimits(
            settings.max_strangers,
            settings.max_strangers_per_address,
            settings.handshake_timeout,
            settings.stranger_bytes,
        )
        self.guard = ConnectionGuard(bounds, self.counts, guarded)
        self.most_grpc = settings.max
        """Maximum number of connections of each gRPC listener."""
        self._limiters: dict[str, ConnectionLimiter] = {}
        self.budget: descriptors.DescriptorBudget | None = None
        """The division of the limit on open files. None: `fit` was not called."""

    def limiter(self, listener: str) -> ConnectionLimiter:
        """Returns the limiter of a listener, by its name in metrics: call, lanes, stripes, identity or peers."""
        make = partial(
            ConnectionLimiter,
            # These connections show a credential within a second or are closed, and clients open several at once.
            most=self.settings.max,
            most_strangers=2 * self.settings.max_strangers,
            most_per_peer=self.settings.max_strangers,
            timeout=self.settings.handshake_timeout,
        )
        return self._limiter(listener, make)

    def http(self, settings: HttpSettings) -> ConnectionLimiter:
        """Returns the limiter of the HTTP listener. An HTTP connection is a stranger between two requests."""
        make = partial(
            ConnectionLimiter,
            most=settings.max_connections,
            most_strangers=settings.max_connections,
            most_per_peer=settings.max_connections_per_address,
            most_of_peer=settings.max_connections_per_address,
            timeout=settings.header_timeout,
            reserve=_PROBES,
        )
        return self._limiter("http", make)

    def _limiter(self, listener: str, make: Callable[[str, ConnectionCounts], ConnectionLimiter]) -> ConnectionLimiter:
        found = self._limiters.get(listener)
        if found is None:
            found = self._limiters[listener] = make(listener, self.counts)
            self._clamp(found)
        return found

    def fit(self, devices: int) -> None:
        """Raises the limit on open files and reduces all limits to fit.

        Logs a warning if the limit is too low. Must be called before the listeners are opened. `devices`: maximum
        number of device processes.
        """
        limit = descriptors.raise_limit()
        self.budget = descriptors.budget(limit, descriptors.used(), devices, self.settings.requested)
        for limiter in self._limiters.values():
            self._clamp(limiter)
        self.most_grpc = min(self.settings.max, self.share("grpc"))
        self.guard.bounds = replace(
            self.guard.bounds,
            most=_half(self.most_grpc, self.settings.max_strangers),
            most_per_peer=_half(self.most_grpc, self.settings.max_strangers_per_address),
        )
        if self.budget.small:
            log.warning(
                "few_descriptors",
                limit=limit,
                needed=self.budget.needed,
                connections=self.budget.shares,
                fix="Raise the limit on open files: LimitNOFILE=65536 in the unit, or ulimit -n.",
            )

    def share(self, listener: str) -> int:
        """Returns the maximum number of connections that the limit on open files leaves a listener."""
        return self.budget.shares.get(listener, self.settings.max) if self.budget is not None else self.settings.max

    def _clamp(self, limiter: ConnectionLimiter) -> None:
        limiter.most = min(limiter.most, self.share(limiter.listener))
        if limiter.reserve:  # probes arrive as strangers, and each displaces another stranger
            limiter.most_strangers, limiter.reserve = limiter.most, min(limiter.most, limiter.reserve)
        else:
            limiter.most_strangers = _half(limiter.most, limiter.most_strangers)
        limiter.most_per_peer = min(limiter.most_strangers, limiter.most_per_peer)

    def grpc_options(self) -> tuple[tuple[str, int], ...]:
        """Returns options of the gRPC server.

        The time limit of the handshake includes TLS and the client's first SETTINGS frame.
        """
        return (
            ("grpc.server_handshake_timeout_ms", int(self.settings.handshake_timeout * 1000)),
            ("grpc.max_allowed_incoming_connections", self.most_grpc),
        )

    # ---- reports about calls ----

    def note_credential(self, caller: Any) -> None:
        """Notes that the running call has shown the credential of `caller`, whose `uid` is set for a user of this host.

        None: no credential, or a wrong one.
        """
        calling = current_call()
        if isinstance(calling, ConnectionSlot):
            if caller is not None:
                calling.mark_authenticated()
        elif calling and caller is not None:
            self.guard.accepted(calling, caller.uid)
        elif calling:
            self.guard.spent(calling, FAILED_COST)

    def probed(self) -> None:
        """Notes that the running call asks for something that needs no credential."""
        calling = current_call()
        if isinstance(calling, str) and calling:
            self.guard.spent(calling)

    def refused(self, peer: str) -> None:
        """Notes that a request from `peer` (gRPC's name) was refused because of its form."""
        self.guard.spent(peer, UNKNOWN_COST)
