"""The record of a group's operations in a daemon that has joined it: when its own ranks presented them, and their
outcome there.

The coordinator's flight recorder has all ranks; this one has those of this node, so that an operator of any node sees
what its ranks did last. Bounded, as every ring of a flight recorder is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hearthd.front.collectives.flight_recorder import OPERATIONS, FlightRecorder, GroupHistory
from hearthd.front.collectives.match import GROUP, MatchKey

Where = tuple[int, int]
"""A device and the generation of its process."""


@dataclass
class InFlightOperations:
    """Operations that one process was released to run on a communicator and has not finished: number and sequence."""

    rank: int
    operations: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=OPERATIONS))


@dataclass(frozen=True)
class PeerRecordView:
    """State of a `PeerRecord`, for tests and diagnostics."""

    in_flight: Mapping[tuple[str, Where], int]
    """Number of operations that have not finished, by communicator and process."""
    unfinished: int
    """Operations that some of the ranks here have finished and others have not."""


class PeerRecord:
    """The record of one group. `own`: the number of its ranks here."""

    def __init__(self, group: str, ranks: int, own: int, recorder: FlightRecorder | None = None) -> None:
        self._recorder = FlightRecorder() if recorder is None else recorder
        self._owner, self._members, self._own = GROUP + group, tuple(range(ranks)), own
        self._flying: dict[tuple[str, Where], InFlightOperations] = {}
        self._finished: dict[int, set[int]] = {}
        """Local ranks that have finished a sequence number, while others have not."""

    @property
    def ring(self) -> GroupHistory | None:
        """The history of the group; None while nothing was presented."""
        return self._recorder.ring(self._owner, self._members)

    def inspect(self) -> PeerRecordView:
        """Returns how much is remembered of operations that have not finished on all ranks here."""
        in_flight = {place: len(flying.operations) for place, flying in self._flying.items()}
        return PeerRecordView(in_flight, len(self._finished))

    def presented(self, rank: int, body: Mapping[str, Any]) -> None:
        self._recorder.presented(self._key(int(body["sequence"])), rank, body["signature"])

    def went(self, comm: str, where: Where, rank: int, sequence: int, index: int) -> None:
        """Notes that a rank was released to run an operation, the `index`th of the communicator."""
        key = self._key(sequence)
        ring = self.ring
        if ring is not None and sequence in ring.operations and not ring.operations[sequence].launched:
            self._recorder.launched(key)
        self._recorder.ready(self._owner, self._members)
        self._flying.setdefault((comm, where), InFlightOperations(rank)).operations.append((index, sequence))

    def progress(self, comm: str, where: Where, done: int) -> None:
        """Notes that a process has finished `done` operations of the communicator."""
        flying = self._flying.get((comm, where))
        while flying is not None and flying.operations and flying.operations[0][0] <= done:
            _, sequence = flying.operations.popleft()
            finished = self._finished.setdefault(sequence, set())
            finished.add(flying.rank)
            if len(finished) == self._own:
                del self._finished[sequence]
                self._recorder.finished(self._key(sequence))
        while len(self._finished) > OPERATIONS:
            del self._finished[next(iter(self._finished))]

    def failed(self, sequence: int, why: str) -> None:
        """Notes that a rank's operation failed, or was not answered."""
        self._finished.pop(sequence, None)
        self._recorder.failed(self._key(sequence), why)

    def aborted(self, comm: str, where: Where, why: str) -> None:
        """A process has no such communicator any more."""
        others = any(name == comm and there != where for name, there in self._flying)
        flying = self._flying.pop((comm, where), None)
        for _, sequence in flying.operations if flying is not None else ():
            self.failed(sequence, why)
        if flying is not None and not others:
            self._recorder.aborted(self._owner, self._members, why)

    def _key(self, sequence: int) -> MatchKey:
        return MatchKey(self._owner, self._members, sequence)
