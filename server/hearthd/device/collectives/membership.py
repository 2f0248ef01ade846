"""Membership: this rank's part in one communicator, and refusals of operations that failed with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from hearth_proto.reasons import Reason, Refusal, from_text
from hearthd.device.backend.communicator import RankCommunicator
from hearthd.device.collectives.flight_policy import InFlightQueue
from hearthd.device.collectives.in_flight import InFlightCollective
from hearthd.device.collectives.pending import LaunchOrder
from hearthd.device.streams.stream_pool import PooledStream

_SUBMIT_AGAIN = "submit the operation again, with the next sequence number on every rank; a new communicator is created"


@dataclass(eq=False, slots=True)
class Membership:
    """Membership of this rank in one communicator."""

    comm: str
    communicator: RankCommunicator
    track: PooledStream
    lane: LaunchOrder
    """Launch order on the track."""
    group: bool
    """True for a communicator over several daemons, which does not share its track with other communicators."""
    flights: InFlightQueue[InFlightCollective] = field(default_factory=InFlightQueue)
    reported: float = math.inf
    """Monotonic time at which the failure was reported to the front; infinity without a failure."""
    refusal: Callable[[InFlightCollective], Refusal] | None = None
    """Returns the refusal of an operation that was in flight; None while the communicator works."""
    unstarted_refusal: Refusal | None = None
    """Refusal of an operation that could not start."""

    @property
    def failing(self) -> bool:
        """True if a failure has been reported to the front, which has not decided on it yet."""
        return self.refusal is not None

    @property
    def idle(self) -> bool:
        """True if no operation is in flight and nothing remains to be reported."""
        return not (len(self.flights) or self.failing or self.flights.progress_at() < math.inf)


def in_flight_refusal(reason: str, late_sequence: int, flight: InFlightCollective) -> Refusal:
    """Returns the refusal of an operation that was in flight when its communicator failed.

    `late_sequence` is the number of the operation that missed its deadline; 0 if none did.
    """
    if late_sequence and flight.sequence == late_sequence:
        return Refusal(
            Reason.COLLECTIVE_TIMEOUT,
            f"{flight.description} was launched, but did not complete in time: a rank of it did not take part, or was "
            f"too slow",
            fix="check the other ranks, or use a longer timeout",
            details={"sequence": flight.sequence},
        )
    return Refusal(
        Reason.COMMUNICATOR_FAILED,
        f"{flight.description} was aborted: its communicator failed: {reason}",
        fix=_SUBMIT_AGAIN,
        details={"sequence": flight.sequence},
    )


def not_started(reason: str = "", timed_out: bool = False) -> Refusal:
    """Returns the refusal of an operation that could not start on a failed communicator.

    `reason` is empty if it is not known any more. `timed_out`: the failure is a timeout of this operation or of one
    that it waits for.
    """
    return Refusal(
        Reason.COLLECTIVE_TIMEOUT if timed_out else Reason.COMMUNICATOR_FAILED,
        "the communicator was aborted before the operation could start" + (f": {reason}" if reason else ""),
        fix=_SUBMIT_AGAIN,
    )


def decode_refusal(encoded: object) -> Refusal:
    """Decodes the front's decision on an operation."""
    try:
        return from_text(encoded or "?")
    except ValueError:
        return Refusal(Reason.COMMUNICATOR_FAILED, "the front refused the collective and gave no reason")
