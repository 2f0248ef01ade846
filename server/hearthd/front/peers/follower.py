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

from hearth_proto.collectives import operation_name
from hearth_proto.reasons import Reason, Refusal, to_text
from hearthd.front.collectives.flight_recorder import FlightRecorder, GroupHistory
from hearthd.front.peers.frames import Body, PeerFrameError
from hearthd.front.peers.link import PeerLink
from hearthd.front.peers.membership import (
    MAX_SECONDS,
    MAX_UNIQUE_ID,
    REBUILD,
    GroupMembership,
    check_base64,
    clean_text,
    group_ended,
    parse_communicator_message,
    parse_refusal,
    parse_withdraw,
    send_collective,
)
from hearthd.front.peers.record import PeerRecord, ProcessKey
from hearthd.front.peers.tickets import Members, parse_unsigned

if TYPE_CHECKING:
    from hearthd.front.links.link import DeviceLink
    from hearthd.front.sessions.session import Session

log = structlog.get_logger("hearthd.peers")

MAX_COMMUNICATORS = 8
"""Maximum number of communicators of one process in one group. The coordinator aborts one before it creates another."""

ANSWER_MARGIN_S = 0.5
"""Time, in seconds, beyond its timeout that an operation waits for the coordinator's answer."""


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
        answer_margin: float = ANSWER_MARGIN_S,
    ) -> None:
        """`answer_margin`: seconds beyond its timeout that an operation waits for the coordinator's answer."""
        super().__init__(group, members, node, session)
        self.prefix = f"{self.id}@{node}/"
        """Prefix of the names of the group's communicators."""
        self._peer = peer
        self._answer_margin = answer_margin
        self._presented: dict[tuple[int, int, int], PendingOperation] = {}
        """Operations that wait for an answer, by device, generation and sequence number."""
        self._comms: dict[str, dict[ProcessKey, DeviceLink]] = {}
        """Live communicators, by the name that this daemon gives them."""
        self._record = PeerRecord(self.id, len(members), len(self.ranks))

    def start(self) -> None:
        """Starts to receive the coordinator's messages."""
        self._peer.start(self._on_message, self._on_lost)

    # ---- to the coordinator ----

    def present(self, link: DeviceLink, channel: int, body: Mapping[str, Any]) -> None:
        """Sends the operation to the coordinator.

        The operation fails if no answer arrives within its timeout plus the answer margin. It fails immediately if the
        group has ended, or the batch does not fit into a frame.
        """
        sequence = int(body["sequence"])
        if self.end_reason is not None:
            self.fail(link, channel, sequence, self.end_reason)
            return
        self._record.record_presentation(self.ranks[link.ordinal], body)
        key = (link.ordinal, link.generation, sequence)
        seconds = min(float(body.get("timeout") or 0) or MAX_SECONDS, MAX_SECONDS) + self._answer_margin
        timer = asyncio.get_running_loop().call_later(seconds, self._on_timeout, key)
        self._presented[key] = PendingOperation(link, channel, timer)
        try:
            self._send_rank_message(link, {**body, "channel": 0})
        except PeerFrameError as error:
            self._pop_pending(key)
            refusal = Refusal(
                Reason.MESSAGE_TOO_LARGE,
                f"Operation {sequence} of group {self.id[:8]} is too large a batch for the daemons: {error}.",
                fix="Batch fewer operations of a group over daemons in one Collective.",
                details={"sequence": sequence},
            )
            self._record.record_failure(sequence, refusal.message)
            self.fail(link, channel, sequence, refusal)

    def withdraw(self, link: DeviceLink, channel: int, body: Mapping[str, Any]) -> None:
        """Notifies the coordinator, and no longer waits for an answer. Does nothing if the group has ended."""
        if self.end_reason is not None:
            return
        fields = parse_withdraw(self.id, body)
        self._pop_pending((link.ordinal, link.generation, fields["sequence"]))
        self._record.record_failure(fields["sequence"], parse_refusal(fields["status"]).message)
        self._send_rank_message(link, fields)

    def on_communicator_message(self, link: DeviceLink, body: Mapping[str, Any]) -> None:
        """Passes a device process's message about a communicator of this group on."""
        name, process = str(body["comm"]), (link.ordinal, link.generation)
        if body["op"] == "join_failed":
            self._remove_communicator(name, process, "a rank of this node could not join its communicator")
        elif body["op"] == "progress":
            self._record.record_progress(name, process, int(body["done"]))
        if self.end_reason is None:
            self._send_rank_message(link, parse_communicator_message(body, name.removeprefix(self.prefix)))

    def on_process_lost(self, link: DeviceLink, cause: str) -> None:
        """Forgets the process's operations and communicators.

        Notifies the coordinator, if the process took part in the group.
        """
        process = (link.ordinal, link.generation)
        took_part = any(key[:2] == process for key in self._presented) or any(
            process in comm for comm in self._comms.values()
        )
        reason = f"device {link.ordinal} was lost: {cause}"
        for key in [key for key in self._presented if key[:2] == process]:
            self._pop_pending(key)
            self._record.record_failure(key[2], reason)
        for name in list(self._comms):
            self._remove_communicator(name, process, reason)
        channel = self.session.channels.get(link.ordinal)
        if self.end_reason is None and link.ordinal in self.ranks and (took_part or (channel and channel.link is link)):
            self._peer.send({"t": "lost", "device": link.ordinal, "process": link.generation, "why": cause[:1000]})

    def history(self, recorder: FlightRecorder) -> GroupHistory | None:
        """Returns the history of this node's ranks. Only the coordinator's recorder has all ranks."""
        return self._record.history

    def _send_rank_message(self, link: DeviceLink, body: Mapping[str, Any]) -> None:
        self._peer.send({"t": "rank", "device": link.ordinal, "process": link.generation, "body": body})

    # ---- from the coordinator ----

    def _on_message(self, body: Body) -> None:
        """Handles a message of the coordinator.

        Raises `ValueError`, `KeyError` or `TypeError` for an invalid message.
        """
        kind = body["t"]
        if kind == "over":
            refusal = parse_refusal(check_base64(body["status"]))
            self._peer.close()
            self.end(refusal)
        elif kind == "send":
            self._deliver((parse_unsigned(body["device"]), parse_unsigned(body["process"])), body["body"])
        else:
            raise ValueError(f"there is no {str(kind)[:40]!r}")

    def _deliver(self, process: ProcessKey, body: Body) -> None:
        """Passes a message on to a rank of this daemon. The message that is sent is rebuilt from checked fields."""
        op, (device, generation) = body["op"], process
        if op == "go":
            self._deliver_go(process, body)
            return
        if op == "fail":
            self._deliver_fail(process, body)
            return
        name = self.prefix + clean_text(body["comm"], 64)
        if op == "abort":
            fields = _abort_fields(body)
            link = self._remove_communicator(name, process, parse_refusal(fields["status"]).message or fields["reason"])
            if link is None:
                self._ignore(op, process)
                return
            send_collective(link, {"op": op, "comm": name, **fields})
            return
        if op not in ("create_id", "join"):
            raise ValueError(f"there is no {str(op)[:40]!r}")
        channel = self.session.channels.get(device)
        link = channel.link if channel is not None and device in self.ranks else None  # type: ignore[assignment]
        other_comms = [comm for comm, links in self._comms.items() if process in links and comm != name]
        ranks, rank = parse_unsigned(body["ranks"]), parse_unsigned(body.get("rank", 0))
        is_inconsistent = ranks != len(self.members) or (op == "join" and rank != self.ranks.get(device))
        if link is None or link.generation != generation or is_inconsistent or len(other_comms) >= MAX_COMMUNICATORS:
            self._ignore(op, process)
            return
        fields = {"op": op, "comm": name, "ranks": ranks}
        if op == "join":
            fields |= {"unique_id": check_base64(body["unique_id"], MAX_UNIQUE_ID), "rank": rank, "group": self.id}
        self._comms.setdefault(name, {})[process] = link
        send_collective(link, fields)

    def _deliver_go(self, process: ProcessKey, body: Body) -> None:
        key = (*process, parse_unsigned(body["sequence"]))
        name = self.prefix + clean_text(body["comm"], 64)
        link = self._comms.get(name, {}).get(process)
        if link is None:
            self._ignore("go", process)
            return
        rank, index = self.ranks[process[0]], parse_unsigned(body["index"])
        operation = self._pop_pending(key)
        if operation is None:  # it failed here before; the process reports that it missed it, as others wait for it
            self._ignore("go", process)
        else:
            self._record.record_launch(name, process, rank, key[2], index)
        fields = {"comm": name, "rank": rank, "ranks": len(self.members), "index": index}
        self.answer("go", link, operation.channel if operation is not None else 0, key[2], fields)

    def _deliver_fail(self, process: ProcessKey, body: Body) -> None:
        key = (*process, parse_unsigned(body["sequence"]))
        status = check_base64(body["status"])
        message = parse_refusal(status).message
        operation = self._pop_pending(key)
        if operation is None:
            self._ignore("fail", process)
            return
        self._record.record_failure(key[2], message)
        self.answer("fail", operation.link, operation.channel, key[2], {"status": status})

    def _pop_pending(self, key: tuple[int, int, int]) -> PendingOperation | None:
        """Removes a pending operation and cancels its timer."""
        operation = self._presented.pop(key, None)
        if operation is not None:
            operation.timer.cancel()
        return operation

    def _on_timeout(self, key: tuple[int, int, int]) -> None:
        """Fails an operation that the coordinator did not answer in time, and withdraws from it.

        The coordinator enforces the timeouts of all ranks, so that this happens only if the coordinator itself does not
        respond. When it does, it must not have the other ranks wait for this one.
        """
        operation = self._pop_pending(key)
        if operation is None:
            return
        refusal = Refusal(
            Reason.COLLECTIVE_TIMEOUT,
            f"{operation_name(key[2]).capitalize()} of group {self.id[:8]} was not answered in time by the daemon "
            "of node 0, which coordinates the group.",
            fix=f"Find out what delays that daemon. {REBUILD}",
            details={"group": self.id, "sequence": key[2]},
        )
        self._record.record_failure(key[2], refusal.message)
        self.fail(operation.link, operation.channel, key[2], refusal)
        body = {"sequence": key[2], "status": to_text(refusal)}
        self._send_rank_message(operation.link, parse_withdraw(self.id, body))

    def _ignore(self, op: str, process: ProcessKey) -> None:
        self.log_ignored(node=self.node, op=op, device=process[0], process=process[1])

    def _remove_communicator(self, name: str, process: ProcessKey, reason: str) -> DeviceLink | None:
        """Removes a communicator of a process, whose operations on the communicator fail.

        Returns the link to the process, or None.
        """
        self._record.record_abort(name, process, reason)
        links = self._comms.get(name, {})
        link = links.pop(process, None)
        if not links:
            self._comms.pop(name, None)
        return link

    # ---- end ----

    def _on_lost(self, cause: str) -> None:
        self.end(group_ended(self.id, f"the daemon of node 0, which coordinates it, was lost: {cause}"))

    def leave(self, cause: str) -> None:
        """Notifies the coordinator, which ends the group on all nodes, and ends it here."""
        self._peer.close({"t": "leave", "why": cause[:1000]})
        self.end(group_ended(self.id, f"node {self.node} has left it: {cause}"))

    def end(self, refusal: Refusal) -> None:
        """Ends the group on this node: pending operations fail, and communicators are aborted."""
        if self.end_reason is not None:
            return
        self.end_reason = refusal
        log.info("group_over", group=self.id, node=self.node, why=refusal.message)
        for key in list(self._presented):
            operation = self._pop_pending(key)
            assert operation is not None
            self._record.record_failure(key[2], refusal.message)
            self.fail(operation.link, operation.channel, key[2], refusal)
        comms, self._comms = self._comms, {}
        for name, links in comms.items():
            for process, link in links.items():
                self._record.record_abort(name, process, refusal.message)
                send_collective(
                    link, {"op": "abort", "comm": name, "reason": refusal.message, "status": to_text(refusal)}
                )


def _abort_fields(body: Body) -> Body:
    """Returns the reason of an abort, and the status with which the operations under way fail."""
    return {"reason": clean_text(body.get("reason") or ""), "status": check_base64(body.get("status") or "")}
