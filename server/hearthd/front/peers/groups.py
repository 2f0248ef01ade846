"""The groups over daemons of this daemon's sessions: groups created here, and groups of other daemons that were joined.

Sessions see their own groups only. The router passes on the messages of local device processes about such groups
(`relay_message`), and messages for ranks of other daemons (`send`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import structlog

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.front import errors
from hearthd.front.addresses import Address
from hearthd.front.collectives.match import RankLocation
from hearthd.front.peers import tickets
from hearthd.front.peers.connect import PeerConnector
from hearthd.front.peers.follower import VERDICT_S, Follower
from hearthd.front.peers.frames import Body
from hearthd.front.peers.leader import Leader, Router
from hearthd.front.peers.link import CLOSE_TIMEOUT, PeerLink
from hearthd.front.peers.membership import GroupMembership, status_of
from hearthd.front.peers.port import PeerPort
from hearthd.front.peers.tickets import Members

if TYPE_CHECKING:
    from hearthd.front.links.link import DeviceLink
    from hearthd.front.sessions.session import Session

log = structlog.get_logger("hearthd.peers")

MAX_GROUPS = 64
"""Maximum number of groups of one session. Groups that have ended count until they are left."""


@dataclass(frozen=True)
class GroupsView:
    """State of a `PeerGroups`, for tests and diagnostics. Groups are named by their ids in hexadecimal."""

    leaders: frozenset[str]
    """Groups created here that may still be joined or notified."""
    followers: frozenset[str]
    """Groups of other daemons that sessions of this daemon have joined."""
    sessions: frozenset[str]
    """Sessions that take part in a group."""
    joining: frozenset[tuple[str, str]]
    """Session and group of each join under way."""
    links: tuple[PeerLink, ...]
    """Links to other daemons, including ended links until they are garbage-collected."""


class PeerGroups:
    """The groups over daemons.

    Belongs to the event loop. `port` listens for the daemons that join groups of this daemon.
    """

    def __init__(self, router: Router, connector: PeerConnector, *, verdict: float = VERDICT_S) -> None:
        """`verdict`: seconds beyond its timeout that an operation waits for the coordinator's answer."""
        self._verdict = verdict
        self.port: PeerPort | None = None
        self.on_refused: Callable[[Session, Sequence[Address]], None] = lambda session, addresses: None
        """Called with the addresses of a ticket to which this daemon may not connect."""
        self._router, self._connector = router, connector
        self._parts: dict[str, dict[str, GroupMembership]] = {}
        """Memberships by session, then by group."""
        self._leaders: dict[str, Leader] = {}
        """Groups of this daemon that may be joined or notified, by id."""
        self._followers: dict[str, Follower] = {}
        """Followers, by the prefix of their communicators' names."""
        self._joining: set[tuple[str, str]] = set()
        self._links: WeakSet[PeerLink] = WeakSet()

    def __iter__(self) -> Iterator[GroupMembership]:
        return iter([part for parts in self._parts.values() for part in parts.values()])

    def inspect(self) -> GroupsView:
        """Returns the groups, the sessions in them and the links."""
        return GroupsView(
            frozenset(self._leaders),
            frozenset(follower.id for follower in self._followers.values()),
            frozenset(self._parts),
            frozenset(self._joining),
            tuple(self._links),
        )

    def of(self, session: Session) -> list[GroupMembership]:
        """Returns the groups of a session."""
        return list(self._parts.get(session.id, {}).values())

    # ---- calls ----

    async def create(self, session: Session, members: Members, time_limit: float) -> tuple[bytes, bytes]:
        """Creates a group that other daemons may join within `time_limit` seconds. Returns its id and its secret."""
        assert self.port is not None
        await self.port.open()
        if session.closing:
            raise errors.session_expired()
        self._check_room(session)
        group, secret = tickets.new_group()
        leader = Leader(group, secret, members, session, self._router, self._on_leader_end)
        self._leaders[leader.id] = leader
        self._add(leader)
        leader.expect(time_limit)
        log.info("group_created", group=leader.id, session=session.id, ranks=len(members))
        return group, secret

    async def join(
        self,
        session: Session,
        group: bytes,
        node: int,
        members: Members,
        ticket: node_pb2.GroupTicket,
        time_limit: float,
    ) -> None:
        """Connects to the coordinator, and returns after the coordinator has admitted this daemon.

        Raises the coordinator's refusal; `PERMISSION_DENIED` if this daemon may not connect to the addresses; or
        `COMMUNICATOR_FAILED`, `COLLECTIVE_TIMEOUT` or `UNAUTHENTICATED` with the addresses that were tried.
        """
        addresses = tickets.addresses_of(ticket)
        place = (session.id, group.hex())
        if place in self._joining or group.hex() in self._parts.get(session.id, {}):
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"This session takes part in the group {group.hex()[:8]} already.",
                fix="Join with another session; a session can take only one node's part in a group.",
                details={"group": group.hex()},
            )
        self._check_room(session)
        self._joining.add(place)
        try:
            hello = tickets.hello(group, node, ticket.secret, members)
            forbidden = partial(self.on_refused, session)
            peer = await self._connector.connect(addresses, ticket.certificate_sha256, hello, time_limit, forbidden)
            self._links.add(peer)
            follower = Follower(group, members, node, session, peer, verdict=self._verdict)
            if session.closing:
                follower.leave("its session has ended")
                raise errors.session_expired()
        finally:
            self._joining.discard(place)
        self._followers[follower.prefix] = follower
        self._add(follower)
        follower.start()
        log.info("group_joined", group=follower.id, session=session.id, node=node, coordinator=peer.peer)

    def leave(self, session: Session, group: bytes) -> None:
        """Ends a group, on all its daemons. Raises `INVALID_HANDLE` if the session has no such group."""
        part = self._parts.get(session.id, {}).get(group.hex())
        if part is None:
            raise Refusal(
                Reason.INVALID_HANDLE,
                f"There is no group {group.hex()[:64]} of this session.",
                fix="Use a group that CreateGroup or JoinGroup made on this session and that has not been left.",
                details={"group": group.hex()[:64]},
            )
        part.exit()
        self._remove(part, "its client left it")

    def _check_room(self, session: Session) -> None:
        parts = self._parts.get(session.id, {})
        count = len(parts) + sum(place[0] == session.id for place in self._joining)
        if count >= MAX_GROUPS:
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"The session has {count} groups over daemons; the maximum is {MAX_GROUPS}.",
                fix="Leave groups that are no longer used with LeaveGroup.",
                details={"requested": count + 1, "allowed": MAX_GROUPS},
            )

    # ---- daemons that join groups of this daemon ----

    def admit(self, body: Body, link: PeerLink) -> None:
        """Handles the first message of a connection. Raises `ValueError` for an invalid message."""
        hello = tickets.parse_hello(body)
        self._links.add(link)
        leader = self._leaders.get(hello.group.hex())
        try:
            if not tickets.same_secret(hello.secret, leader.secret if leader is not None else None):
                raise tickets.unknown_group()
            assert leader is not None
            leader.admit(hello, link)
        except Refusal as refusal:
            log.warning("peer_refused", peer=link.peer, group=hello.group.hex()[:32], why=refusal.message)
            link.close({"t": "refused", "status": status_of(refusal)})

    # ---- messages of the router and of device processes ----

    def relay_message(self, link: DeviceLink, body: Body) -> bool:
        """Handles a message if its group is over daemons; see `hearthd.front.collectives.router.GroupRelay`."""
        if body["op"] in ("present", "withdraw"):
            channel = link.channels.get(int(body["channel"]))
            group = body.get("group")
            if not group or channel is None:
                return False
            part = self._parts.get(channel.session_id, {}).get(str(group))
            if part is None or link.ordinal not in part.ranks:
                return False  # the session has no such rank, and the router refuses the operation
            (part.present if body["op"] == "present" else part.withdraw)(link, channel.number, body)
            return True
        prefix, slash, _ = str(body.get("comm", "")).partition("/")
        if not slash:
            return False
        follower = self._followers.get(prefix + slash)
        if follower is not None:  # otherwise the group has been left
            follower.message(link, body)
        return True

    def send(self, place: RankLocation, body: Body) -> None:
        """Passes on a message for a rank of another daemon."""
        leader = self._leaders.get(str(body.get("group", "")))
        if leader is not None:
            leader.send(place, body)

    async def watch(self, link: DeviceLink) -> None:
        """Prepares a device process that is about to serve.

        The groups of each session that attaches are then announced to the process.
        """
        link.on_open = self.on_open

    def on_open(self, link: DeviceLink, channel: int, session: str) -> None:
        """Announces the session's groups on a channel that was opened to a device process."""
        for part in self._parts.get(session, {}).values():
            part.enter(link, channel)

    # ---- end ----

    def device_lost(self, link: DeviceLink, why: str) -> None:
        """Notifies all groups that a local device process has ended."""
        for part in self:
            part.process_lost(link, why)

    def session_closed(self, session: str) -> None:
        """Leaves all groups of a session that is about to end or was quarantined."""
        for part in list(self._parts.get(session, {}).values()):
            part.exit()
            self._remove(part, "its session has ended")

    async def stop(self) -> None:
        """Leaves all groups, and admits no more peers.

        Waits briefly until the peers have received the last messages.
        """
        for part in self:
            self._remove(part, "its daemon is stopping")
        if self.port is not None:
            await self.port.close()
        self._connector.close()
        leaving = {link.gone for link in self._links if not link.gone.done()}
        if leaving:
            await asyncio.wait(leaving, timeout=2 * CLOSE_TIMEOUT)

    def _add(self, part: GroupMembership) -> None:
        self._parts.setdefault(part.session.id, {})[part.id] = part
        for ordinal in part.ranks:
            channel = part.session.channels.get(ordinal)
            if channel is not None and channel.alive:
                part.enter(_link(channel), channel.number)

    def _remove(self, part: GroupMembership, why: str) -> None:
        parts = self._parts[part.session.id]
        del parts[part.id]
        if not parts:
            del self._parts[part.session.id]
        part.leave(why)
        if isinstance(part, Follower):
            self._followers.pop(part.prefix, None)

    def _on_leader_end(self, leader: Leader) -> None:
        self._leaders.pop(leader.id, None)


def _link(channel: Any) -> DeviceLink:
    link: DeviceLink = channel.link
    return link
