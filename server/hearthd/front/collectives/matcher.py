"""Matches the ranks of collective operations: an operation runs only after every rank has presented the same one.

Pure: messages of ranks are passed in, messages to ranks are returned, and times are passed in. The bodies of COLLECTIVE
frames are JSON, in which a `status` and a unique id are base64:

- device to front: `present`, `withdraw`, `id`, `joined`, `join_failed`, `failed`, `progress`, `wedged`
- front to device: `fail`, `go`, `create_id`, `join`, `abort`

An operation is identified by its `MatchKey`, and a rank's process by its `RankLocation`. `communicators.py` continues
after all ranks have presented; `signature.py` compares their requests.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from operator import is_
from typing import Any, NamedTuple

from hearth_proto.reasons import Reason, Refusal, to_text
from hearthd.front.collectives import errors
from hearthd.front.collectives.flight_recorder import FlightRecorder
from hearthd.front.collectives.match import DeviceMessage, Match, MatchKey, Presentation, RankLocation
from hearthd.front.collectives.order import CollectiveOrder
from hearthd.front.collectives.signature import find_mismatch

MAX_FAILURES = 256
"""Maximum number of failed operations of one owner that are remembered for ranks that present them later."""


class MatchFailure(NamedTuple):
    """The refusal for ranks that present an operation that has already failed."""

    refusal: Refusal
    withdrawn_by: int | None = None
    """The rank that has withdrawn, as long as no other rank was notified. None: another rank was notified."""


def fail_message(key: MatchKey, presentation: Presentation, refusal: Refusal) -> DeviceMessage:
    """Returns the message that notifies one rank that its operation will not run."""
    return DeviceMessage(
        presentation.location,
        {"op": "fail", "channel": presentation.channel, **key.address(), "status": to_text(refusal)},
    )


def fail_messages(match: Match, refusal: Refusal) -> list[DeviceMessage]:
    """Returns the messages that notify every rank that has presented the operation that it will not run."""
    return [fail_message(match.key, presentation, refusal) for _, presentation in sorted(match.presentations.items())]


def is_lost_with(location: RankLocation, lost: RankLocation | int) -> bool:
    """Returns True if a rank is lost with the process, or with the whole node, `lost`."""
    return location == lost if isinstance(lost, RankLocation) else location.node == lost


class Matcher:
    """The operations that wait for ranks. `failed` counts those that failed here, by reason."""

    def __init__(self, timeout: float, recorder: FlightRecorder, order: CollectiveOrder) -> None:
        self._timeout = timeout
        self._recorder = recorder
        self.order = order
        self.pending: dict[MatchKey, Match] = {}
        """Operations that wait for ranks, and complete operations that wait for others."""
        self.failures: dict[str, OrderedDict[MatchKey, MatchFailure]] = {}
        """Failed operations that are remembered, by owner."""
        self._next_expiry = math.inf
        self._last_matching: tuple[Presentation, ...] = ()
        """The presentations that were compared last, and match."""
        self.failed: Counter[Reason] = Counter()

    def __len__(self) -> int:
        return len(self.pending)

    @property
    def deadline(self) -> float | None:
        """The time at which `expire` must be called; nothing expires before.

        The time may be too early, because an exact one would take a check of all pending operations.
        """
        return self._next_expiry if self.pending else None

    def present_run(
        self, key: MatchKey, rank: int, location: RankLocation, body: Mapping[str, Any], now: float, count: int = 1
    ) -> Iterator[tuple[list[DeviceMessage], Match | None]]:
        """Handles one rank's part in `count` operations, each of which is ordered after the previous one.

        Yields for each operation the messages to send, and the operation if it is complete and all ranks match.

        Raises KeyError, TypeError or ValueError for an invalid `present` message.
        """
        presentation = Presentation.of(location, body)
        predecessors = _parse_predecessors(key, body)
        seconds = float(body.get("timeout") or 0) or self._timeout
        if not 0 <= rank < len(key.members) or not 0 < seconds < math.inf:
            raise ValueError(f"rank {rank} of {len(key.members)}, timeout {seconds}")
        yield self._present(key, rank, presentation, predecessors, now + seconds)
        owner, members, first = key
        for sequence in range(first + 1, first + count):
            predecessors = {key}
            key = MatchKey(owner, members, sequence)
            yield self._present(key, rank, presentation, predecessors, now + seconds)

    def _present(
        self, key: MatchKey, rank: int, presentation: Presentation, predecessors: set[MatchKey], deadline: float
    ) -> tuple[list[DeviceMessage], Match | None]:
        failures = self.failures.get(key.owner)
        failure = failures.get(key) if failures else None
        if failures and failure is not None:
            if failure.withdrawn_by != rank:
                failures[key] = failure._replace(withdrawn_by=None)
                return [fail_message(key, presentation, failure.refusal)], None
            del failures[key]  # the rank takes part after all, and no other rank was notified of its withdrawal
        match = self.pending.get(key)
        if match is None:
            match = self.pending[key] = Match(key, deadline)
            self.order.open(key)
        elif rank in match.presentations:
            return self._fail(match, errors.presented_twice(key, rank)), None
        match.deadline = min(match.deadline, deadline)
        self._next_expiry = min(self._next_expiry, match.deadline)
        match.presentations[rank] = presentation
        match.predecessors |= predecessors
        self._recorder.record_presentation(key, rank, presentation.operations)
        if len(match.presentations) < len(key.members):
            return [], None
        if not self._equals_last_matching(match):
            refusal = self._find_mismatch(match)
            if refusal is not None:
                return self._fail(match, refusal), None
            self._last_matching = tuple(match.presentations.values())
        if match.predecessors and self.order.hold(key, match.predecessors):
            return self._fail_cycle(key), None
        del self.pending[key]
        return [], match

    def released(self) -> Iterator[Match]:
        """Yields the complete operations that were held and may be launched now, with those released meanwhile."""
        while self.order.released:
            match = self.pending.pop(self.order.released.popleft(), None)
            if match is not None:
                yield match

    def withdraw(self, key: MatchKey, rank: int, refusal: Refusal) -> list[DeviceMessage]:
        """Handles the withdrawal of a rank.

        The other ranks cannot run the operation either; they get a refusal immediately, or when they present.
        """
        withdrawal = errors.withdrawn(key, rank, refusal)
        match = self.pending.get(key)
        if match is not None:
            match.presentations.pop(rank, None)
            return self._fail(match, withdrawal)
        self._remember_failure(key, withdrawal, rank)
        return []

    def expire(self, now: float) -> list[DeviceMessage]:
        """Fails the operations that have waited too long, the longest overdue first."""
        overdue = sorted((match.deadline, key) for key, match in self.pending.items() if match.deadline <= now)
        messages: list[DeviceMessage] = []
        for _, key in overdue:
            match = self.pending.get(key)
            if match is not None:
                messages += self._fail(match, self._timeout_refusal(match))
        self._next_expiry = min((match.deadline for match in self.pending.values()), default=math.inf)
        return messages

    def on_loss(self, lost: RankLocation | int, cause: str, owners: Collection[str] = ()) -> list[DeviceMessage]:
        """Fails the operations that can no longer be completed because of the loss of a process or a node.

        A part of such an operation is lost with its process, or will not be presented.

        `owners` are the owners of the ranks in the lost process or node, including ranks that have not presented. For
        other nodes only operations of `owners` are considered.
        """
        is_local = isinstance(lost, RankLocation) and lost.node == 0
        device = lost.device if isinstance(lost, RankLocation) else None
        messages: list[DeviceMessage] = []
        for match in list(self.pending.values()):
            key = match.key
            is_owner_affected = key.owner in owners
            if not is_owner_affected and not is_local:
                continue
            lost_ranks = [
                rank for rank, presentation in match.presentations.items() if is_lost_with(presentation.location, lost)
            ]
            if not lost_ranks and not (is_owner_affected and (key.group or device in key.members)):
                continue
            for rank in lost_ranks:
                del match.presentations[rank]
            messages += self._fail(match, errors.lost_before(key, lost, cause))
        return messages

    def end_owner(self, owner: str, refusal: Refusal) -> list[DeviceMessage]:
        """Fails the waiting operations of an owner, and forgets the owner."""
        messages: list[DeviceMessage] = []
        for match in [match for match in self.pending.values() if match.key.owner == owner]:
            messages += self._fail(match, refusal)
        self.failures.pop(owner, None)
        return messages

    def _timeout_refusal(self, match: Match) -> Refusal:
        if self.order.is_held(match.key):
            return errors.not_released(match.key, self.order.blockers(match.key))
        return self._find_mismatch(match) or errors.not_presented(match)

    def _fail_cycle(self, key: MatchKey) -> list[DeviceMessage]:
        """Fails the operations of the cycle that contains `key`: the ranks have ordered them differently."""
        messages: list[DeviceMessage] = []
        cycle = sorted(self.order.find_cycle(key))
        for member in cycle:
            match = self.pending.get(member)
            if match is not None:
                messages += self._fail(match, errors.in_cycle(member, cycle))
        return messages

    def _equals_last_matching(self, match: Match) -> bool:
        """Returns True if the messages are the ones that were compared last and match.

        This is nearly always the case in a sequence of operations.
        """
        last = self._last_matching
        return len(last) == len(match.presentations) and all(map(is_, last, match.presentations.values()))

    def _find_mismatch(self, match: Match) -> Refusal | None:
        difference = find_mismatch(
            {rank: presentation.operations for rank, presentation in match.presentations.items()},
            len(match.key.members),
        )
        return None if difference is None else errors.mismatch(match.key, difference)

    def _fail(self, match: Match, refusal: Refusal) -> list[DeviceMessage]:
        key = match.key
        del self.pending[key]
        self.order.close(key)
        refusal = errors.with_recorder(refusal, self._recorder.lines(key.owner, key.members))
        self._recorder.record_failure(key, refusal.message)
        self.failed[refusal.reason] += 1
        self._remember_failure(key, refusal)
        return fail_messages(match, refusal)

    def _remember_failure(self, key: MatchKey, refusal: Refusal, withdrawn_by: int | None = None) -> None:
        failures = self.failures.setdefault(key.owner, OrderedDict())
        failures[key] = MatchFailure(refusal, withdrawn_by)
        while len(failures) > MAX_FAILURES:
            failures.popitem(last=False)


def _parse_predecessors(key: MatchKey, body: Mapping[str, Any]) -> set[MatchKey]:
    """Returns the operations that the rank runs before its operation.

    Raises TypeError or ValueError for an invalid list.
    """
    predecessors = body.get("behind")
    if not predecessors:
        return set()
    return {
        MatchKey(key.owner, tuple(map(int, devices)) or key.members, int(sequence))
        for devices, sequence in predecessors
    }
