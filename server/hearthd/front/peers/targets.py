"""Checks of the addresses that tickets name, against `[collectives] peers` (`hearthd.front.config.peer_targets`).

A name is looked up once, each address is checked, and the connection goes to the checked address: a name that resolves
to something else a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv6Address, ip_address

from hearthd.front.addresses import Address, parse_address
from hearthd.front.config.peer_targets import (
    AUTO,
    LOOPBACK,
    METADATA,
    NAME,
    PRIVATE,
    IpAddress,
    IpNetwork,
    PeerTarget,
    parse_peer,
    plain,
)
from hearthd.front.config.settings import Config

MAX_FOUND = 8
"""Largest number of addresses of one name that are checked."""
_LOOKUPS = 2
"""Names that are looked up at once. Slow lookups delay those of other tickets, and nothing else of the daemon."""


class PeerTargets:
    """Belongs to the event loop; `close` it."""

    def __init__(self, peers: Sequence[str], auto: Sequence[IpNetwork] = ()) -> None:
        """`auto`: the networks that `"auto"` stands for."""
        self.change(peers, auto)
        self._pool = ThreadPoolExecutor(_LOOKUPS, "peer-names")

    def change(self, peers: Sequence[str], auto: Sequence[IpNetwork] = ()) -> None:
        """Replaces the targets from now on."""
        self._entries = [parse_peer(text) for text in peers if text != AUTO]
        self._auto = tuple(auto) if AUTO in peers else ()

    @classmethod
    def of(cls, config: Config) -> PeerTargets:
        """Returns the targets of a daemon with this configuration."""
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
        if not NAME.fullmatch(host.rstrip(".")):
            return []
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._pool, _resolved, host)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: it is closed
            return []
        return [_unmapped(ip_address(each)) for each in found[:MAX_FOUND]]

    def close(self) -> None:
        """Stops looking names up, and waits for nothing."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def auto_networks(config: Config) -> tuple[IpNetwork, ...]:
    """Returns the networks that `"auto"` stands for; the module's header has the reasons."""
    exposed = [text for text in (config.listen.grpc, config.listen.lanes) if text and not parse_address(text).loopback]
    if not exposed:
        return LOOPBACK + PRIVATE
    return () if config.tenants else PRIVATE


def _named(found: IpAddress, asked: Address, entries: Sequence[PeerTarget]) -> bool:
    """Returns True if `peers` has the address as a network, or by the name that was asked for; that may have other
    addresses when it is looked up again."""
    name = plain(asked.host)
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
