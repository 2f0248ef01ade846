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
from dataclasses import dataclass
from operator import is_
from typing import Any, NamedTuple

from hearth_proto.reasons import Reason, Refusal, to_text
from hearthd.front.collectives import errors
from hearthd.front.collectives.flight_recorder import FlightRecorder
from hearthd.front.collectives.match import DeviceMessage, Match, MatchKey, Presentation, RankLocation
from hearthd.front.collectives.order import CollectiveOrder
from hearthd.front.collectives.signature import mismatch

MAX_FAILURES = 256
"""Maximum number of failed operations of one owner that are remembered for ranks that present them later."""


class MatchFailure(NamedTuple):
    """The refusal for ranks that present an operation that has already failed."""

    refusal: Refusal
    by: int | None = None
    """The rank that has withdrawn, as long as no other rank was notified. None: another rank was notified."""


def fail(key: MatchKey, part: Presentation, refusal: Refusal) -> DeviceMessage:
    """Returns the message that tells one rank that its operation will not run."""
    return DeviceMessage(
        part.place, {"op": "fail", "channel": part.channel, **key.address(), "status": to_text(refusal)}
    )


def fail_all(match: Match, refusal: Refusal) -> list[DeviceMessage]:
    """Returns the messages that tell every rank that has presented that the operation will not run."""
    return [fail(match.key, part, refusal) for _, part in sorted(match.parts.items())]


def is_lost_with(place: RankLocation, where: RankLocation | int) -> bool:
    """Returns True if a rank is lost with the process, or with the whole node, `where`."""
    return place == where if isinstance(where, RankLocation) else place.node == where


@dataclass(frozen=True)
class MatcherView:
    """State of a `Matcher`, for tests and diagnostics."""

    pending: frozenset[MatchKey]
    """Operations that wait for ranks, and complete operations that are held behind others."""
    failures: Mapping[str, int]
    """Number of failed operations that are remembered, by owner."""
    open: int
    """Number of operations in the order that have neither been released nor failed."""


class Matcher:
    """The operations that wait for ranks. `failed` counts those that failed here, by reason."""

    def __init__(
        self,
        timeout: float = 30.0,
        recorder: FlightRecorder | None = None,
        order: CollectiveOrder[MatchKey] | None = None,
    ) -> None:
        self._timeout = timeout
        self._recorder = FlightRecorder() if recorder is None else recorder
        self._order = CollectiveOrder[MatchKey]() if order is None else order
        self._pending: dict[MatchKey, Match] = {}
        """Operations that wait for ranks, and complete operations that are held behind others."""
        self._failures: dict[str, OrderedDict[MatchKey, MatchFailure]] = {}
        self._due = math.inf
        self._agreed: tuple[Presentation, ...] = ()
        """The presentations that were compared last, and match."""
        self.failed: Counter[Reason] = Counter()

    def __len__(self) -> int:
        return len(self._pending)

    def inspect(self) -> MatcherView:
        """Returns the pending operations, and the number of remembered failures."""
        failures = {owner: len(failed) for owner, failed in self._failures.items()}
        return MatcherView(frozenset(self._pending), failures, len(self._order))

    @property
    def deadline(self) -> float | None:
        """The time at which `expire` has to be called; nothing expires before.

        The time may be too early, because an exact one would take a check of all pending operations.
        """
        return self._due if self._pending else None

    def present_run(
        self, key: MatchKey, rank: int, place: RankLocation, body: Mapping[str, Any], now: float, count: int = 1
    ) -> Iterator[tuple[list[DeviceMessage], Match | None]]:
        """Handles one rank's part in `count` operations, each of which is ordered behind the previous one.

        Yields for each operation the messages to send, and the operation if it is complete and all ranks match.

        Raises KeyError, TypeError or ValueError for an invalid `present` message.
        """
        part = Presentation.of(place, body)
        behind = _behind(key, body)
        seconds = float(body.get("timeout") or 0) or self._timeout
        if not 0 <= rank < len(key.members) or not 0 < seconds < math.inf:
            raise ValueError(f"rank {rank} of {len(key.members)}, timeout {seconds}")
        yield self._present(key, rank, part, behind, now + seconds)
        owner, members, first = key
        for sequence in range(first + 1, first + count):
            behind = {key}
            key = MatchKey(owner, members, sequence)
            yield self._present(key, rank, part, behind, now + seconds)

    def _present(
        self, key: MatchKey, rank: int, part: Presentation, behind: set[MatchKey], deadline: float
    ) -> tuple[list[DeviceMessage], Match | None]:
        failures = self._failures.get(key.owner)
        failure = failures.get(key) if failures else None
        if failures and failure is not None:
            if failure.by != rank:
                failures[key] = failure._replace(by=None)
                return [fail(key, part, failure.refusal)], None
            del failures[key]  # the rank takes part after all, and no other rank was notified of its withdrawal
        match = self._pending.get(key)
        if match is None:
            match = self._pending[key] = Match(key, deadline)
            self._order.open(key)
        elif rank in match.parts:
            return self._fail(match, errors.presented_twice(key, rank)), None
        match.deadline = min(match.deadline, deadline)
        self._due = min(self._due, match.deadline)
        match.parts[rank] = part
        match.behind |= behind
        self._recorder.presented(key, rank, part.operations)
        if len(match.parts) < len(key.members):
            return [], None
        if not self._agrees(match):
            refusal = self._mismatch(match)
            if refusal is not None:
                return self._fail(match, refusal), None
            self._agreed = tuple(match.parts.values())
        if match.behind and self._order.hold(key, match.behind):
            return self._crossed(key), None
        del self._pending[key]
        return [], match

    def released(self) -> Match | None:
        """Returns the next complete operation that was held and may be launched now; None: there is none."""
        while self._order.released:
            match = self._pending.pop(self._order.released.popleft(), None)
            if match is not None:
                return match
        return None

    def withdraw(self, key: MatchKey, rank: int, refusal: Refusal) -> list[DeviceMessage]:
        """Handles the withdrawal of a rank.

        The other ranks cannot run the operation either; they get a refusal at once, or when they present.
        """
        withdrawal = errors.withdrawn(key, rank, refusal)
        match = self._pending.get(key)
        if match is not None:
            match.parts.pop(rank, None)
            return self._fail(match, withdrawal)
        self._remember(key, withdrawal, rank)
        return []

    def expire(self, now: float) -> list[DeviceMessage]:
        """Fails the operations that have waited too long, the longest overdue first."""
        late = sorted((match.deadline, key) for key, match in self._pending.items() if match.deadline <= now)
        sends: list[DeviceMessage] = []
        for _, key in late:
            match = self._pending.get(key)
            if match is not None:
                sends += self._fail(match, self._late(match))
        self._due = min((match.deadline for match in self._pending.values()), default=math.inf)
        return sends

    def on_loss(self, where: RankLocation | int, why: str, owners: Collection[str] = ()) -> list[DeviceMessage]:
        """Fails the operations that can no longer be completed because of the loss of a process or a node.

        A part of such an operation is lost with its process, or will not be presented.

        `owners` are the owners of the ranks in the lost process or node, including ranks that have not presented. For
        other nodes only operations of `owners` are considered.
        """
        local = isinstance(where, RankLocation) and where.node == 0
        device = where.device if isinstance(where, RankLocation) else None
        sends: list[DeviceMessage] = []
        for match in list(self._pending.values()):
            key = match.key
            theirs = key.owner in owners
            if not theirs and not local:
                continue
            gone = [rank for rank, part in match.parts.items() if is_lost_with(part.place, where)]
            if not gone and not (theirs and (key.group or device in key.members)):
                continue
            for rank in gone:
                del match.parts[rank]
            sends += self._fail(match, errors.lost_before(key, where, why))
        return sends

    def end_owner(self, owner: str, refusal: Refusal) -> list[DeviceMessage]:
        """Fails the waiting operations of an owner, and forgets the owner."""
        sends: list[DeviceMessage] = []
        for match in [match for match in self._pending.values() if match.key.owner == owner]:
            sends += self._fail(match, refusal)
        self._failures.pop(owner, None)
        return sends

    def _late(self, match: Match) -> Refusal:
        if self._order.is_held(match.key):
            return errors.held(match.key, self._order.blockers(match.key))
        return self._mismatch(match) or errors.not_presented(match)

    def _crossed(self, key: MatchKey) -> list[DeviceMessage]:
        """Fails operations that the ranks have presented in contradictory orders."""
        sends: list[DeviceMessage] = []
        circle = sorted(self._order.find_cycle(key))
        for each in circle:
            match = self._pending.get(each)
            if match is not None:
                sends += self._fail(match, errors.crossed(each, circle))
        return sends

    def _agrees(self, match: Match) -> bool:
        """Returns True if the messages are the ones that were compared last and match.

        This is nearly always the case in a sequence of operations.
        """
        agreed = self._agreed
        return len(agreed) == len(match.parts) and all(map(is_, agreed, match.parts.values()))

    def _mismatch(self, match: Match) -> Refusal | None:
        found = mismatch({rank: part.operations for rank, part in match.parts.items()}, len(match.key.members))
        return None if found is None else errors.mismatch(match.key, found)

    def _fail(self, match: Match, refusal: Refusal) -> list[DeviceMessage]:
        key = match.key
        del self._pending[key]
        self._order.close(key)
        refusal = errors.with_recorder(refusal, self._recorder.lines(key.owner, key.members))
        self._recorder.failed(key, refusal.message)
        self.failed[refusal.reason] += 1
        self._remember(key, refusal)
        return fail_all(match, refusal)

    def _remember(self, key: MatchKey, refusal: Refusal, by: int | None = None) -> None:
        failures = self._failures.setdefault(key.owner, OrderedDict())
        failures[key] = MatchFailure(refusal, by)
        while len(failures) > MAX_FAILURES:
            failures.popitem(last=False)


def _behind(key: MatchKey, body: Mapping[str, Any]) -> set[MatchKey]:
    """Returns the operations behind which the rank has ordered its operation.

    Raises TypeError or ValueError for an invalid list.
    """
    behind = body.get("behind")
    if not behind:
        return set()
    return {MatchKey(key.owner, tuple(map(int, devices)) or key.members, int(sequence)) for devices, sequence in behind}
