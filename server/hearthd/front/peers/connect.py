"""Connection from a ticket's addresses to the daemon that coordinates the group, up to the coordinator's welcome.

A session must not learn what else may be at a ticket's addresses. Whether an address refuses, does not answer, speaks
another protocol or is not the coordinator, the session gets the same answer, and each address takes the same time. The
log records the difference. (If one name has several addresses, an earlier address that does not answer delays the next
one; all these addresses are allowed by `[collectives] peers`.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import structlog

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.addresses import Address
from hearthd.front.peers import errors, port
from hearthd.front.peers.frames import Body
from hearthd.front.peers.link import HANDSHAKE, PeerLink, PeerLost
from hearthd.front.peers.membership import check_base64, parse_refusal
from hearthd.front.peers.targets import PeerTargets

log = structlog.get_logger("hearthd.peers")

LinkFactory = Callable[[], PeerLink]
Forbidden = Callable[[Sequence[Address]], None]


class PeerNotAllowed(Exception):
    """Raised for an address to which this daemon may not connect, or whose name is unknown."""


class PeerConnector:
    """Connects to the coordinators of groups. Belongs to the event loop. Must be closed."""

    def __init__(
        self, targets: PeerTargets, link_factory: LinkFactory = PeerLink, handshake_timeout: float = HANDSHAKE
    ) -> None:
        """Creates the connector. `handshake_timeout`: time, in seconds, for which one address is tried."""
        self._targets, self._link_factory, self._handshake_timeout = targets, link_factory, handshake_timeout

    async def connect(
        self, addresses: Sequence[Address], pin: bytes, hello: Body, time_limit: float, on_forbidden: Forbidden
    ) -> PeerLink:
        """Tries the addresses in turn and returns the link to the coordinator.

        `pin` is the SHA-256 of the coordinator's certificate. `on_forbidden` is called with the addresses to which this
        daemon may not connect. Raises the coordinator's refusal, or a refusal of `hearthd.front.peers.errors`.
        """
        clock = asyncio.get_running_loop().time
        attempt_timeout = min(self._handshake_timeout, time_limit / len(addresses))
        unauthenticated: Refusal | None = None
        forbidden: list[Address] = []
        try:
            for address in addresses:
                deadline = clock() + attempt_timeout
                try:
                    return await self._try_address(address, pin, hello, deadline)
                except PeerNotAllowed:
                    forbidden.append(address)
                    if address.numeric:  # an IP address; no name was looked up, so no delay is needed
                        continue
                except PeerLost:
                    pass
                except Refusal as refusal:
                    if refusal.reason != Reason.UNAUTHENTICATED:
                        raise
                    unauthenticated = refusal  # on this network another daemon may have that address
                    continue
                await asyncio.sleep(deadline - clock())
        finally:
            if forbidden:
                log.warning("peer_not_allowed", group=hello["group"], addresses=list(map(str, forbidden)))
                on_forbidden(forbidden)
        if unauthenticated is not None:
            raise unauthenticated
        if len(forbidden) == len(addresses):
            raise errors.not_allowed(forbidden)
        raise errors.not_reached(
            addresses, forbidden, time_limit if attempt_timeout < self._handshake_timeout else None
        )

    async def _try_address(self, address: Address, pin: bytes, hello: Body, deadline: float) -> PeerLink:
        """Tries one address of a ticket, at all IP addresses to which it resolves.

        Raises `PeerLost`, `PeerNotAllowed`, or the refusal of a daemon.
        """
        clock = asyncio.get_running_loop().time
        targets: list[Address] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                targets = await self._targets.resolve(address)
        if not targets:
            raise PeerNotAllowed
        for number, target in enumerate(targets):
            try:
                return await self._greet(target, pin, hello, (deadline - clock()) / (len(targets) - number))
            except PeerLost as error:
                fields = {"address": str(address), "at": str(target), "why": str(error)}
                log.warning("peer_unreachable", group=hello["group"], **fields)
        raise PeerLost("the coordinator answers at none of its addresses")

    async def _greet(self, address: Address, pin: bytes, hello: Body, time_limit: float) -> PeerLink:
        """Connects and sends the greeting. Raises `PeerLost`, or the coordinator's refusal."""
        started_at = asyncio.get_running_loop().time()
        link = await port.connect(address, pin, time_limit, self._link_factory)
        try:
            async with asyncio.timeout_at(started_at + time_limit):
                link.send(hello)
                answer = await link.receive_first()
            if answer.get("t") == "refused":
                raise parse_refusal(check_base64(answer["status"]))
            if answer.get("t") != "welcome":
                raise PeerLost("the server at this address is not hearthd")
        except TimeoutError:
            link.abort("it did not answer")
            raise PeerLost(f"it did not answer within {time_limit:.3g} s") from None
        except (KeyError, TypeError, ValueError):
            link.abort("the server at this address is not hearthd")
            raise PeerLost("the server at this address is not hearthd") from None
        except BaseException:
            link.close()
            raise
        return link

    def close(self) -> None:
        """Stops looking up names."""
        self._targets.close()
