"""The `[collectives]` section.

Covers the time that ranks wait for each other, and the addresses at which daemons of a group connect.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from hearthd.front.addresses import parse_address
from hearthd.front.config.peer_targets import AUTO, MAX_PEERS, parse_peer
from hearthd.front.config.section import ListenAddress, Seconds, Section

MAX_ADVERTISED = 16


class CollectiveSettings(Section):
    """Settings of collectives over devices. `listen`, `advertise` and `peers` are for groups over several daemons."""

    timeout: Seconds = Field(default=30.0, gt=0)
    """Time limit for all ranks to present an operation."""
    listen: ListenAddress = "127.0.0.1:0"
    """Address for other daemons, opened for the first group over daemons; "": this daemon takes part in no such
    groups.
    """
    advertise: tuple[str, ...] = ()
    """Addresses, "host:port", at which other daemons reach this one; none: `listen`."""
    peers: tuple[str, ...] = (AUTO,)
    """Hosts and networks to which this daemon may connect because a ticket names them, such as "gpu1:7424" or
    "10.0.0.0/24"; "auto": loopback and private networks, depending on who may reach this daemon.
    """

    @field_validator("advertise", "peers", mode="before")
    @classmethod
    def _parse_list(cls, value: Any) -> Any:
        if isinstance(value, str):  # a value from the environment
            return tuple(part.strip(" \"'") for part in value.strip("[] ").split(",") if part.strip())
        return value

    @field_validator("advertise")
    @classmethod
    def _check_advertised(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > MAX_ADVERTISED:
            raise ValueError(f"{len(value)} addresses; the maximum is {MAX_ADVERTISED}")
        for text in value:
            address = parse_address(text)
            if not address.port or address.wildcard:
                raise ValueError(f'{text!r} cannot be connected to; write a host and a port, e.g. "gpu1:7424"')
        return value

    @field_validator("peers")
    @classmethod
    def _check_peers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > MAX_PEERS:
            raise ValueError(f"{len(value)} peers; the maximum is {MAX_PEERS}, and a network counts as one")
        for text in value:
            if text != AUTO:
                parse_peer(text)
        return value

    @model_validator(mode="after")
    def _check_advertised_port(self) -> CollectiveSettings:
        if self.advertise and (not self.listen or not parse_address(self.listen).port):
            raise ValueError(
                f"advertise names the addresses of this daemon, but listen = {self.listen!r} has no fixed port; "
                'set one, e.g. listen = "0.0.0.0:7424"'
            )
        return self


def refuse_clear_tickets(section: CollectiveSettings, *, tls: bool, insecure: bool) -> None:
    """Raises `ValueError` if the tickets of groups would be sent unencrypted to other hosts.

    Peers authenticate with a group's ticket, so tenants are not necessary, but only TLS keeps the ticket secret.
    """
    text = section.listen
    if text and not parse_address(text).loopback and not tls and not insecure:
        raise ValueError(
            f"collectives.listen = {text!r} is reachable from other hosts, and the tickets of groups would be sent "
            "unencrypted: this needs TLS ([tls] certificate, key); set it, listen on 127.0.0.1, or set insecure = true "
            "on a network that only trusted users can reach"
        )
