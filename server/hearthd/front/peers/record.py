"""The record of a group's operations in a daemon that has joined the group.

Covers the times at which its own ranks presented them, and their outcome on those ranks.

The coordinator's flight recorder has all ranks. This record has the ranks of this node, so that an operator of any node
can see what its ranks did last. It is bounded, like every ring of a flight recorder.
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
    """Operations that one process may run on a communicator, unfinished: pairs of index and sequence number."""

    rank: int
    operations: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=OPERATIONS))


@dataclass(frozen=True)
class PeerRecordView:
    """State of a `PeerRecord`, for tests and diagnostics."""

    in_flight: Mapping[tuple[str, Where], int]
    """Number of unfinished operations, by communicator and process."""
    unfinished: int
    """Number of operations that only some of the local ranks have finished."""


class PeerRecord:
    """The record of one group. `own`: the number of the group's ranks on this node."""

    def __init__(self, group: str, ranks: int, own: int, recorder: FlightRecorder | None = None) -> None:
        self._recorder = FlightRecorder() if recorder is None else recorder
        self._owner, self._members, self._own = GROUP + group, tuple(range(ranks)), own
        self._in_flight: dict[tuple[str, Where], InFlightOperations] = {}
        self._finished: dict[int, set[int]] = {}
        """Local ranks that have finished an operation which other local ranks have not, by sequence number."""

    @property
    def ring(self) -> GroupHistory | None:
        """The history of the group. None: nothing was presented yet."""
        return self._recorder.ring(self._owner, self._members)

    def inspect(self) -> PeerRecordView:
        """Returns how many operations are remembered that have not finished on all local ranks."""
        in_flight = {place: len(flying.operations) for place, flying in self._in_flight.items()}
        return PeerRecordView(in_flight, len(self._finished))

    def presented(self, rank: int, body: Mapping[str, Any]) -> None:
        """Notes that a local rank has presented the operation of a `present` message."""
        self._recorder.presented(self._key(int(body["sequence"])), rank, body["signature"])

    def launched(self, comm: str, where: Where, rank: int, sequence: int, index: int) -> None:
        """Notes that a rank may run an operation, which has the number `index` on the communicator."""
        key = self._key(sequence)
        ring = self.ring
        if ring is not None and sequence in ring.operations and not ring.operations[sequence].launched:
            self._recorder.launched(key)
        self._recorder.ready(self._owner, self._members)
        self._in_flight.setdefault((comm, where), InFlightOperations(rank)).operations.append((index, sequence))

    def progress(self, comm: str, where: Where, done: int) -> None:
        """Notes that a process has finished `done` operations of the communicator."""
        flying = self._in_flight.get((comm, where))
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
        """Notes that an operation of a rank failed, or was not answered."""
        self._finished.pop(sequence, None)
        self._recorder.failed(self._key(sequence), why)

    def aborted(self, comm: str, where: Where, why: str) -> None:
        """Notes that a process no longer has the communicator. The process's unfinished operations on it fail."""
        others = any(name == comm and there != where for name, there in self._in_flight)
        flying = self._in_flight.pop((comm, where), None)
        for _, sequence in flying.operations if flying is not None else ():
            self.failed(sequence, why)
        if flying is not None and not others:
            self._recorder.aborted(self._owner, self._members, why)

    def _key(self, sequence: int) -> MatchKey:
        return MatchKey(self._owner, self._members, sequence)
