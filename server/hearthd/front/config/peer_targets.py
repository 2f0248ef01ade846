"""Entries of `[collectives] peers`: destinations to which this daemon may connect because a ticket names them.

A ticket comes from a session and names whatever its client likes. Without a limit every tenant with the right
`collective` could have the daemon knock at the ports of its host and of the network that it stands in.

`"auto"`, the default, gives callers nothing that they could not reach without the daemon:

- Only its own host reaches the daemon (`listen.grpc` on loopback, or off): loopback and private networks. Its callers
  are on this host and may connect there themselves. Where they may not (a container that has only the Unix socket),
  set `peers`.
- Other hosts reach it, without authentication (`insecure`): private networks. Its callers are trusted people of such a
  network; loopback, where services often ask for no credential, is not theirs.
- Other hosts reach it, and it has tenants: nothing. Tenants may be strangers and come from anywhere, so that the
  operator says which daemons there are.

Link-local addresses are in none of these: clouds hand out their hosts' credentials there. See
`hearthd.front.peers.targets` for how an address is checked.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from hearthd.front.addresses import Address, parse_address

AUTO = "auto"
MAX_PEERS = 256
NAME = re.compile(r"(?=.*[a-z])[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?", re.IGNORECASE)
"""Host name with a letter: `getaddrinfo` reads `127.1` as an address."""

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

LOOPBACK: tuple[IpNetwork, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
PRIVATE: tuple[IpNetwork, ...] = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
METADATA: tuple[IpNetwork, ...] = (ip_network("fd00:ec2::/32"),)
"""Private by its number, but where a cloud's hosts find their credentials."""


class PeerTarget(NamedTuple):
    """An entry of `peers`."""

    name: str
    """Name in lower case; empty for a network."""
    network: IpNetwork | None
    port: int
    """0: any."""


def parse_peer(text: str) -> PeerTarget:
    """A name, an address or a network in CIDR; the first two may have a port. Raises `ValueError`."""
    if "/" in text:
        try:
            return PeerTarget("", ip_network(text), 0)
        except ValueError as error:
            raise ValueError(f"{text!r} is no network: {error}") from None
    try:
        return PeerTarget("", ip_network(ip_address(text.strip("[]"))), 0)
    except ValueError:
        host, port = text, 0
    if ":" in text:
        host, port = parse_address(text)
        if not port or Address(host, port).wildcard:
            raise ValueError(f'{text!r} is nowhere to connect to; write a host and a port, e.g. "gpu1:7424"')
        try:
            return PeerTarget("", ip_network(ip_address(host)), port)
        except ValueError:
            pass
    if not NAME.fullmatch(host.rstrip(".")):
        raise ValueError(f'{text!r} is no peer; write e.g. "gpu1", "gpu1:7424", "10.0.0.7", "10.0.0.0/24" or "auto"')
    return PeerTarget(plain(host), None, port)


def plain(name: str) -> str:
    """The name as entries have it."""
    return name.rstrip(".").lower()
