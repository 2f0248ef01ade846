"""Entries of `[collectives] peers`: destinations to which this daemon may connect because a ticket names them.

A ticket comes from a session and can name any address. Without a limit, a tenant with the right `collective` could use
the daemon to probe the ports of its host and of its network.

`"auto"`, the default, gives callers access to nothing that they could not reach without the daemon:

- Only this host can reach the daemon (`listen.grpc` on loopback, or off): loopback and private networks. The callers
  are on this host and can connect there themselves. If they cannot (a container that has only the Unix socket), set
  `peers`.
- Other hosts can reach it without authentication (`insecure`): private networks. The callers are trusted users of such
  a network. Loopback, where services often ask for no credential, is excluded.
- Other hosts can reach it, and it has tenants: nothing. Tenants may be untrusted and connect from anywhere, so the
  operator must list the daemons.

Link-local addresses are never included, because clouds provide the credentials of hosts there. See
`hearthd.front.peers.targets` for the check of an address.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import NamedTuple

from hearthd.front.addresses import Address, parse_address, to_ip

AUTO = "auto"
MAX_PEERS = 256
NAME = re.compile(r"(?=.*[a-z])[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?", re.IGNORECASE)
"""A host name with at least one letter, because `getaddrinfo` reads `127.1` as an address."""

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

LOOPBACK: tuple[IpNetwork, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
PRIVATE: tuple[IpNetwork, ...] = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
METADATA: tuple[IpNetwork, ...] = (ip_network("fd00:ec2::/32"),)
"""Networks in the private address ranges at which a cloud provides the credentials of its hosts."""


class PeerTarget(NamedTuple):
    """An entry of `peers`."""

    name: str
    """The name in lower case. Empty for a network."""
    network: IpNetwork | None
    port: int
    """The port. 0: any port."""


def parse_peer(text: str) -> PeerTarget:
    """Parses a name, an address or a network in CIDR notation; the first two may have a port. Raises `ValueError`."""
    if "/" in text:
        try:
            return PeerTarget("", ip_network(text), 0)
        except ValueError as error:
            raise ValueError(f"{text!r} is not a network: {error}") from None
    ip, host, port = to_ip(text.strip("[]")), text, 0
    if ip is None and ":" in text:
        host, port = parse_address(text)
        if not port or Address(host, port).wildcard:
            raise ValueError(f'{text!r} cannot be connected to; write a host and a port, e.g. "gpu1:7424"')
        ip = to_ip(host)
    if ip is not None:
        return PeerTarget("", ip_network(ip), port)
    if not NAME.fullmatch(host.rstrip(".")):
        raise ValueError(f'{text!r} is not a peer; write e.g. "gpu1", "gpu1:7424", "10.0.0.7", "10.0.0.0/24" or "auto"')
    return PeerTarget(plain(host), None, port)


def plain(name: str) -> str:
    """Returns the name in the form that entries use."""
    return name.rstrip(".").lower()
