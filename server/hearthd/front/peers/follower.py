"""Follower: a group over daemons in a front that has joined the group.

It passes messages between its ranks and the coordinator.

The coordinator is trusted only in what concerns the ranks of this group: processes that the session uses, operations
that those processes have presented, and communicators that were created for them. The name of a communicator is
prefixed with the group's id, so that it cannot be that of another group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.collectives.flight_recorder import FlightRecorder, GroupHistory
from hearthd.front.peers.frames import Body, PeerFrameError
from hearthd.front.peers.link import PeerLink
from hearthd.front.peers.membership import (
    MAX_NOTED,
    MAX_SECONDS,
    MAX_UNIQUE_ID,
    REBUILD,
    GroupMembership,
    encoded,
    failed,
    parse_communicator,
    refusal_in,
    status_of,
    tell,
    text_of,
    withdrawn,
)
from hearthd.front.peers.record import PeerRecord
from hearthd.front.peers.tickets import Members, parse_unsigned

if TYPE_CHECKING:
    from hearthd.front.links.link import DeviceLink
    from hearthd.front.sessions.session import Session

log = structlog.get_logger("hearthd.peers")

MAX_COMMUNICATORS = 8
"""Maximum number of communicators of one process in one group. The coordinator aborts one before it creates another."""

VERDICT_S = 0.5
"""Time, in seconds, beyond its timeout that an operation waits for the coordinator's answer."""

Where = tuple[int, int]
"""A device and the generation of its process."""


class PendingOperation(NamedTuple):
    """An operation that was presented and has not been answered."""

    link: DeviceLink
    channel: int
    timer: asyncio.TimerHandle


class Follower(GroupMembership):
    """The membership of a node other than node 0."""

    def __init__(
        self,
        group: bytes,
        members: Members,
        node: int,
        session: Session,
        peer: PeerLink,
        *,
        verdict: float = VERDICT_S,
    ) -> None:
        """`verdict`: seconds beyond its timeout that an operation waits for the coordinator's answer."""
        super().__init__(group, members, node, session)
        self.prefix = f"{self.id}@{node}/"
        """Prefix of the names of the group's communicators."""
        self._peer = peer
        self._verdict = verdict
        self._presented: dict[tuple[int, int, int], PendingOperation] = {}
        """Operations that wait for an answer, by device, generation and sequence number."""
        self._comms: dict[str, dict[Where, DeviceLink]] = {}
        """Live communicators, by the name that this daemon gives them."""
        self._record = PeerRecord(self.id, len(members), len(self.ranks))
        self._ignored = 0

    def start(self) -> None:
        """Starts to receive the coordinator's messages."""
        self._peer.start(self._on_message, self._lost)

    # ---- to the coordinator ----

    def present(self, link: DeviceLink, channel: int, body: Mapping[str, Any]) -> None:
        """Sends the operation to the coordinator.

        It fails if no answer arrives within its timeout and `verdict` seconds. It fails at once if the group has ended,
        or the batch does not fit into a frame.
        """
        sequence = int(body["sequence"])
        if self.end_reason is not None:
            self.fail(link, channel, sequence, self.end_reason)
            return
        self._record.presented(self.ranks[link.ordinal], body)
        key = (link.ordinal, link.generation, sequence)
        seconds = min(float(body.get("timeout") or 0) or MAX_SECONDS, MAX_SECONDS) + self._verdict
        timer = asyncio.get_running_loop().call_later(seconds, self._unanswered, key)
        self._presented[key] = PendingOperation(link, channel, timer)
        try:
            self._send_rank_message(link, {**body, "channel": 0})
        except PeerFrameError as error:
            self._take(key)
            refusal = Refusal(
                Reason.MESSAGE_TOO_LARGE,
                f"Operation {sequence} of group {self.id[:8]} is too large a batch for the daemons: {error}.",
                fix="Batch fewer operations of a group over daemons in one Collective.",
                details={"sequence": sequence},
            )
            self._record.failed(sequence, refusal.message)
            self.fail(link, channel, sequence, refusal)

    def withdraw(self, link: DeviceLink, channel: int, body: Mapping[str, Any]) -> None:
        """Tells the coordinator, and no longer waits for an answer. Does nothing if the group has ended."""
        if self.end_reason is not None:
            return
        fields = withdrawn(self.id, body)
        self._take((link.ordinal, link.generation, fields["sequence"]))
        self._record.failed(fields["sequence"], refusal_in(fields["status"]).message)
        self._send_rank_message(link, fields)

    def message(self, link: DeviceLink, body: Mapping[str, Any]) -> None:
        """Passes a device process's message about a communicator of this group on."""
        name, where = str(body["comm"]), (link.ordinal, link.generation)
        if body["op"] == "join_failed":
            self._drop(name, where, "a rank of this node could not join its communicator")
        elif body["op"] == "progress":
            self._record.progress(name, where, int(body["done"]))
        if self.end_reason is None:
            self._send_rank_message(link, parse_communicator(body, name.removeprefix(self.prefix)))

    def process_lost(self, link: DeviceLink, why: str) -> None:
        """Forgets the process's operations and communicators.

        Tells the coordinator, if the process took part in the group.
        """
        where = (link.ordinal, link.generation)
        known = any(key[:2] == where for key in self._presented) or any(where in comm for comm in self._comms.values())
        text = f"device {link.ordinal} was lost: {why}"
        for key in [key for key in self._presented if key[:2] == where]:
            self._take(key)
            self._record.failed(key[2], text)
        for name in list(self._comms):
            self._drop(name, where, text)
        channel = self.session.channels.get(link.ordinal)
        if self.end_reason is None and link.ordinal in self.ranks and (known or (channel and channel.link is link)):
            self._peer.send({"t": "lost", "device": link.ordinal, "process": link.generation, "why": why[:1000]})

    def ring(self, recorder: FlightRecorder) -> GroupHistory | None:
        """Returns the history of this node's ranks. Only the coordinator's recorder has all ranks."""
        return self._record.ring

    def _send_rank_message(self, link: DeviceLink, body: Mapping[str, Any]) -> None:
        self._peer.send({"t": "rank", "device": link.ordinal, "process": link.generation, "body": body})

    # ---- from the coordinator ----

    def _on_message(self, body: Body) -> None:
        """Handles a message of the coordinator.

        Raises `ValueError`, `KeyError` or `TypeError` for an invalid message.
        """
        what = body["t"]
        if what == "over":
            refusal = refusal_in(encoded(body["status"]))
            self._peer.close()
            self.end(refusal)
        elif what == "send":
            self._deliver(parse_unsigned(body["device"]), parse_unsigned(body["process"]), body["body"])
        else:
            raise ValueError(f"there is no {str(what)[:40]!r}")

    def _deliver(self, device: int, process: int, body: Body) -> None:
        """Passes a message on to a rank of this daemon. The message that is sent is rebuilt from checked fields."""
        op, where = body["op"], (device, process)
        if op in ("fail", "go"):
            self._answer(op, where, body)
            return
        name = self.prefix + text_of(body["comm"], 64)
        if op == "abort":
            fields = _why(body)
            link = self._drop(name, where, refusal_in(fields["status"]).message or fields["reason"])
            if link is None:
                self._ignore(op, where)
                return
            tell(link, {"op": op, "comm": name, **fields})
            return
        if op not in ("create_id", "join"):
            raise ValueError(f"there is no {str(op)[:40]!r}")
        channel = self.session.channels.get(device)
        link = channel.link if channel is not None and device in self.ranks else None  # type: ignore[assignment]
        mine = [comm for comm, places in self._comms.items() if where in places and comm != name]
        ranks, rank = parse_unsigned(body["ranks"]), parse_unsigned(body.get("rank", 0))
        wrong = ranks != len(self.members) or (op == "join" and rank != self.ranks.get(device))
        if link is None or link.generation != process or wrong or len(mine) >= MAX_COMMUNICATORS:
            self._ignore(op, where)
            return
        fields = {"op": op, "comm": name, "ranks": ranks}
        if op == "join":
            fields |= {"unique_id": encoded(body["unique_id"], MAX_UNIQUE_ID), "rank": rank, "group": self.id}
        self._comms.setdefault(name, {})[where] = link
        tell(link, fields)

    def _answer(self, op: str, where: Where, body: Body) -> None:
        key = (*where, parse_unsigned(body["sequence"]))
        fields: Body = {}
        why = ""
        if op == "go":
            name = self.prefix + text_of(body["comm"], 64)
            if where not in self._comms.get(name, ()):
                self._ignore(op, where)
                return
            fields = {"comm": name, "rank": self.ranks[where[0]], "ranks": len(self.members)}
            fields["index"] = parse_unsigned(body["index"])
        else:
            fields = {"status": encoded(body["status"])}
            why = refusal_in(fields["status"]).message
        waiting = self._take(key)
        if waiting is None:
            self._ignore(op, where)
            return
        if op == "go":
            self._record.launched(fields["comm"], where, fields["rank"], key[2], fields["index"])
        else:
            self._record.failed(key[2], why)
        link, channel, _ = waiting
        tell(link, {"op": op, "channel": channel, "group": self.id, "devices": [], "sequence": key[2], **fields})

    def _take(self, key: tuple[int, int, int]) -> PendingOperation | None:
        """Removes a pending operation and cancels its timer."""
        waiting = self._presented.pop(key, None)
        if waiting is not None:
            waiting.timer.cancel()
        return waiting

    def _unanswered(self, key: tuple[int, int, int]) -> None:
        """Fails an operation that the coordinator did not answer in time.

        The coordinator enforces the timeouts of all ranks, so that this happens only if the coordinator itself does not
        respond.
        """
        waiting = self._take(key)
        if waiting is None:
            return
        refusal = Refusal(
            Reason.COLLECTIVE_TIMEOUT,
            f"Operation {key[2]} of group {self.id[:8]} was not answered in time by the daemon of node 0, which "
            "coordinates the group.",
            fix=f"Find out what delays that daemon. {REBUILD}",
            details={"group": self.id, "sequence": key[2]},
        )
        self._record.failed(key[2], refusal.message)
        self.fail(waiting.link, waiting.channel, key[2], refusal)

    def _ignore(self, op: str, where: Where) -> None:
        """Drops a message that is stale or does not concern this follower.

        The number of logged messages is limited, so that a coordinator cannot fill the log.
        """
        self._ignored += 1
        if self._ignored <= MAX_NOTED:
            log.warning("peer_ignored", group=self.id, node=self.node, op=op, device=where[0], process=where[1])

    def _drop(self, name: str, where: Where, why: str) -> DeviceLink | None:
        """Removes a communicator of a process, whose operations on the communicator fail.

        Returns the link to the process, or None.
        """
        self._record.aborted(name, where, why)
        places = self._comms.get(name, {})
        link = places.pop(where, None)
        if not places:
            self._comms.pop(name, None)
        return link

    # ---- end ----

    def _lost(self, why: str) -> None:
        self.end(failed(self.id, f"the daemon of node 0, which coordinates it, was lost: {why}"))

    def leave(self, why: str) -> None:
        """Tells the coordinator, which ends the group on all nodes, and ends it here."""
        self._peer.close({"t": "leave", "why": why[:1000]})
        self.end(failed(self.id, f"node {self.node} has left it: {why}"))

    def end(self, refusal: Refusal) -> None:
        """Ends the group on this node: pending operations fail, and communicators are aborted."""
        if self.end_reason is not None:
            return
        self.end_reason = refusal
        log.info("group_over", group=self.id, node=self.node, why=refusal.message)
        for key in list(self._presented):
            waiting = self._take(key)
            assert waiting is not None
            self._record.failed(key[2], refusal.message)
            self.fail(waiting.link, waiting.channel, key[2], refusal)
        comms, self._comms = self._comms, {}
        for name, places in comms.items():
            for where, link in places.items():
                self._record.aborted(name, where, refusal.message)
                tell(link, {"op": "abort", "comm": name, "reason": refusal.message, "status": status_of(refusal)})


def _why(body: Body) -> Body:
    """Returns the reason of an abort, and the status with which the operations under way fail."""
    return {"reason": text_of(body.get("reason") or ""), "status": encoded(body.get("status") or "")}
