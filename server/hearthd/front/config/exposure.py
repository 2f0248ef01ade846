"""Finds listeners on which every user of the host, or every host, may do everything. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearthd.front.addresses import parse_address

if TYPE_CHECKING:
    from hearthd.front.config.settings import Config

FIX = (
    'configure [[tenants]], or disable TCP: listen.grpc = "" and listen.lanes = "", which leaves only the Unix '
    "socket, for the daemon's user"
)
UNIX = "unix"
"""The address that denotes the Unix socket."""


def unguarded_address(config: Config) -> str:
    """Returns the address of a listener that needs no credential, if the daemon has no tenants. Empty: there is none.

    The address is that of gRPC over TCP, or "unix" if all users may connect to the Unix socket.
    """
    if config.tenants:
        return ""
    return config.listen.grpc or (UNIX if config.listen.unix_access == "all" and config.unix_path else "")


def reachable_by(address: str) -> str:
    """Returns a description of the users who can reach an address."""
    if address == UNIX or parse_address(address).loopback:
        return "every user of this host"
    return "every host that can reach this one"
