"""The groups over daemons of this daemon's sessions: groups created here, and groups of other daemons that were joined.

Sessions see their own groups only. The router passes on the messages of local device processes about such groups
(`relay_message`), and messages for ranks of other daemons (`send`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import structlog

from hearth_proto.reasons import Reason, Refusal, to_text
from hearth_proto.v1 import node_pb2
from hearthd.front import errors
from hearthd.front.addresses import Address
from hearthd.front.collectives.errors import unknown_group
from hearthd.front.collectives.match import RankLocation
from hearthd.front.peers import tickets
from hearthd.front.peers.connect import PeerConnector
from hearthd.front.peers.follower import ANSWER_MARGIN_S, Follower
from hearthd.front.peers.frames import Body
from hearthd.front.peers.leader import Leader
from hearthd.front.peers.link import CLOSE_TIMEOUT, PeerLink
from hearthd.front.peers.membership import GroupMembership
from hearthd.front.peers.port import PeerPort
from hearthd.front.peers.tickets import Members

if TYPE_CHECKING:
    from hearthd.front.collectives.router import CollectiveRouter
    from hearthd.front.links.link import DeviceLink
    from hearthd.front.sessions.session import Session

log = structlog.get_logger("hearthd.peers")

MAX_GROUPS = 64
"""Maximum number of groups of one session. Groups that have ended count until they are left."""


class PeerGroups:
    """The groups over daemons.

    Belongs to the event loop. `port` listens for the daemons that join groups of this daemon.
    """

    def __init__(
        self, router: CollectiveRouter, connector: PeerConnector, *, answer_margin: float = ANSWER_MARGIN_S
    ) -> None:
        """`answer_margin`: seconds beyond its timeout that an operation waits for the coordinator's answer."""
        self._answer_margin = answer_margin
        self.port: PeerPort | None = None
        self.on_refused: Callable[[Session, Sequence[Address]], None] = lambda session, addresses: None
        """Called with the addresses of a ticket to which this daemon may not connect."""
        self._router, self._connector = router, connector
        self._memberships: dict[str, dict[str, GroupMembership]] = {}
        """Memberships by session, then by group."""
        self.leaders: dict[str, Leader] = {}
        """Groups of this daemon that may be joined or notified, by id."""
        self.followers: dict[str, Follower] = {}
        """Followers, by the prefix of their communicators' names."""
        self.joining: set[tuple[str, str]] = set()
        """Session and group of each join under way."""
        self.links: WeakSet[PeerLink] = WeakSet()
        """Links to other daemons, including ended links until they are garbage-collected."""

    def __iter__(self) -> Iterator[GroupMembership]:
        return iter([membership for memberships in self._memberships.values() for membership in memberships.values()])

    def of(self, session: Session) -> list[GroupMembership]:
        """Returns the groups of a session."""
        return list(self._memberships.get(session.id, {}).values())

    # ---- calls ----

    async def create(self, session: Session, members: Members, time_limit: float) -> tuple[bytes, bytes]:
        """Creates a group that other daemons may join within `time_limit` seconds. Returns its id and its secret.

        Returns after the session's device processes know the group.
        """
        assert self.port is not None
        await self.port.open()
        if session.closing:
            raise errors.session_expired()
        self._check_group_count(session)
        group, secret = tickets.new_group()
        leader = Leader(group, secret, members, session, self._router, self._on_leader_end)
        self.leaders[leader.id] = leader
        self._add(leader)
        leader.limit_joining(time_limit)
        log.info("group_created", group=leader.id, session=session.id, ranks=len(members))
        await self._confirm(leader)
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
        """Connects to the coordinator.

        Returns after the coordinator has admitted this daemon, and the session's device processes know the group.

        Raises the coordinator's refusal; `PERMISSION_DENIED` if this daemon may not connect to the addresses; or
        `COMMUNICATOR_FAILED`, `COLLECTIVE_TIMEOUT` or `UNAUTHENTICATED` with the addresses that were tried.
        """
        addresses = tickets.addresses_of(ticket)
        join_key = (session.id, group.hex())
        if join_key in self.joining or group.hex() in self._memberships.get(session.id, {}):
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"This session takes part in the group {group.hex()[:8]} already.",
                fix="Join with another session; a session can take only one node's part in a group.",
                details={"group": group.hex()},
            )
        self._check_group_count(session)
        self.joining.add(join_key)
        try:
            hello = tickets.hello(group, node, ticket.secret, members)
            on_forbidden = partial(self.on_refused, session)
            peer = await self._connector.connect(addresses, ticket.certificate_sha256, hello, time_limit, on_forbidden)
            self.links.add(peer)
            follower = Follower(group, members, node, session, peer, answer_margin=self._answer_margin)
            if session.closing:
                follower.leave("its session has ended")
                raise errors.session_expired()
        finally:
            self.joining.discard(join_key)
        self.followers[follower.prefix] = follower
        self._add(follower)
        follower.start()
        log.info("group_joined", group=follower.id, session=session.id, node=node, coordinator=peer.peer)
        await self._confirm(follower)

    def leave(self, session: Session, group: bytes) -> None:
        """Ends a group, on all its daemons. Raises `INVALID_HANDLE` if the session has no such group."""
        membership = self._memberships.get(session.id, {}).get(group.hex())
        if membership is None:
            raise unknown_group(group.hex())
        membership.announce_leave()
        self._remove(membership, "its client left it")

    def _check_group_count(self, session: Session) -> None:
        memberships = self._memberships.get(session.id, {})
        count = len(memberships) + sum(join_key[0] == session.id for join_key in self.joining)
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
        self.links.add(link)
        leader = self.leaders.get(hello.group.hex())
        try:
            if not tickets.same_secret(hello.secret, leader.secret if leader is not None else None):
                raise tickets.invalid_ticket()
            assert leader is not None
            leader.admit(hello, link)
        except Refusal as refusal:
            log.warning("peer_refused", peer=link.peer, group=hello.group.hex()[:32], why=refusal.message)
            link.close({"t": "refused", "status": to_text(refusal)})

    # ---- messages of the router and of device processes ----

    def relay_message(self, link: DeviceLink, body: Body) -> bool:
        """Handles a message if its group is over daemons; see `hearthd.front.collectives.router.GroupRelay`."""
        if body["op"] in ("present", "withdraw"):
            channel = link.channels.get(int(body["channel"]))
            group = body.get("group")
            if not group or channel is None:
                return False
            membership = self._memberships.get(channel.session_id, {}).get(str(group))
            if membership is None or link.ordinal not in membership.ranks:
                return False  # the session has no such rank, and the router refuses the operation
            (membership.present if body["op"] == "present" else membership.withdraw)(link, channel.number, body)
            return True
        prefix, slash, _ = str(body.get("comm", "")).partition("/")
        if not slash:
            return False
        follower = self.followers.get(prefix + slash)
        if follower is not None:  # otherwise the group has been left
            follower.on_communicator_message(link, body)
        return True

    def send(self, location: RankLocation, body: Body) -> None:
        """Passes on a message for a rank of another daemon."""
        leader = self.leaders.get(str(body.get("group", "")))
        if leader is not None:
            leader.send(location, body)

    async def watch(self, link: DeviceLink) -> None:
        """Prepares a device process that is about to serve.

        The groups of each session that attaches are then announced to the process.
        """
        link.on_open = self.on_open

    def on_open(self, link: DeviceLink, channel: int, session: str) -> None:
        """Announces the session's groups on a channel that was opened to a device process."""
        for membership in self._memberships.get(session, {}).values():
            membership.announce(link, channel)

    # ---- end ----

    def on_device_lost(self, link: DeviceLink, cause: str) -> None:
        """Notifies all groups that a local device process has ended."""
        for membership in self:
            membership.on_process_lost(link, cause)

    def on_session_closed(self, session: str) -> None:
        """Leaves all groups of a session that is about to end or was quarantined."""
        for membership in list(self._memberships.get(session, {}).values()):
            membership.announce_leave()
            self._remove(membership, "its session has ended")

    async def stop(self) -> None:
        """Leaves all groups, and admits no more peers.

        Waits briefly until the peers have received the last messages.
        """
        for membership in self:
            self._remove(membership, "its daemon is stopping")
        if self.port is not None:
            await self.port.close()
        self._connector.close()
        closing = {link.closed for link in self.links if not link.closed.done()}
        if closing:
            await asyncio.wait(closing, timeout=2 * CLOSE_TIMEOUT)

    def _add(self, membership: GroupMembership) -> None:
        self._memberships.setdefault(membership.session.id, {})[membership.id] = membership
        for ordinal in membership.ranks:
            channel = membership.session.channels.get(ordinal)
            if channel is not None and channel.alive:
                membership.announce(_link(channel), channel.number)

    async def _confirm(self, membership: GroupMembership) -> None:
        """Returns when the session's processes have handled the announcement of the group.

        An operation that arrives over a lane, which is not the link, would otherwise overtake the announcement.
        Processes that are lost meanwhile are ignored. If the caller is cancelled, the group is left.
        """
        session = membership.session
        channels = [session.channels.get(ordinal) for ordinal in membership.ranks]
        links = [_link(channel) for channel in channels if channel is not None and channel.alive]
        try:
            await asyncio.gather(*map(_answered, links))
        except asyncio.CancelledError:
            if self._memberships.get(session.id, {}).get(membership.id) is membership:
                membership.announce_leave()
                self._remove(membership, "its call was cancelled")
            raise
        if session.closing:
            raise errors.session_expired()

    def _remove(self, membership: GroupMembership, cause: str) -> None:
        memberships = self._memberships[membership.session.id]
        del memberships[membership.id]
        if not memberships:
            del self._memberships[membership.session.id]
        membership.leave(cause)
        if isinstance(membership, Follower):
            self.followers.pop(membership.prefix, None)

    def _on_leader_end(self, leader: Leader) -> None:
        self.leaders.pop(leader.id, None)


async def _answered(link: DeviceLink) -> None:
    """Returns when the process has handled all frames that were sent to it, or is lost."""
    with contextlib.suppress(Refusal):
        await link.ping()


def _link(channel: Any) -> DeviceLink:
    link: DeviceLink = channel.link
    return link
