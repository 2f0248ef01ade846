"""The record of a group's operations in a daemon that has joined the group.

Covers the times at which its own ranks presented them, and their outcome on those ranks.

The coordinator's flight recorder has all ranks. This record has the ranks of this node, so that an operator of any node
can see what its ranks did last. It is bounded, like every history of a flight recorder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hearthd.front.collectives.flight_recorder import OPERATIONS, FlightRecorder, GroupHistory
from hearthd.front.collectives.match import GROUP, MatchKey

ProcessKey = tuple[int, int]
"""A device and the generation of its process."""


@dataclass
class InFlightOperations:
    """Operations that one process may run on a communicator, unfinished: pairs of index and sequence number."""

    rank: int
    operations: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=OPERATIONS))


class PeerRecord:
    """The record of one group. `local_ranks`: the number of the group's ranks on this node."""

    def __init__(self, group: str, ranks: int, local_ranks: int) -> None:
        self._recorder = FlightRecorder()
        self._owner, self._members, self._local_ranks = GROUP + group, tuple(range(ranks)), local_ranks
        self.in_flight: dict[tuple[str, ProcessKey], InFlightOperations] = {}
        """Unfinished operations, by communicator and process."""
        self.finished: dict[int, set[int]] = {}
        """Local ranks that have finished an operation which other local ranks have not, by sequence number."""

    @property
    def history(self) -> GroupHistory | None:
        """The history of the group. None: nothing was presented yet."""
        return self._recorder.history(self._owner, self._members)

    def record_presentation(self, rank: int, body: Mapping[str, Any]) -> None:
        """Notes that a local rank has presented the operation of a `present` message."""
        self._recorder.record_presentation(self._key(int(body["sequence"])), rank, body["signature"])

    def record_launch(self, comm: str, process: ProcessKey, rank: int, sequence: int, index: int) -> None:
        """Notes that a rank may run an operation, which has the number `index` on the communicator."""
        key = self._key(sequence)
        history = self.history
        if history is not None and sequence in history.operations and not history.operations[sequence].launched:
            self._recorder.record_launch(key)
        self._recorder.record_ready(self._owner, self._members)
        self.in_flight.setdefault((comm, process), InFlightOperations(rank)).operations.append((index, sequence))

    def record_progress(self, comm: str, process: ProcessKey, done: int) -> None:
        """Notes that a process has finished `done` operations of the communicator."""
        in_flight = self.in_flight.get((comm, process))
        while in_flight is not None and in_flight.operations and in_flight.operations[0][0] <= done:
            _, sequence = in_flight.operations.popleft()
            finished = self.finished.setdefault(sequence, set())
            finished.add(in_flight.rank)
            if len(finished) == self._local_ranks:
                del self.finished[sequence]
                self._recorder.record_completion(self._key(sequence))
        while len(self.finished) > OPERATIONS:
            del self.finished[next(iter(self.finished))]

    def record_failure(self, sequence: int, cause: str) -> None:
        """Notes that an operation of a rank failed, or was not answered."""
        self.finished.pop(sequence, None)
        self._recorder.record_failure(self._key(sequence), cause)

    def record_abort(self, comm: str, process: ProcessKey, cause: str) -> None:
        """Notes that a process no longer has the communicator. The process's unfinished operations on it fail."""
        is_shared = any(name == comm and other != process for name, other in self.in_flight)
        in_flight = self.in_flight.pop((comm, process), None)
        for _, sequence in in_flight.operations if in_flight is not None else ():
            self.record_failure(sequence, cause)
        if in_flight is not None and not is_shared:
            self._recorder.record_abort(self._owner, self._members, cause)

    def _key(self, sequence: int) -> MatchKey:
        return MatchKey(self._owner, self._members, sequence)
