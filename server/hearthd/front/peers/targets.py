"""Checks the addresses in tickets against `[collectives] peers` (`hearthd.front.config.peer_targets`).

A name is looked up once, each of its addresses is checked, and the connection goes to the checked address. A name that
resolves to another address a moment later therefore makes no difference.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv6Address, ip_address

from hearthd.front.addresses import Address, to_ip
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

MAX_RESOLVED = 8
"""Maximum number of addresses of one name that are checked."""
_LOOKUPS = 2
"""Maximum number of concurrent name lookups. Slow lookups delay those of other tickets, and nothing else in the
daemon."""


class PeerTargets:
    """The peers to which this daemon may connect. Belongs to the event loop. Must be closed."""

    def __init__(self, peers: Sequence[str], auto: Sequence[IpNetwork] = ()) -> None:
        """Creates the targets. `auto`: the networks that `"auto"` means."""
        self.change(peers, auto)
        self._pool = ThreadPoolExecutor(_LOOKUPS, "peer-names")

    def change(self, peers: Sequence[str], auto: Sequence[IpNetwork] = ()) -> None:
        """Replaces the targets."""
        self._entries = [parse_peer(text) for text in peers if text != AUTO]
        self._auto = tuple(auto) if AUTO in peers else ()

    @classmethod
    def of(cls, config: Config) -> PeerTargets:
        """Returns the targets of a daemon with this configuration."""
        return cls(config.collectives.peers, auto_networks(config))

    async def resolve(self, address: Address) -> list[Address]:
        """Returns the numeric addresses of `address` to which this daemon may connect.

        Empty: there are none, or the name is unknown. A session must not learn which of the two applies, because it
        could otherwise query the names of the daemon's network.
        """
        resolved = [ip for ip in await self._lookup(address.host) if not (ip.is_unspecified or ip.is_multicast)]
        entries = [entry for entry in self._entries if entry.port in (0, address.port)]
        allowed = [ip for ip in resolved if self._auto_allows(ip) or _is_listed(ip, address, entries)]
        if len(allowed) < len(resolved):
            names = sorted({entry.name for entry in entries if entry.name})
            named = {ip for addresses in await asyncio.gather(*map(self._lookup, names)) for ip in addresses}
            allowed = [ip for ip in resolved if ip in allowed or ip in named]
        return [Address(str(ip), address.port) for ip in allowed]

    def _auto_allows(self, ip: IpAddress) -> bool:
        return any(ip in net for net in self._auto) and not any(ip in net for net in METADATA)

    async def _lookup(self, host: str) -> list[IpAddress]:
        ip = to_ip(host)
        if ip is not None:
            return [_unmapped(ip)]
        if not NAME.fullmatch(host.rstrip(".")):
            return []
        loop = asyncio.get_running_loop()
        try:
            texts = await loop.run_in_executor(self._pool, _resolve_host, host)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: the thread pool is shut down
            return []
        return [_unmapped(ip_address(text)) for text in texts[:MAX_RESOLVED]]

    def close(self) -> None:
        """Stops looking up names. Does not wait for lookups under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def auto_networks(config: Config) -> tuple[IpNetwork, ...]:
    """Returns the networks that `"auto"` means.

    The header of `hearthd.front.config.peer_targets` gives the reasons.
    """
    if not {"grpc", "lanes"}.intersection(name for name, _ in config.exposed_listeners()):
        return LOOPBACK + PRIVATE
    return () if config.tenants else PRIVATE


def _is_listed(ip: IpAddress, requested: Address, entries: Sequence[PeerTarget]) -> bool:
    """Returns True if `peers` contains the address as a network, or contains the requested name.

    That name may have other addresses when it is looked up again.
    """
    name = plain(requested.host)
    return any(ip in entry.network if entry.network is not None else entry.name == name for entry in entries)


def _resolve_host(host: str) -> list[str]:
    """Returns the numeric addresses of a host, without duplicates, in the order of preference."""
    results = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(socket_address[0]) for *_, socket_address in results))


def _unmapped(address: IpAddress) -> IpAddress:
    """Returns the IPv4 address of an IPv4-mapped IPv6 address: `::ffff:127.0.0.1` becomes `127.0.0.1`."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
