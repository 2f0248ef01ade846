"""Communicators: created when a group first needs one, then kept, and always aborted on all ranks together.

Pure, like `matcher.py`. A communicator is keyed by the locations of its ranks, in rank order; copies between two
devices have separate communicators. Communicators of local devices are shared by all sessions of those processes;
communicators of a group over daemons belong to that group. Complete operations wait here while their communicator is
being created. Afterwards every rank gets `go` in one order, which is the same on every link. After an abort, a new
communicator is created when the ranks present again.
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
from hearthd.front.collectives.match import DeviceMessage, Match, MatchKey, RankLocation, location_name
from hearthd.front.collectives.matcher import fail_messages, is_lost_with
from hearthd.front.collectives.order import CollectiveOrder

MAX_IDLE = 64
"""Number of communicators of one device process above which idle ones are aborted, the least recently used first."""


class Communicators:
    """The live communicators that this front coordinates.

    `nonce`: the prefix of the communicators' names, which differs between daemons. Random by default.
    """

    def __init__(self, recorder: FlightRecorder, order: CollectiveOrder, nonce: str = "") -> None:
        self._recorder = recorder
        self._order = order
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
        """The time at which `expire` must be called next."""
        waiting = [comm for comm in self._by_id.values() if not comm.is_ready]
        if not waiting:
            return None
        return min((min([comm.deadline, *(match.deadline for match in comm.queue)]) for comm in waiting), default=None)

    def submit(self, match: Match) -> list[DeviceMessage]:
        """Launches an operation that all ranks have presented.

        If its communicator is not ready, the operation waits for it; if there is none, one is created.
        """
        locations = match.locations
        comm = self._by_identity.get((match.key.scope, locations, match.is_copy))
        messages: list[DeviceMessage] = []
        if comm is None:
            comm = self._create(match)
            messages += [
                *self._evict_idle(comm),
                comm.frame("create_id", 0, ranks=len(comm.locations), **comm.transport),
            ]
        else:
            self._by_id[comm.id] = self._by_id.pop(comm.id)  # most recently used
        comm.users.add((match.key.owner, match.key.members))
        if comm.is_ready:
            self._recorder.record_ready(match.key.owner, match.key.members)
            return messages + self._send_go(comm, match)
        comm.deadline = max(comm.deadline, match.deadline)
        comm.queue.append(match)
        return messages

    def _create(self, match: Match) -> Communicator:
        locations = match.locations
        name = f"{self._nonce}-{next(self._numbers)}"
        comm = Communicator(name, match.key, locations, match.deadline, match.is_copy, done=[0] * len(locations))
        self._by_identity[comm.identity] = self._by_id[comm.id] = comm
        return comm

    def _evict_idle(self, comm: Communicator) -> list[DeviceMessage]:
        """Aborts the least recently used idle communicators of each device process that has too many."""
        messages: list[DeviceMessage] = []
        reason = "other communicators were used more recently"
        for location in comm.locations:
            of_process = [other for other in self if location in other.locations]
            idle = [other for other in of_process if other.is_idle]
            for evicted in idle[: max(0, len(of_process) - MAX_IDLE)]:
                messages += self._drop(evicted, reason, errors.failed(evicted.key, reason))
        return messages

    def _send_go(self, comm: Communicator, match: Match) -> list[DeviceMessage]:
        comm.launched += 1
        comm.in_flight.append((comm.launched, match.key))
        self._recorder.record_launch(match.key)
        self._order.close(match.key)
        presentations, size = match.presentations, len(comm.locations)
        message = {"op": "go", **match.key.address(), "comm": comm.id, "index": comm.launched, "ranks": size}
        return [
            DeviceMessage(location, {**message, "channel": presentations[rank].channel, "rank": rank})
            for rank, location in enumerate(comm.locations)
        ]

    # ---- messages of the ranks ----

    def withdraw(self, key: MatchKey, rank: int, refusal: Refusal) -> list[DeviceMessage]:
        """Fails an operation that waits for its communicator, because the rank will not take part."""
        for comm in self:
            for match in [match for match in comm.queue if match.key == key]:
                comm.queue.remove(match)
                match.presentations.pop(rank, None)
                return self._fail(match, errors.withdrawn(key, rank, refusal))
        return []

    def on_message(self, location: RankLocation, body: Mapping[str, Any], owner: str = "") -> list[DeviceMessage]:
        """Handles a message of a rank's process about a communicator, and returns the messages to send.

        Messages about an unknown communicator are ignored.

        `owner` is the group of a message from another daemon; such a message may only concern communicators of that
        group. Raises KeyError, TypeError or ValueError for an invalid message.
        """
        op = body["op"]
        comm = self._by_id.get(str(body["comm"]))
        if comm is None or location not in comm.locations or (owner and comm.key.scope != owner):
            return []
        rank = comm.locations.index(location)
        if op == "id" and rank == 0 and not comm.unique_id:
            comm.unique_id = str(body["unique_id"])
            size = len(comm.locations)
            return [
                comm.frame("join", member, unique_id=comm.unique_id, rank=member, ranks=size, **comm.transport)
                for member in range(size)
            ]
        if op == "joined" and comm.unique_id:
            return self._on_joined(comm, rank)
        if op == "join_failed":
            reason = f"{comm.key.rank_name(rank)} could not join: {_status_message(body)}"
            return self._abort(comm, reason, errors.failed(comm.key, reason, rank), excluded={rank})
        if op == "progress":
            self._on_progress(comm, rank, int(body["done"]))
        elif op == "failed":
            return self._on_failed(comm, rank, body)
        return []

    def _on_joined(self, comm: Communicator, rank: int) -> list[DeviceMessage]:
        if comm.is_ready:
            return []
        comm.joined.add(rank)
        messages: list[DeviceMessage] = []
        if comm.is_ready:
            for user in comm.users:
                self._recorder.record_ready(*user)
        while comm.is_ready and comm.queue:
            messages += self._send_go(comm, comm.queue.popleft())
        return messages

    def _on_progress(self, comm: Communicator, rank: int, done: int) -> None:
        comm.done[rank] = min(comm.launched, max(comm.done[rank], done))
        finished = min(comm.done)
        while comm.in_flight and comm.in_flight[0][0] <= finished:
            _, key = comm.in_flight.popleft()
            self._recorder.record_completion(key)

    def _on_failed(self, comm: Communicator, rank: int, body: Mapping[str, Any]) -> list[DeviceMessage]:
        if not body.get("timed_out"):
            reason = f"{comm.key.rank_name(rank)} reports: {body.get('reason') or 'a failure'}"
            return self._abort(comm, reason, errors.failed(comm.key, reason, rank))
        # The operation that failed: the first one that this rank has not finished or, if the message names a sequence
        # number, the first such operation with that number.
        unfinished = [(index, key) for index, key in comm.in_flight if index > comm.done[rank]]
        matching = [(index, key) for index, key in unfinished if key.sequence == body.get("sequence")]
        index, key = next(iter(matching or unfinished), (comm.done[rank] + 1, comm.key))
        late_ranks = [other_rank for other_rank, done in enumerate(comm.done) if done < index]
        has_one_owner = len({key.owner for _, key in comm.in_flight}) == 1
        refusal = errors.not_finished(comm.key, late_ranks, key.sequence if has_one_owner else None)
        reason = f"{comm.key.rank_names(late_ranks)} did not finish in time"
        return self._abort(comm, reason, refusal)

    # ---- end ----

    def expire(self, now: float) -> list[DeviceMessage]:
        """Fails operations that have waited too long for their communicator, and aborts late communicators.

        A communicator is late if its own time limit has passed and some rank has not joined.
        """
        messages: list[DeviceMessage] = []
        for comm in [comm for comm in self if not comm.is_ready]:
            missing = [rank for rank in range(len(comm.locations)) if rank not in comm.joined]
            for match in sorted(
                (match for match in comm.queue if match.deadline <= now), key=lambda match: match.deadline
            ):
                comm.queue.remove(match)
                messages += self._fail(match, errors.not_joined(match.key, missing))
            if comm.deadline <= now:
                refusal = errors.not_joined(comm.key, missing)
                messages += self._abort(comm, f"{comm.key.rank_names(missing)} did not join in time", refusal)
        return messages

    def on_loss(
        self, lost: RankLocation | int, cause: str, owners: Collection[str] = (), *, intended: bool = False
    ) -> list[DeviceMessage]:
        """Aborts the communicators of a lost process or node on the remaining ranks.

        The next use of the group creates a new one. For other nodes only communicators of `owners` are affected. If the
        end was `intended`, idle communicators do not count as failed.
        """
        is_local = isinstance(lost, RankLocation) and lost.node == 0
        messages: list[DeviceMessage] = []
        for comm in self:
            lost_ranks = {rank for rank, location in enumerate(comm.locations) if is_lost_with(location, lost)}
            if not lost_ranks or not (is_local or comm.key.scope in owners):
                continue
            for match in comm.queue:
                for rank in lost_ranks:
                    del match.presentations[rank]
            reason = f"{location_name(lost)} was lost: {cause}"
            end = self._drop if intended and comm.is_idle else self._abort
            messages += end(comm, reason, errors.failed(comm.key, reason, min(lost_ranks)), excluded=lost_ranks)
        return messages

    def end_owner(self, owner: str, refusal: Refusal) -> list[DeviceMessage]:
        """Fails the waiting operations of an owner and forgets the owner.

        The communicators of a group over daemons are aborted; those of local devices are kept for other sessions.
        """
        messages: list[DeviceMessage] = []
        for comm in self:
            failing = [match for match in comm.queue if match.key.owner == owner]
            comm.queue = deque(match for match in comm.queue if match.key.owner != owner)
            for match in failing:
                messages += self._fail(match, refusal)
            if comm.key.scope == owner:
                messages += (self._drop if comm.is_idle else self._abort)(comm, refusal.message, refusal)
                continue
            comm.in_flight = deque(
                ((index, key) for index, key in comm.in_flight if key.owner != owner), maxlen=REMEMBERED
            )
            comm.users = {user for user in comm.users if user[0] != owner}
        return messages

    def _abort(
        self, comm: Communicator, reason: str, refusal: Refusal, excluded: Collection[int] = ()
    ) -> list[DeviceMessage]:
        self.aborts += 1
        self.failed[refusal.reason] += len(comm.in_flight)
        owners = {(key.owner, key.members) for _, key in comm.in_flight}
        # Operations of other sessions must not be shown.
        lines: Iterable[str] = self._recorder.lines(*owners.pop()) if len(owners) == 1 else []
        for _, key in comm.in_flight:
            self._recorder.record_failure(key, refusal.message)
        for user in comm.users:
            self._recorder.record_abort(*user, reason)
        messages = self._drop(comm, reason, errors.with_recorder(refusal, list(lines)), excluded)
        for match in comm.queue:
            messages += self._fail(match, refusal)
        return messages

    def _drop(
        self, comm: Communicator, reason: str, refusal: Refusal, excluded: Collection[int] = ()
    ) -> list[DeviceMessage]:
        del self._by_id[comm.id], self._by_identity[comm.identity]
        status = to_text(refusal)
        return [
            comm.frame("abort", rank, reason=reason, status=status)
            for rank in range(len(comm.locations))
            if rank not in excluded
        ]

    def _fail(self, match: Match, refusal: Refusal) -> list[DeviceMessage]:
        key = match.key
        self._order.close(key)
        lines = self._recorder.lines(key.owner, key.members)
        self._recorder.record_failure(key, refusal.message)
        self.failed[refusal.reason] += 1
        return fail_messages(match, errors.with_recorder(refusal, lines))


def _status_message(body: Mapping[str, Any]) -> str:
    try:
        return from_text(body.get("status", "")).message or "no reason given"
    except ValueError:
        return "no reason given"
