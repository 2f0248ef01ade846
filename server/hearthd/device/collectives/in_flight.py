"""A launched collective, until its outcome is known.

If its peers are gone, a collective ends with an error long after later work of its stream was submitted; see
`hearthd.device.streams.pending_outcomes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hearth_proto.reasons import Refusal
from hearthd.device.collectives.flight_policy import InFlightQueue
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.streams.stream_errors import StreamFailure
from hearthd.device.streams.stream_pool import StreamPool


class OperationName(Protocol):
    """Name of an operation, as shown in messages."""

    @property
    def sequence(self) -> int:
        """Number of the operation within its session and group, from 1."""
        ...


class InFlightCollective:
    """A launched collective, a `hearthd.device.streams.pending_outcomes.PendingOutcome`. Device-handle thread only."""

    __slots__ = ("_behind", "_destinations", "_key", "_tracks", "failure", "origin", "place", "row", "settled")

    def __init__(
        self,
        origin: Origin,
        key: OperationName,
        destinations: Sequence[Buffer],
        flights: InFlightQueue[InFlightCollective],
        tracks: StreamPool,
    ) -> None:
        self.origin = origin
        self._key = key
        self.row = flights
        """The communicator's operations in flight; this operation is added to them next."""
        self.place = flights.launched
        self.settled = False
        self.failure: StreamFailure | None = None
        """The failure that was recorded for the stream; None before a failure."""
        self._destinations = destinations
        self._tracks = tracks
        self._behind: list[Callable[[], None]] = []
        tracks.pending_outcomes.launched(self, [buffer.usage for buffer in destinations])
        origin.stream.flights[self] = None

    @property
    def what(self) -> str:
        """Name of the operation in messages."""
        return f"{self.origin.name}, {self._key}"

    @property
    def sequence(self) -> int:
        """Number of the operation within its session and group, by which the front names it."""
        return self._key.sequence

    def then(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the outcome is known; immediately if it is known already."""
        if self.settled:
            callback()
        else:
            self._behind.append(callback)

    def succeed(self) -> None:
        """Ends the operation with success."""
        self._end()

    def fail(self, refusal: Refusal) -> None:
        """Ends the operation with an error on its stream.

        Its results, and all contents that depend on them, become invalid.
        """
        if self.settled:
            return
        spoiled = dict.fromkeys(self._destinations)
        spoiled.update(
            (buffer, None) for buffer in self.origin.session.buffers.items.values() if self in buffer.usage.behind
        )
        origin = self.origin
        # otherwise its source had failed, which is its error; it ran only so that the other ranks could
        if not origin.over:
            origin.over = True
            self.failure = StreamFailure(origin.name, origin.stream.handle, origin.seq, origin.index, refusal)
            origin.replies.failed(origin, refusal)
            if origin.record is not None:
                origin.record.failed(refusal.reason)
            origin.keep(self.failure, list(spoiled))
        self._end()

    def _end(self) -> None:
        self.settled = True
        self._destinations = ()
        self._tracks.pending_outcomes.open.pop(self, None)
        self.origin.stream.flights.pop(self, None)
        behind, self._behind = self._behind, []
        for callback in behind:
            callback()
