"""All connection limits of one daemon, created from its configuration.

They are a limiter for each listener that accepts connections itself, the guard of gRPC's listeners, and the methods
that report credentials to both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
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

_CURRENT_CALL: ContextVar[ConnectionSlot | str] = ContextVar("current_call", default="")
"""The connection of the running call. Code that accepts or refuses the credential of the call thus needs no reference
to the call."""
_PROBES = 16
"""Number of HTTP connections beyond the limits, for probes."""


def _stranger_limit(max_connections: int, configured: int) -> int:
    """Returns the limit on strangers: `configured`, or half of `max_connections` if that is less. At least 1."""
    return max(1, min(configured, max_connections // 2))


def enter_call(context: Any) -> None:
    """Records the connection of the call that begins in this task."""
    slot = getattr(context, "slot", None)
    _CURRENT_CALL.set(context.peer() if slot is None else slot)


def current_connection() -> ConnectionSlot | str:
    """Returns the slot of the running call if it is a framed call, and gRPC's name of its peer otherwise.

    Empty outside of calls. The call itself is never returned, because tasks that the call starts would keep it alive.
    """
    return _CURRENT_CALL.get()


class ConnectionLimits:
    """The connection limits of a daemon. Belongs to the event loop."""

    def __init__(
        self,
        settings: ConnectionSettings,
        registry: CollectorRegistry | None = None,
        requires_credential: Callable[[], bool] = lambda: False,
    ) -> None:
        """Creates the limits.

        `requires_credential` returns True if calls must show a credential, which is the case if there are tenants.
        """
        self.settings = settings
        self.counts = ConnectionCounts(registry)
        limits = UnauthenticatedLimits(
            settings.max_strangers,
            settings.max_strangers_per_address,
            settings.handshake_timeout,
            settings.stranger_bytes,
        )
        self.guard = ConnectionGuard(limits, self.counts, requires_credential)
        self.max_grpc_connections = settings.max
        """Maximum number of connections of each gRPC listener."""
        self.limiters: dict[str, ConnectionLimiter] = {}
        """The limiters that were created, by listener."""
        self.budget: descriptors.DescriptorBudget | None = None
        """The division of the limit on open files. None: `fit` was not called."""

    def limiter(self, listener: str) -> ConnectionLimiter:
        """Creates the limiter of a listener, by its name in metrics: call, lanes, stripes, identity or peers."""
        # These connections show a credential within a second or are closed, and clients open several at the same time.
        limiter = ConnectionLimiter(
            listener,
            self.counts,
            max_connections=self.settings.max,
            max_strangers=2 * self.settings.max_strangers,
            max_strangers_per_peer=self.settings.max_strangers,
            timeout=self.settings.handshake_timeout,
        )
        return self._add(limiter)

    def http(self, settings: HttpSettings) -> ConnectionLimiter:
        """Creates the limiter of the HTTP listener. An HTTP connection is a stranger between two requests."""
        limiter = ConnectionLimiter(
            "http",
            self.counts,
            max_connections=settings.max_connections,
            max_strangers=settings.max_connections,
            max_strangers_per_peer=settings.max_connections_per_address,
            max_per_peer=settings.max_connections_per_address,
            timeout=settings.header_timeout,
            reserve=_PROBES,
        )
        return self._add(limiter)

    def _add(self, limiter: ConnectionLimiter) -> ConnectionLimiter:
        self.limiters[limiter.listener] = limiter
        self._clamp(limiter)
        return limiter

    def fit(self, devices: int) -> None:
        """Raises the limit on open files and reduces all limits to fit.

        Logs a warning if the limit is too low. Must be called before the listeners are opened. `devices`: maximum
        number of device processes.
        """
        limit = descriptors.raise_limit()
        self.budget = descriptors.budget(limit, descriptors.used(), devices, self.settings.requested)
        for limiter in self.limiters.values():
            self._clamp(limiter)
        self.max_grpc_connections = min(self.settings.max, self.share("grpc"))
        self.guard.limits = replace(
            self.guard.limits,
            max_strangers=_stranger_limit(self.max_grpc_connections, self.settings.max_strangers),
            max_strangers_per_peer=_stranger_limit(self.max_grpc_connections, self.settings.max_strangers_per_address),
        )
        if self.budget.is_too_low:
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
        limiter.max_connections = min(limiter.max_connections, self.share(limiter.listener))
        if limiter.reserve:  # probes arrive as strangers, and each displaces another stranger
            limiter.max_strangers = limiter.max_connections
            limiter.reserve = min(limiter.max_connections, limiter.reserve)
        else:
            limiter.max_strangers = _stranger_limit(limiter.max_connections, limiter.max_strangers)
        limiter.max_strangers_per_peer = min(limiter.max_strangers, limiter.max_strangers_per_peer)

    def grpc_options(self) -> tuple[tuple[str, int], ...]:
        """Returns options of the gRPC server.

        The time limit of the handshake includes TLS and the client's first SETTINGS frame.
        """
        return (
            ("grpc.server_handshake_timeout_ms", int(self.settings.handshake_timeout * 1000)),
            ("grpc.max_allowed_incoming_connections", self.max_grpc_connections),
        )

    # ---- reports about calls ----

    def note_credential(self, caller: Any) -> None:
        """Notes that the running call has shown the credential of `caller`, whose `uid` is set for a user of this host.

        None: no credential, or a wrong one.
        """
        connection = current_connection()
        if isinstance(connection, ConnectionSlot):
            if caller is not None:
                connection.mark_authenticated()
        elif connection and caller is not None:
            self.guard.note_credential(connection, caller.uid)
        elif connection:
            self.guard.charge(connection, FAILED_COST)

    def note_probe(self) -> None:
        """Notes that the running call needs no credential."""
        connection = current_connection()
        if isinstance(connection, str) and connection:
            self.guard.charge(connection)

    def note_malformed(self, peer: str) -> None:
        """Notes that a request from `peer` (gRPC's name) was refused because of its form."""
        self.guard.charge(peer, UNKNOWN_COST)
