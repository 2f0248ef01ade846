"""Negotiation with the front about operations of this rank that have not been launched."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from hearth_proto.reasons import Reason, Refusal, to_text
from hearthd.device.collectives.abort import Post
from hearthd.device.collectives.communicators import CHECK_S, Memberships
from hearthd.device.collectives.membership import decode_refusal
from hearthd.device.collectives.outgoing import OutgoingOperations, Send
from hearthd.device.collectives.parts import CollectivePart, locate
from hearthd.device.collectives.pending import LaunchOrder, OperationKey, PendingCollective
from hearthd.device.context import DeviceContext
from hearthd.device.platform.spin_policy import at_most
from hearthd.device.session.session import DeviceSession

MAX_PRESENTED = 512
"""Limit of a session's operations, each part of a batch counted, that are presented and not known to be done. Beyond
the limit, an operation is presented only when its turn has come. Its time limit then begins at that moment, and
includes the operations before it."""

MAX_PRESENTED_IN_TURN = 4096
"""Limit like `MAX_PRESENTED` for operations whose turn has come, on any number of streams."""

REFILL = 64
"""Room (number of operations) at which more of a queue is presented: together as one message, not one message for each
operation that is done."""

REMEMBERED = 1024
"""Number of recently launched operations that are remembered; an operation with the same number is refused."""

SessionOf = Callable[[int], DeviceSession | None]
"""Returns the session of a channel."""


class Negotiation:
    """Operations that have been submitted and not launched. Device-handle thread only."""

    def __init__(self, device: DeviceContext, post: Post, say: Send, session_of: SessionOf) -> None:
        self._device = device
        self._session_of = session_of
        self.outgoing = OutgoingOperations(say, self._unanswered)
        """Presented operations that have not been sent. Other messages to the front are sent after them."""
        self.members = Memberships(device, post, self.outgoing.send)
        self._pending: dict[OperationKey, PendingCollective] = {}
        self._released: dict[PendingCollective, None] = {}
        """Operations that the front has released for launch."""
        self._launched: OrderedDict[OperationKey, None] = OrderedDict()
        self._weights: dict[DeviceSession, int] = {}
        """Weight of the operations that each session has presented and that are not known to be done."""
        self._waiting_for_room: dict[DeviceSession, deque[PendingCollective]] = {}
        """Operations that wait for room to be presented, in order."""
        self._failing: set[DeviceSession] = set()
        """Sessions with a failed operation that follows operations that are still running."""
        self._next_check = 0.0

    def add(
        self, session: DeviceSession, key: OperationKey, parts: list[CollectivePart], seconds: float
    ) -> PendingCollective:
        """Registers a submitted operation. Raises Refusal(INVALID_ARGUMENT) if its number was used before."""
        if key in self._pending or key in self._launched:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"{key} was submitted before",
                fix="number a group's operations from 1, and use each number once",
                details={"sequence": key.sequence},
            )
        pending = self._pending[key] = PendingCollective(self.present_early, session, key, parts, seconds)
        return pending

    # ---- presenting ----

    def present_early(self, pending: PendingCollective, predecessors: list[PendingCollective]) -> None:
        """Presents the operation, or queues it until there is room. Raises the same errors as `locate`.

        The operation is ordered after `predecessors`, which have been presented or queued.
        """
        group = pending.key.group
        # A group over several daemons has a separate order and track, and may wait for anything. If an operation of a
        # group of this daemon's devices could be launched while it waits for such a group, it would block all other
        # operations on its track.
        if not group and any(predecessor.key.group for predecessor in predecessors):
            return
        locate(pending.parts)
        pending.predecessors = [
            predecessor.key
            for predecessor in predecessors
            if predecessor.comm is None and predecessor.key.group == group
        ]
        pending.scheduled = True
        queue = self._waiting_for_room.get(pending.session)
        if queue or self._crowded(pending):
            if queue is None:
                queue = self._waiting_for_room[pending.session] = deque()
            queue.append(pending)
        else:
            self._present(pending)

    def present(self, pending: PendingCollective) -> bool:
        """Presents an operation whose turn has come, with no earlier one left.

        Returns False if there is no room even within `MAX_PRESENTED_IN_TURN`.
        """
        if self._crowded(pending, MAX_PRESENTED_IN_TURN):
            return False
        pending.predecessors = []
        self._present(pending)
        return True

    def _crowded(self, pending: PendingCollective, limit: int = MAX_PRESENTED) -> bool:
        weight = self._weights.get(pending.session, 0)
        return weight > 0 and weight + pending.weight > limit

    def _present(self, pending: PendingCollective) -> None:
        """Reports to the front that this rank has reached the operation, and starts its time limit."""
        pending.presented = pending.scheduled = True
        pending.deadline = time.monotonic() + pending.seconds
        weight = self._weights.get(pending.session, 0)
        self._weights[pending.session] = weight + pending.weight
        signature = [part.signature for part in pending.parts]
        self.outgoing.add(pending, signature)
        if not weight:
            self.outgoing.flush()
            self._device.outbox.send()  # the front handles the first of a series while this process handles the others

    def _make_room(self, session: DeviceSession, weight: int) -> None:
        """Subtracts `weight` from the weight of the session's presented operations.

        Presents queued operations that now have room.
        """
        remaining = self._weights.get(session, 0) - weight
        if remaining > 0:
            self._weights[session] = remaining
        else:
            self._weights.pop(session, None)
        if remaining + weight > MAX_PRESENTED:
            self._device.kick(session)  # an operation whose turn has come may find room now
        queue = self._waiting_for_room.get(session)
        if remaining > MAX_PRESENTED - REFILL:
            return
        while queue and (queue[0].presented or not self._crowded(queue[0])):
            pending = queue.popleft()
            if not pending.presented and self._pending.get(pending.key) is pending:
                pending.predecessors = [key for key in pending.predecessors if self._unanswered(key)]
                self._present(pending)
        if queue is not None and not queue:
            del self._waiting_for_room[session]

    def _unanswered(self, key: OperationKey) -> bool:
        pending = self._pending.get(key)
        return pending is not None and pending.comm is None and pending.error is None

    # ---- launch and end ----

    def next(self, pending: PendingCollective) -> bool:
        """True if the operation is the next one of its track, in the order that all ranks keep."""
        lane = pending.lane
        if lane is None:
            return True
        while (head := lane.head) is not None and head is not pending and self.members.get(head.comm or "") is None:
            # its communicator has ended, so it leaves its place in the order; the operation fails when its turn comes
            lane.drop(head)
            head.lane = None
        return head is pending

    def launched(self, pending: PendingCollective) -> None:
        """Records that the operation has been launched; `settled` must be called when its outcome is known."""
        del self._pending[pending.key]
        self._released.pop(pending, None)
        lane = pending.lane
        if lane is not None:
            lane.launched(pending)
            self._schedule_next(lane)
        self._launched[pending.key] = None
        while len(self._launched) > REMEMBERED:
            self._launched.popitem(last=False)

    def settled(self, pending: PendingCollective) -> None:
        """Records that the operation's outcome is known."""
        lane = pending.lane
        if lane is not None:
            full = lane.head is None
            lane.done(pending)
            if full:
                self._schedule_next(lane)
        self._remove_presented(pending)
        if pending.session in self._failing:
            self._failing.discard(pending.session)
            self._device.kick(pending.session)

    def wait_for_earlier(self, pending: PendingCollective) -> None:
        """Keeps a failed operation until the outcome of an earlier operation is known."""
        self._failing.add(pending.session)

    def failed(self, pending: PendingCollective, refusal: Refusal) -> None:
        """Ends an operation that will not be launched, because it was refused, skipped or abandoned."""
        if self._pending.get(pending.key) is not pending:
            return
        del self._pending[pending.key]
        self._released.pop(pending, None)
        if pending.lane is not None:
            pending.lane.drop(pending)
            self._schedule_next(pending.lane)
        if pending.comm is not None:
            self._report_missed(pending.key, pending.comm, refusal.message)
        elif pending.error is None:
            self.withdraw(pending.key, refusal)
        self._remove_presented(pending)

    def withdraw(self, key: OperationKey, refusal: Refusal) -> None:
        """Notifies the other ranks that this rank will not take part in the operation."""
        self.outgoing.send({"op": "withdraw", **key.address(), "status": to_text(refusal)})

    def _remove_presented(self, pending: PendingCollective) -> None:
        if pending.presented:
            pending.presented = False
            self._make_room(pending.session, pending.weight)

    def _schedule_next(self, lane: LaunchOrder) -> None:
        """Schedules the session of the next operation on the track, which may be a different session."""
        head = lane.head
        if head is not None:
            self._device.kick(head.session)

    def _report_missed(self, key: OperationKey, comm: str | None, cause: str) -> None:
        """Reports an operation that this rank missed: the other ranks launch it, and would wait for this rank."""
        member = self.members.get(comm) if comm is not None else None
        if member is not None:
            reason = f"device {self._device.spec.ordinal} cannot take part in {key}: {cause}"
            self.members.broken(member, reason, key.sequence)

    # ---- messages of the front ----

    def answered(self, message: dict[str, Any]) -> None:
        """Handles `go` or `fail`. Raises KeyError, TypeError or ValueError for a malformed message."""
        channel, sequence = int(message["channel"]), int(message["sequence"])
        group, devices = str(message.get("group") or ""), tuple(map(int, message["devices"]))
        if message["op"] == "go":
            comm, index = str(message["comm"]), int(message.get("index") or 0)
            for offset in range(int(message.get("count") or 1)):
                key = OperationKey(channel, group, devices, sequence + offset)
                self._go(key, self._pending.get(key), comm, index + offset if index else 0)
        else:
            pending = self._pending.get(OperationKey(channel, group, devices, sequence))
            if pending is not None and pending.comm is None and pending.error is None:
                pending.error = decode_refusal(message.get("status"))
        if self.outgoing.settle():
            self._device.outbox.send()  # the front handles further operations while these are launched
        self._kick(channel)

    def _go(self, key: OperationKey, pending: PendingCollective | None, comm: str, index: int) -> None:
        member = self.members.get(comm)
        if member is not None and index and not member.flights.number(index):
            return  # this number was recorded before
        if pending is None or not pending.presented or pending.error is not None:
            if index:
                self._report_missed(key, comm, "it was cancelled before")
        elif pending.comm is None:
            pending.comm, pending.index = comm, index
            self._released[pending] = None
            if member is not None:
                pending.lane = member.lane
                member.lane.enqueue(pending)

    def leave(self, channel: int, group: str) -> None:
        """Fails the pending operations of a group over several daemons that the session has left."""
        for key, pending in self._pending.items():
            if key.channel == channel and key.group == group and pending.error is None:
                pending.error = Refusal(
                    Reason.COMMUNICATOR_FAILED,
                    f"{key} cannot start: the group was left",
                    fix="create a new group",
                    details={"sequence": key.sequence},
                )
        self._forget(lambda key: key.channel == channel and key.group == group)
        self._kick(channel)

    def close(self, session: DeviceSession) -> None:
        """Forgets a session that has ended; its operations have been abandoned."""
        self._waiting_for_room.pop(session, None)
        self._failing.discard(session)
        self.outgoing.forget(session.channel)
        self._forget(lambda key: key.channel == session.channel)

    def _forget(self, matches: Callable[[OperationKey], bool]) -> None:
        for key in [key for key in self._launched if matches(key)]:
            del self._launched[key]

    def _kick(self, channel: int) -> None:
        session = self._session_of(channel)
        if session is not None:
            self._device.kick(session)

    # ---- the loop ----

    def poll(self, limit: float | None) -> float | None:
        """Reports, at intervals, released operations that could not start in time, because their peers wait for them.

        Returns the longest time that the loop may sleep, at most `limit`.
        """
        limit = self.outgoing.max_sleep(limit)
        if not self._released:
            return limit
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + CHECK_S
            self._report_overdue(now)
        return at_most(CHECK_S, limit)

    def _report_overdue(self, now: float) -> None:
        for pending in self._released:
            member = self.members.get(pending.comm) if pending.comm is not None else None
            if member is not None and pending.deadline <= now:
                device = self._device.spec.ordinal
                reason = f"{pending.key} was allowed to start, but could not start in time on device {device}"
                self.members.broken(member, reason, pending.key.sequence, timed_out=True)
