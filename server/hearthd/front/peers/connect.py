"""The way from a ticket to the link of a daemon that has been let in.

What else may be at a ticket's addresses is none of the session's business. Whether an address refuses, is silent,
speaks something else or is not the coordinator's: the session gets the same answer, and each address takes the same
time. The log says which it was. (Only of one name with several addresses an earlier one's silence delays the next; all
of these are allowed by `[collectives] peers`.)
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
from hearthd.front.peers.membership import encoded, refusal_in
from hearthd.front.peers.targets import PeerTargets

log = structlog.get_logger("hearthd.peers")

Make = Callable[[], PeerLink]
Forbidden = Callable[[Sequence[Address]], None]


class PeerNotAllowed(Exception):
    """Raised for an address that this daemon does not connect to, or whose name is not known."""


class PeerReach:
    """Belongs to the event loop; `close` it."""

    def __init__(self, targets: PeerTargets, make: Make = PeerLink, handshake: float = HANDSHAKE) -> None:
        """`handshake`: how long one address is tried."""
        self._targets, self._make, self._handshake = targets, make, handshake

    async def reach(
        self, addresses: Sequence[Address], pin: bytes, hello: Body, patience: float, on_forbidden: Forbidden
    ) -> PeerLink:
        """Tries the addresses in turn. `pin`: SHA-256 of the coordinator's certificate; `on_forbidden`: called with
        those to which this daemon does not connect. Raises what the coordinator says against it, and `errors`."""
        clock = asyncio.get_running_loop().time
        window = min(self._handshake, patience / len(addresses))
        unknown: Refusal | None = None
        forbidden: list[Address] = []
        try:
            for address in addresses:
                until = clock() + window
                try:
                    return await self._try(address, pin, hello, until)
                except PeerNotAllowed:
                    forbidden.append(address)
                    if address.numeric:  # there was nothing to find out
                        continue
                except PeerLost:
                    pass
                except Refusal as refusal:
                    if refusal.reason != Reason.UNAUTHENTICATED:
                        raise
                    unknown = refusal  # it may be another daemon that has this address here
                    continue
                await asyncio.sleep(until - clock())
        finally:
            if forbidden:
                log.warning("peer_not_allowed", group=hello["group"], addresses=list(map(str, forbidden)))
                on_forbidden(forbidden)
        if unknown is not None:
            raise unknown
        if len(forbidden) == len(addresses):
            raise errors.not_allowed(forbidden)
        raise errors.not_reached(addresses, forbidden, patience if window < self._handshake else None)

    async def _try(self, address: Address, pin: bytes, hello: Body, until: float) -> PeerLink:
        """Tries one address of a ticket, at all IP addresses that it resolves to. Raises `PeerLost`, `PeerNotAllowed`,
        and a daemon's refusals."""
        clock = asyncio.get_running_loop().time
        found: list[Address] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                found = await self._targets.find(address)
        if not found:
            raise PeerNotAllowed
        for number, where in enumerate(found):
            try:
                return await self._greet(where, pin, hello, (until - clock()) / (len(found) - number))
            except PeerLost as lost:
                told = {"address": str(address), "at": str(where), "why": str(lost)}
                log.warning("peer_unreachable", group=hello["group"], **told)
        raise PeerLost("the coordinator is at none of its addresses")

    async def _greet(self, address: Address, pin: bytes, hello: Body, patience: float) -> PeerLink:
        """Raises `PeerLost`, or what the coordinator says against it."""
        begin = asyncio.get_running_loop().time()
        link = await port.connect(address, pin, patience, self._make)
        try:
            async with asyncio.timeout_at(begin + patience):
                link.send(hello)
                answer = await link.first()
            if answer.get("t") == "refused":
                raise refusal_in(encoded(answer["status"]))
            if answer.get("t") != "welcome":
                raise PeerLost("what answers there is no hearthd")
        except TimeoutError:
            link.cut("it did not answer")
            raise PeerLost(f"it did not answer within {patience:.3g} s") from None
        except (KeyError, TypeError, ValueError):
            link.cut("what answers there is no hearthd")
            raise PeerLost("what answers there is no hearthd") from None
        except BaseException:
            link.close()
            raise
        return link

    def close(self) -> None:
        """Stops looking names up."""
        self._targets.close()
