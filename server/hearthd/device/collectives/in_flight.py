"""A launched collective, until its outcome is known.

If its peers are gone, a collective ends with an error long after later work of its stream was submitted; see
`hearthd.device.streams.pending_outcomes`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hearth_proto.reasons import Refusal
from hearthd.device.collectives.flight_policy import InFlightQueue
from hearthd.device.collectives.pending import OperationKey
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.streams.pending_outcomes import PendingOutcome
from hearthd.device.streams.stream_errors import StreamFailure
from hearthd.device.streams.stream_pool import StreamPool


class InFlightCollective:
    """A launched collective. Device-handle thread only."""

    __slots__ = ("_destinations", "_key", "_tracks", "origin", "outcome")

    def __init__(
        self,
        origin: Origin,
        key: OperationKey,
        destinations: Sequence[Buffer],
        flights: InFlightQueue[InFlightCollective],
        tracks: StreamPool,
    ) -> None:
        self.origin = origin
        self._key = key
        self.outcome = PendingOutcome(flights, flights.launched)
        """The outcome; its sequence is that of the communicator's operations in flight, to which this operation is
        added next."""
        self._destinations = destinations
        self._tracks = tracks
        tracks.pending_outcomes.launched(self.outcome, [buffer.usage for buffer in destinations])
        origin.stream.flights[self.outcome] = None

    @property
    def description(self) -> str:
        """Name of the operation in messages."""
        return f"{self.origin.name}, {self._key}"

    @property
    def sequence(self) -> int:
        """Number of the operation within its session and group, by which the front names it."""
        return self._key.sequence

    def succeed(self) -> None:
        """Ends the operation with success."""
        self._end()

    def fail(self, refusal: Refusal) -> None:
        """Ends the operation with an error on its stream.

        Its results, and all contents that depend on them, become invalid.
        """
        outcome = self.outcome
        if outcome.settled:
            return
        spoiled = dict.fromkeys(self._destinations)
        spoiled.update(
            (buffer, None) for buffer in self.origin.session.buffers.items.values() if outcome in buffer.usage.outcomes
        )
        origin = self.origin
        # If `over` is set, the failure of an input has been recorded: the operation ran only for the other ranks.
        if not origin.over:
            origin.over = True
            outcome.failure = StreamFailure(origin.name, origin.stream.handle, origin.seq, origin.index, refusal)
            origin.record_failure(outcome.failure, list(spoiled))
        self._end()

    def _end(self) -> None:
        self._destinations = ()
        self._tracks.pending_outcomes.settle(self.outcome)
        self.origin.stream.flights.pop(self.outcome, None)
        self.outcome.report()
