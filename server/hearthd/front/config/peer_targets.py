"""Where this daemon connects to because a ticket says so: `[collectives] peers`.

A ticket comes from a session and names whatever its client likes. Without a limit everybody with the right
`collective` could have the daemon knock at the ports of its host and of the network that it stands in.

`"auto"`, the default, gives callers nothing that they could not reach without the daemon:

- Only its own host reaches the daemon (`listen.grpc` on loopback, or off): loopback and private networks. Its callers
  are on this host and may connect there themselves. Where they may not (a container that has only the Unix socket),
  set `peers`.
- Other hosts reach it, without authentication (`insecure`): private networks. Its callers are trusted people of such a
  network; loopback, where services often ask nobody who it is, is not theirs.
- Other hosts reach it, and it has tenants: nothing. Tenants may be strangers and come from anywhere, so that the
  operator says which daemons there are.

Link-local addresses are in none of these: clouds hand out their hosts' credentials there. A name is looked up once,
each address is checked, and the checked address is what is connected to: a name that means something else a moment
later changes nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, NamedTuple

from hearthd.front.addresses import Address, parse_address

if TYPE_CHECKING:
    from hearthd.front.config.settings import Config

AUTO = "auto"
MAX_PEERS = 256
MAX_FOUND = 8
"""Addresses of one name that are looked at."""
_LOOKUPS = 2
"""Names that are looked up at once: slow ones hold up those of other tickets, and nothing else of the daemon."""
_NAME = re.compile(r"(?=.*[a-z])[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?", re.IGNORECASE)
"""With a letter: `getaddrinfo` reads `127.1` as an address."""

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

LOOPBACK: tuple[IpNetwork, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
PRIVATE: tuple[IpNetwork, ...] = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
METADATA: tuple[IpNetwork, ...] = (ip_network("fd00:ec2::/32"),)
"""Private by its number, but where a cloud's hosts find their credentials."""


class Entry(NamedTuple):
    """One of `peers`."""

    name: str
    """In lower case; empty where it is a network."""
    network: IpNetwork | None
    port: int
    """0: any."""


def parse_peer(text: str) -> Entry:
    """A name, an address or a network in CIDR; the first two may have a port. Raises `ValueError`."""
    if "/" in text:
        try:
            return Entry("", ip_network(text), 0)
        except ValueError as error:
            raise ValueError(f"{text!r} is no network: {error}") from None
    try:
        return Entry("", ip_network(ip_address(text.strip("[]"))), 0)
    except ValueError:
        host, port = text, 0
    if ":" in text:
        host, port = parse_address(text)
        if not port or Address(host, port).wildcard:
            raise ValueError(f'{text!r} is nowhere to connect to; write a host and a port, e.g. "gpu1:7424"')
        try:
            return Entry("", ip_network(ip_address(host)), port)
        except ValueError:
            pass
    if not _NAME.fullmatch(host.rstrip(".")):
        raise ValueError(f'{text!r} is no peer; write e.g. "gpu1", "gpu1:7424", "10.0.0.7", "10.0.0.0/24" or "auto"')
    return Entry(_plain(host), None, port)


class PeerTargets:
    """Belongs to the event loop; `close` it."""

    def __init__(self, peers: Sequence[str], auto: Sequence[IpNetwork] = ()) -> None:
        """`auto`: the networks that `"auto"` stands for."""
        self.change(peers, auto)
        self._pool = ThreadPoolExecutor(_LOOKUPS, "peer-names")

    def change(self, peers: Sequence[str], auto: Sequence[IpNetwork] = ()) -> None:
        """Others from now on."""
        self._entries = [parse_peer(text) for text in peers if text != AUTO]
        self._auto = tuple(auto) if AUTO in peers else ()

    @classmethod
    def of(cls, config: Config) -> PeerTargets:
        """As a daemon of this configuration has it."""
        return cls(config.collectives.peers, auto_networks(config))

    async def find(self, address: Address) -> list[Address]:
        """The addresses, by number, that it stands for and that may be connected to. Empty: none, or its name is not
        known; a session must not learn which, or it would read the names of the daemon's network."""
        found = [each for each in await self._lookup(address.host) if not (each.is_unspecified or each.is_multicast)]
        entries = [entry for entry in self._entries if entry.port in (0, address.port)]
        allowed = [each for each in found if self._auto_allows(each) or _named(each, address, entries)]
        if len(allowed) < len(found):
            names = sorted({entry.name for entry in entries if entry.name})
            meant = {each for known in await asyncio.gather(*map(self._lookup, names)) for each in known}
            allowed = [each for each in found if each in allowed or each in meant]
        return [Address(str(each), address.port) for each in allowed]

    def _auto_allows(self, found: IpAddress) -> bool:
        return any(found in net for net in self._auto) and not any(found in net for net in METADATA)

    async def _lookup(self, host: str) -> list[IpAddress]:
        try:
            return [_unmapped(ip_address(host))]
        except ValueError:
            pass
        if not _NAME.fullmatch(host.rstrip(".")):
            return []
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._pool, _resolved, host)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: it is closed
            return []
        return [_unmapped(ip_address(each)) for each in found[:MAX_FOUND]]

    def close(self) -> None:
        """Looks up nothing any more, and waits for nothing."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def auto_networks(config: Config) -> tuple[IpNetwork, ...]:
    """What `"auto"` stands for; the reasons are at the top."""
    exposed = [text for text in (config.listen.grpc, config.listen.lanes) if text and not parse_address(text).loopback]
    if not exposed:
        return LOOPBACK + PRIVATE
    return () if config.tenants else PRIVATE


def _named(found: IpAddress, asked: Address, entries: Sequence[Entry]) -> bool:
    """Whether `peers` has it as a network, or by the name that was asked for; that may have other addresses when it is
    looked up again."""
    name = _plain(asked.host)
    return any(found in entry.network if entry.network is not None else entry.name == name for entry in entries)


def _resolved(host: str) -> list[str]:
    """Numbers, each once, in the order in which they are best tried."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


def _unmapped(address: IpAddress) -> IpAddress:
    """`::ffff:127.0.0.1` is where `127.0.0.1` is."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _plain(name: str) -> str:
    return name.rstrip(".").lower()
