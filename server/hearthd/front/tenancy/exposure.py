"""Listeners on which every login of the host, or every host, may do everything. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearthd.front.addresses import parse_address

if TYPE_CHECKING:
    from hearthd.front.settings import Config

FIX = (
    'configure [[tenants]], or leave TCP out: listen.grpc = "" and listen.lanes = "", which leaves the Unix socket, '
    "for the daemon's own user alone"
)


def unguarded(config: Config) -> str:
    """The address of gRPC over TCP of a daemon without tenants, which asks nobody for a credential; empty: none. The
    Unix socket of such a daemon has mode 0600."""
    return "" if config.tenants else config.listen.grpc


def who(address: str) -> str:
    """Everybody who reaches an address."""
    return "every login of this host" if parse_address(address).loopback else "everybody who reaches this host"
