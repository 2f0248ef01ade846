"""All connection limits of one daemon, made from its configuration: a limiter for each listener that accepts by itself,
the guard of gRPC's, and what reports credentials to both."""

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
"""The connection of the running call: code that accepts or refuses its credential need not be passed the call."""
_PROBES = 16
"""Connections of HTTP beyond its limits, for probes."""


def _half(most: int, wanted: int) -> int:
    """Returns the limit on strangers among `most` connections: `wanted`, or half of them."""
    return max(1, min(wanted, most // 2))


def enter_call(context: Any) -> None:
    """A call begins in this task."""
    slot = getattr(context, "slot", None)
    _CALLING.set(context.peer() if slot is None else slot)


def current_call() -> ConnectionSlot | str:
    """The slot of a call that came as frames, gRPC's name of the peer otherwise; empty outside of calls. Never the call
    itself: tasks that it starts would keep it alive."""
    return _CALLING.get()


class ConnectionLimits:
    """Belongs to the event loop."""

    def __init__(
        self,
        settings: ConnectionSettings,
        registry: CollectorRegistry | None = None,
        guarded: Callable[[], bool] = lambda: False,
    ) -> None:
        """`guarded`: whether there are tenants, so that calls have to show credentials."""
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
        """Connections of each of gRPC's listeners."""
        self._limiters: dict[str, ConnectionLimiter] = {}
        self.budget: descriptors.DescriptorBudget | None = None
        """The division of the limit on open files; None before `fit`."""

    def limiter(self, listener: str) -> ConnectionLimiter:
        """The limiter of a listener, by its name in metrics: call, lanes, stripes, identity, peers."""
        make = partial(
            ConnectionLimiter,
            # These show a credential within a second or are closed, and clients open several at once.
            most=self.settings.max,
            most_strangers=2 * self.settings.max_strangers,
            most_per_peer=self.settings.max_strangers,
            timeout=self.settings.handshake_timeout,
        )
        return self._limiter(listener, make)

    def http(self, settings: HttpSettings) -> ConnectionLimiter:
        """The limiter of the HTTP listener, where a connection is a stranger between two requests."""
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
            self._cut(found)
        return found

    def fit(self, devices: int) -> None:
        """Raises the limit on open files and cuts all limits to it; logs a warning where that is much. Call it before
        the listeners are opened. `devices`: device processes that there may be."""
        limit = descriptors.raise_limit()
        self.budget = descriptors.budget(limit, descriptors.used(), devices, self.settings.asked)
        for limiter in self._limiters.values():
            self._cut(limiter)
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
        """The most connections that the limit on open files leaves a listener."""
        return self.budget.shares.get(listener, self.settings.max) if self.budget is not None else self.settings.max

    def _cut(self, limiter: ConnectionLimiter) -> None:
        limiter.most = min(limiter.most, self.share(limiter.listener))
        if limiter.reserve:  # for probes, which come as strangers and each displace another
            limiter.most_strangers, limiter.reserve = limiter.most, min(limiter.most, limiter.reserve)
        else:
            limiter.most_strangers = _half(limiter.most, limiter.most_strangers)
        limiter.most_per_peer = min(limiter.most_strangers, limiter.most_per_peer)

    def grpc_options(self) -> tuple[tuple[str, int], ...]:
        """Options of the gRPC server. The handshake's deadline covers TLS and the client's first SETTINGS."""
        return (
            ("grpc.server_handshake_timeout_ms", int(self.settings.handshake_timeout * 1000)),
            ("grpc.max_allowed_incoming_connections", self.most_grpc),
        )

    # ---- what calls show ----

    def shown(self, caller: Any) -> None:
        """Notes that the running call has shown the credential of `caller`, whose `uid` is set for a user of this host;
        None: no credential, or a wrong one."""
        calling = current_call()
        if isinstance(calling, ConnectionSlot):
            if caller is not None:
                calling.prove()
        elif calling and caller is not None:
            self.guard.accepted(calling, caller.uid)
        elif calling:
            self.guard.spent(calling, FAILED_COST)

    def probed(self) -> None:
        """The running call asks for what needs no credential."""
        calling = current_call()
        if isinstance(calling, str) and calling:
            self.guard.spent(calling)

    def refused(self, peer: str) -> None:
        """A request from `peer`, gRPC's name, was refused for its form."""
        self.guard.spent(peer, UNKNOWN_COST)
