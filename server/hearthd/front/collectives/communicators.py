"""Communicators: created when a group first needs one, then kept, and always aborted on all ranks together.

Pure, like `matcher.py`. A communicator is keyed by the locations of its ranks, in rank order. Communicators of local
devices are shared by all sessions of those processes; communicators of a group over daemons belong to that group.
Complete operations wait here while their communicator is being created. Afterwards every rank gets `go` in one order,
which is the same on every link. After an abort, a new communicator is created when the ranks present again.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from hearth_proto.reasons import Reason, Refusal, from_text, to_text
from hearthd.front.collectives import errors
from hearthd.front.collectives.communicator import REMEMBERED, Communicator, Identity
from hearthd.front.collectives.flight_recorder import FlightRecorder
from hearthd.front.collectives.match import DeviceMessage, Match, MatchKey, RankLocation, place_name
from hearthd.front.collectives.matcher import fail_all, is_lost_with
from hearthd.front.collectives.order import CollectiveOrder

MAX_IDLE = 64
"""Number of communicators of one device process above which idle ones are aborted, the least recently used first."""


class Communicators:
    """The live communicators that this front coordinates.

    `nonce` makes their names different from those of other daemons.
    """

    def __init__(
        self, recorder: FlightRecorder | None = None, nonce: str = "", order: CollectiveOrder[MatchKey] | None = None
    ) -> None:
        self._recorder = FlightRecorder() if recorder is None else recorder
        self._order = CollectiveOrder[MatchKey]() if order is None else order
        self._nonce = nonce or secrets.token_hex(4)
        self._by_identity: dict[Identity, Communicator] = {}
        self._by_id: dict[str, Communicator] = {}  # least recently used first
        self._numbers = itertools.count(1)
        self.aborts = 0
        """Number of communicators that were aborted because of a failure."""
        self.failed: Counter[Reason] = Counter()
        """Number of operations that did not run or did not end, by reason."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Communicator]:
        return iter(list(self._by_id.values()))

    @property
    def deadline(self) -> float | None:
        """The time at which `expire` has to be called next."""
        waiting = [comm for comm in self._by_id.values() if not comm.ready]
        if not waiting:
            return None
        return min((min([comm.deadline, *(match.deadline for match in comm.queue)]) for comm in waiting), default=None)

    def submit(self, match: Match) -> list[DeviceMessage]:
        """Runs an operation that all ranks have presented, or first has its communicator created."""
        places = match.places
        comm = self._by_identity.get((match.key.scope, places))
        sends: list[DeviceMessage] = []
        if comm is None:
            comm = self._make(match)
            sends += [*self._make_room(comm), comm.frame("create_id", 0, ranks=len(comm.places))]
        else:
            self._by_id[comm.id] = self._by_id.pop(comm.id)  # most recently used
        comm.users.add((match.key.owner, match.key.members))
        if comm.ready:
            self._recorder.ready(match.key.owner, match.key.members)
            return sends + self._send_go(comm, match)
        comm.deadline = max(comm.deadline, match.deadline)
        comm.queue.append(match)
        return sends

    def _make(self, match: Match) -> Communicator:
        places = match.places
        name = f"{self._nonce}-{next(self._numbers)}"
        comm = Communicator(name, match.key, places, match.deadline, done=[0] * len(places))
        self._by_identity[comm.identity] = self._by_id[comm.id] = comm
        return comm

    def _make_room(self, comm: Communicator) -> list[DeviceMessage]:
        """Aborts the least recently used idle communicators of each device process that has too many."""
        sends: list[DeviceMessage] = []
        for place in comm.places:
            there = [each for each in self if place in each.places]
            idle = [each for each in there if each.idle]
            for each in idle[: max(0, len(there) - MAX_IDLE)]:
                why = "other communicators were used more recently"
                sends += self._drop(each, why, errors.failed(each.key, why))
        return sends

    def _send_go(self, comm: Communicator, match: Match) -> list[DeviceMessage]:
        comm.launched += 1
        comm.in_flight.append((comm.launched, match.key))
        self._recorder.launched(match.key)
        self._order.close(match.key)
        parts, message = match.parts, {"op": "go", **match.key.address(), "comm": comm.id, "index": comm.launched}
        message["ranks"] = len(comm.places)
        return [
            DeviceMessage(place, {**message, "channel": parts[rank].channel, "rank": rank})
            for rank, place in enumerate(comm.places)
        ]

    # ---- messages of the ranks ----

    def withdraw(self, key: MatchKey, rank: int, refusal: Refusal) -> list[DeviceMessage]:
        """Fails an operation that waits for its communicator, because the rank will not take part."""
        for comm in self:
            for match in [match for match in comm.queue if match.key == key]:
                comm.queue.remove(match)
                match.parts.pop(rank, None)
                return self._fail(match, errors.withdrawn(key, rank, refusal))
        return []

    def message(self, place: RankLocation, body: Mapping[str, Any], owner: str = "") -> list[DeviceMessage]:
        """Handles a message of a rank's process about a communicator.

        Messages about an unknown communicator are ignored.

        `owner` is the group of a message from another daemon; such a message may only concern communicators of that
        group. Raises KeyError, TypeError or ValueError for an invalid message.
        """
        op = body["op"]
        comm = self._by_id.get(str(body["comm"]))
        if comm is None or place not in comm.places or (owner and comm.key.scope != owner):
            return []
        rank = comm.places.index(place)
        if op == "id" and rank == 0 and not comm.unique_id:
            comm.unique_id = str(body["unique_id"])
            ranks = len(comm.places)
            return [comm.frame("join", each, unique_id=comm.unique_id, rank=each, ranks=ranks) for each in range(ranks)]
        if op == "joined" and comm.unique_id:
            return self._joined(comm, rank)
        if op == "join_failed":
            why = f"{comm.key.name(rank)} could not join: {_reason(body)}"
            return self._abort(comm, why, errors.failed(comm.key, why, rank), except_for={rank})
        if op == "progress":
            self._progress(comm, rank, int(body["done"]))
        elif op == "failed":
            return self._failed(comm, rank, body)
        return []

    def _joined(self, comm: Communicator, rank: int) -> list[DeviceMessage]:
        if comm.ready:
            return []
        comm.joined.add(rank)
        sends: list[DeviceMessage] = []
        if comm.ready:
            for user in comm.users:
                self._recorder.ready(*user)
        while comm.ready and comm.queue:
            sends += self._send_go(comm, comm.queue.popleft())
        return sends

    def _progress(self, comm: Communicator, rank: int, done: int) -> None:
        comm.done[rank] = min(comm.launched, max(comm.done[rank], done))
        finished = min(comm.done)
        while comm.in_flight and comm.in_flight[0][0] <= finished:
            _, key = comm.in_flight.popleft()
            self._recorder.finished(key)

    def _failed(self, comm: Communicator, rank: int, body: Mapping[str, Any]) -> list[DeviceMessage]:
        if not body.get("timed_out"):
            why = f"{comm.key.name(rank)} reports: {body.get('reason') or 'a failure'}"
            return self._abort(comm, why, errors.failed(comm.key, why, rank))
        # The operation that failed: the first one that this rank has not finished or, if the message names a sequence
        # number, the first such operation with that number.
        ahead = [(index, key) for index, key in comm.in_flight if index > comm.done[rank]]
        named = [(index, key) for index, key in ahead if key.sequence == body.get("sequence")]
        index, key = next(iter(named or ahead), (comm.done[rank] + 1, comm.key))
        behind = [each for each, done in enumerate(comm.done) if done < index]
        alone = len({key.owner for _, key in comm.in_flight}) == 1
        refusal = errors.not_finished(comm.key, behind, key.sequence if alone else None)
        why = f"{comm.key.names(behind)} did not finish in time"
        return self._abort(comm, why, refusal)

    # ---- end ----

    def expire(self, now: float) -> list[DeviceMessage]:
        """Fails operations that have waited too long for their communicator, and aborts late communicators.

        A communicator is late if its own time limit has passed and some rank has not joined.
        """
        sends: list[DeviceMessage] = []
        for comm in [comm for comm in self if not comm.ready]:
            late = [rank for rank in range(len(comm.places)) if rank not in comm.joined]
            for match in sorted((match for match in comm.queue if match.deadline <= now), key=lambda one: one.deadline):
                comm.queue.remove(match)
                sends += self._fail(match, errors.not_joined(match.key, late))
            if comm.deadline <= now:
                refusal = errors.not_joined(comm.key, late)
                sends += self._abort(comm, f"{comm.key.names(late)} did not join in time", refusal)
        return sends

    def on_loss(self, where: RankLocation | int, why: str, owners: Collection[str] = ()) -> list[DeviceMessage]:
        """Aborts the communicators of a lost process or node on the remaining ranks.

        The next use of the group creates a new one. For other nodes only communicators of `owners` are affected.
        """
        local = isinstance(where, RankLocation) and where.node == 0
        sends: list[DeviceMessage] = []
        for comm in self:
            gone = {rank for rank, place in enumerate(comm.places) if is_lost_with(place, where)}
            if not gone or not (local or comm.key.scope in owners):
                continue
            for match in comm.queue:
                for rank in gone:
                    del match.parts[rank]
            text = f"{place_name(where)} was lost: {why}"
            sends += self._abort(comm, text, errors.failed(comm.key, text, min(gone)), except_for=gone)
        return sends

    def end_owner(self, owner: str, refusal: Refusal) -> list[DeviceMessage]:
        """Fails the waiting operations of an owner and forgets the owner.

        The communicators of a group over daemons are aborted; those of local devices are kept for other sessions.
        """
        sends: list[DeviceMessage] = []
        for comm in self:
            theirs = [match for match in comm.queue if match.key.owner == owner]
            comm.queue = deque(match for match in comm.queue if match.key.owner != owner)
            for match in theirs:
                sends += self._fail(match, refusal)
            if comm.key.scope == owner:
                sends += (self._drop if comm.idle else self._abort)(comm, refusal.message, refusal)
                continue
            comm.in_flight = deque(((at, key) for at, key in comm.in_flight if key.owner != owner), maxlen=REMEMBERED)
            comm.users = {user for user in comm.users if user[0] != owner}
        return sends

    def _abort(
        self, comm: Communicator, why: str, refusal: Refusal, except_for: Collection[int] = ()
    ) -> list[DeviceMessage]:
        self.aborts += 1
        self.failed[refusal.reason] += len(comm.in_flight)
        owners = {(key.owner, key.members) for _, key in comm.in_flight}
        # Operations of other sessions must not be shown.
        lines: Iterable[str] = self._recorder.lines(*owners.pop()) if len(owners) == 1 else []
        for _, key in comm.in_flight:
            self._recorder.failed(key, refusal.message)
        for user in comm.users:
            self._recorder.aborted(*user, why)
        sends = self._drop(comm, why, errors.with_recorder(refusal, list(lines)), except_for)
        for match in comm.queue:
            sends += self._fail(match, refusal)
        return sends

    def _drop(
        self, comm: Communicator, why: str, refusal: Refusal, except_for: Collection[int] = ()
    ) -> list[DeviceMessage]:
        del self._by_id[comm.id], self._by_identity[comm.identity]
        status = to_text(refusal)
        return [
            comm.frame("abort", rank, reason=why, status=status)
            for rank in range(len(comm.places))
            if rank not in except_for
        ]

    def _fail(self, match: Match, refusal: Refusal) -> list[DeviceMessage]:
        key = match.key
        self._order.close(key)
        lines = self._recorder.lines(key.owner, key.members)
        self._recorder.failed(key, refusal.message)
        self.failed[refusal.reason] += 1
        return fail_all(match, errors.with_recorder(refusal, lines))


def _reason(body: Mapping[str, Any]) -> str:
    try:
        return from_text(body.get("status", "")).message or "no reason given"
    except ValueError:
        return "no reason given"
