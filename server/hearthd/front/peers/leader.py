"""Leader: a group over daemons in the front that coordinates it.

It admits the other daemons, and lets their ranks take part.

To the router, a remote rank is a location like any other. Messages of a remote rank affect its own group only: a peer
names the device that sends a message, and nothing else of its identity is taken from the message.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from hearth_proto.reasons import Reason, Refusal, to_text
from hearthd.front.collectives.match import GROUP, MatchKey, RankLocation
from hearthd.front.peers import tickets
from hearthd.front.peers.frames import Body, PeerFrameError
from hearthd.front.peers.link import PeerLink
from hearthd.front.peers.membership import (
    GroupMembership,
    clean_text,
    group_ended,
    parse_communicator_message,
    parse_present,
    parse_withdraw,
)
from hearthd.front.peers.tickets import GroupMember, Members, PeerHello, nodes_of

if TYPE_CHECKING:
    from hearthd.front.collectives.router import CollectiveRouter
    from hearthd.front.links.link import DeviceLink
    from hearthd.front.sessions.session import Session

log = structlog.get_logger("hearthd.peers")

MAX_PRESENTED = 8192
"""Maximum number of operations, with those of batches counted singly, that one remote rank may have presented without
an answer. A device process presents fewer (`hearthd.device.collectives.negotiation`)."""


class _Unanswered:
    """The presentations of a remote rank that have not been answered.

    Their total is kept, so that a rank that presents without end costs no additional time.
    """

    def __init__(self) -> None:
        self._by_sequence: dict[int, int] = {}
        self.operations = 0

    def __len__(self) -> int:
        return len(self._by_sequence)

    def add(self, sequence: int, operations: int) -> None:
        self.drop(sequence)
        self._by_sequence[sequence] = operations
        self.operations += operations

    def drop(self, sequence: int) -> None:
        """Drops a sequence number; does nothing for an unknown one."""
        self.operations -= self._by_sequence.pop(sequence, 0)


class Leader(GroupMembership):
    """The membership of node 0, which created the group."""

    def __init__(
        self,
        group: bytes,
        secret: bytes,
        members: Members,
        session: Session,
        router: CollectiveRouter,
        on_end: Callable[[Leader], None],
    ) -> None:
        """Creates the group. `on_end` is called once, when no node may join any more."""
        super().__init__(group, members, 0, session)
        self.secret = secret
        self._router, self._on_end = router, on_end
        self._owner = GROUP + self.id
        self._ranks = tuple(range(len(members)))
        self._rank_of = {member: rank for rank, member in enumerate(members)}
        self._links: dict[int, PeerLink] = {}
        """Links of the nodes that have joined, by node."""
        self._unanswered: defaultdict[int, _Unanswered] = defaultdict(_Unanswered)
        """Unanswered operations, by remote rank."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def missing(self) -> list[int]:
        """The nodes that have not joined."""
        return [node for node in nodes_of(self.members) if node and node not in self._links]

    @property
    def state(self) -> str:
        """The state of the group: `forming` until all nodes have joined, then `ready`, and `failed` after its end."""
        return "forming" if self.end_reason is None and self.missing else super().state

    def limit_joining(self, timeout: float) -> None:
        """Sets a limit of `timeout` seconds for the other nodes to join."""
        if self.missing:
            self._timer = asyncio.get_running_loop().call_later(timeout, self._expire, timeout)

    def _expire(self, timeout: float) -> None:
        missing = ", ".join(map(str, self.missing))
        if missing and self.end_reason is None:
            refusal = Refusal(
                Reason.COLLECTIVE_TIMEOUT,
                f"The group {self.id[:8]} over several daemons has ended: nodes {missing} did not join it within "
                f"{timeout:g} s.",
                fix="Create it again, and have every daemon join with JoinGroup; a longer timeout leaves more time.",
                details={"group": self.id, "missing": missing},
            )
            self._router.end_owner(self._owner, refusal.message, refusal.reason)
            self.end(refusal)

    # ---- daemons that join ----

    def admit(self, hello: PeerHello, link: PeerLink) -> None:
        """Admits a daemon that has shown the secret. Raises the reason if it may not join."""
        tickets.check_hello(hello, self.members, self._links)
        node = hello.node
        self._links[node] = link
        link.send({"t": "welcome", "protocol": tickets.PROTOCOL})
        log.info("peer_joined", group=self.id, node=node, peer=link.peer, missing=self.missing)
        if not self.missing and self._timer is not None:
            self._timer.cancel()
        link.start(partial(self._on_message, node), partial(self._on_lost, node))

    def _on_message(self, node: int, body: Body) -> None:
        """Handles a message of a peer. Raises `ValueError`, `KeyError` or `TypeError` for an invalid message."""
        kind = body["t"]
        if kind == "leave":
            cause = clean_text(body.get("why", ""))
            self._fail_node(node, cause, f"node {node} has left it: {cause}")
            return
        if kind not in ("rank", "lost"):
            raise ValueError(f"there is no {str(kind)[:40]!r}")
        device, process = tickets.parse_unsigned(body["device"]), tickets.parse_unsigned(body["process"])
        rank = self._rank_of.get(GroupMember(node, device))
        if rank is None or self.end_reason is not None:
            self.log_ignored(node=node, device=device, what=kind, over=self.end_reason is not None)
            return
        location = RankLocation(node, device, process)
        if kind == "lost":
            self._unanswered.pop(rank, None)
            self._router.on_loss(location, clean_text(body["why"]), (self._owner,))
        elif body["body"]["op"] == "present":
            fields = parse_present(self.id, body["body"])
            unanswered = self._unanswered[rank]
            operations = len(fields["signature"])
            if unanswered.operations and unanswered.operations + operations > MAX_PRESENTED:
                raise ValueError(
                    f"rank {rank} has presented {len(unanswered)} operations without waiting for an answer"
                )
            unanswered.add(fields["sequence"], max(1, operations))
            self._present(rank, location, fields)
        elif body["body"]["op"] == "withdraw":
            fields = parse_withdraw(self.id, body["body"])
            self._unanswered[rank].drop(fields["sequence"])
            self._withdraw(rank, fields)
        else:
            self._router.on_message(
                location, parse_communicator_message(body["body"], clean_text(body["body"]["comm"], 64)), self._owner
            )

    def _on_lost(self, node: int, cause: str) -> None:
        """Handles the end of a link."""
        self._links.pop(node, None)
        self._fail_node(node, cause, f"the daemon of node {node} was lost: {cause}")

    def _fail_node(self, node: int, cause: str, detail: str) -> None:
        """Fails and aborts the operations under way on the other nodes, because of `cause`, and ends the group."""
        self._router.on_loss(node, cause, (self._owner,))
        self.end(group_ended(self.id, detail))

    def send(self, location: RankLocation, body: Body) -> None:
        """Sends a message of the router to a remote rank. Does nothing if the rank's node has left."""
        link = self._links.get(location.node)
        if link is None:
            return
        if body["op"] in ("go", "fail"):
            rank = self._rank_of[GroupMember(location.node, location.device)]
            self._unanswered[rank].drop(body["sequence"])
        try:
            link.send({"t": "send", "device": location.device, "process": location.process, "body": body})
        except PeerFrameError as error:
            link.abort_soon(f"a message for it does not fit into a frame: {error}")

    # ---- ranks of this daemon ----

    def present(self, link: DeviceLink, channel: int, body: Mapping[str, Any]) -> None:
        """Passes the operation to the router. Fails it if the group has ended."""
        if self.end_reason is not None:
            self.fail(link, channel, int(body["sequence"]), self.end_reason)
            return
        self._present(self.ranks[link.ordinal], RankLocation.of(link), {**body, "channel": channel})

    def withdraw(self, link: DeviceLink, channel: int, body: Mapping[str, Any]) -> None:
        """Passes the message to the router. Does nothing if the group has ended."""
        if self.end_reason is None:
            self._withdraw(self.ranks[link.ordinal], dict(body))

    def on_process_lost(self, link: DeviceLink, cause: str) -> None:
        """Notes the loss of a local process.

        The router has failed the operations that the process had presented; the session's rank there can present no
        more.
        """
        channel = self.session.channels.get(link.ordinal)
        if self.end_reason is None and link.ordinal in self.ranks and channel is not None and channel.link is link:
            self._router.on_loss(RankLocation.of(link), cause, (self._owner,))

    def _present(self, rank: int, location: RankLocation, body: Body) -> None:
        self._router.present(MatchKey(self._owner, self._ranks, int(body["sequence"])), rank, location, body)

    def _withdraw(self, rank: int, body: Body) -> None:
        self._router.withdraw(MatchKey(self._owner, self._ranks, int(body["sequence"])), rank, body)

    # ---- end ----

    def leave(self, cause: str) -> None:
        """Fails the waiting operations, aborts the communicators, and ends the group on all nodes."""
        refusal = self.end_reason or group_ended(self.id, f"node 0 has left it: {cause}")
        self._router.end_owner(self._owner, refusal.message)
        self.end(refusal)

    def end(self, refusal: Refusal) -> None:
        """Ends the group and notifies all nodes. No further operation runs in the group."""
        if self.end_reason is not None:
            return
        self.end_reason = refusal
        if self._timer is not None:
            self._timer.cancel()
        log.info("group_over", group=self.id, why=refusal.message)
        links, self._links = self._links, {}
        for link in links.values():
            link.close({"t": "over", "status": to_text(refusal)})
        self._on_end(self)
