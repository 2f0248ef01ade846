"""Errors of one-way commands: kept per logical stream, and reported together, once, in order.

A failed command poisons the buffers that it would have written. Until the failure is reported to the client, commands
that need such a buffer are skipped, and reads of it fail, from any stream. After the report the buffer may be used
again, with its previous contents.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import status_pb2

MAX_KEPT = 32
"""Most failures kept per stream; beyond this number, older failures are merged into the first one, which counts
them."""


@dataclass(eq=False)
class StreamFailure:
    """A failed command: its identity, and the reason."""

    command: str
    stream: int
    seq: int
    index: int
    refusal: Refusal
    merged: int = 0
    surfaced: bool = False
    root: StreamFailure | None = None
    reported_by: StreamFailure | None = None
    """The failure whose report also covers this one: it counts this failure, or is its cause. None if this failure is
    reported itself."""

    @property
    def cause(self) -> StreamFailure:
        """The failure that caused this one; this failure itself if it has no cause."""
        failure = self
        while failure.root is not None:
            failure = failure.root
        return failure

    @property
    def reported(self) -> bool:
        """True once the failure has been reported to the client."""
        failure = self
        while failure.reported_by is not None:
            failure = failure.reported_by
        return failure.surfaced

    def to_message(self) -> status_pb2.CommandFailure:
        """Returns the failure as an entry of the list of failures in an error status."""
        return status_pb2.CommandFailure(
            command=self.command,
            stream=self.stream,
            seq=self.seq,
            index=self.index,
            status=self.refusal.to_status(),
            merged=self.merged,
        )


@dataclass
class StreamErrors:
    """Failures of one logical stream that have not been reported yet."""

    _failures: list[StreamFailure] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._failures)

    def add(self, failure: StreamFailure) -> None:
        """Adds a failure: as an entry, or counted with an entry that already covers it.

        A skip whose cause is listed adds no entry. Above `MAX_KEPT` entries, the second oldest is merged into the
        oldest.
        """
        if failure.root is not None and not failure.merged:
            reported = next((entry for entry in self._failures if entry.cause is failure.cause), None)
            if reported is not None:  # the stream already reports the cause of the skip
                failure.reported_by = reported
                return
        self._failures.append(failure)
        if len(self._failures) > MAX_KEPT:
            # The second oldest failure is merged into the oldest one, which is the most likely cause of the others.
            second_oldest = self._failures.pop(1)
            self._failures[0].merged += 1 + second_oldest.merged
            second_oldest.reported_by = self._failures[0]

    def hand_over(self, successor: StreamErrors) -> None:
        """Passes all failures to `successor`, because the stream is destroyed."""
        failures, self._failures = self._failures, []
        for failure in failures:
            successor.add(failure)

    def pop_all(
        self, before: tuple[int, int] | None = None, *, stream: int | None = None, reported: bool = True
    ) -> list[StreamFailure]:
        """Removes and returns all failures, oldest first.

        They count as reported, so the buffers that they poisoned may be used again.

        Args:
          before: takes only failures of commands submitted before this (batch, index).
          stream: takes only failures of commands of the stream with this handle.
          reported: False if the caller marks the failures as reported later.
        """
        selected = sorted(self._failures, key=lambda failure: (failure.seq, failure.index))
        if before is not None:
            selected = [failure for failure in selected if (failure.seq, failure.index) < before]
        if stream is not None:
            selected = [failure for failure in selected if failure.stream == stream]
        self._failures = [failure for failure in self._failures if failure not in selected]
        for failure in selected:
            failure.surfaced = reported
        return selected


def poisoned(failure: StreamFailure | None) -> StreamFailure | None:
    """Returns the failure if it still poisons a buffer, that is, has not been reported; otherwise None."""
    return None if failure is None or failure.reported else failure


def skipped(command: str, stream: int, seq: int, index: int, dependency: StreamFailure) -> StreamFailure:
    """Returns the failure of a command that was not run because its inputs were never produced."""
    cause = dependency.cause
    refusal = Refusal(
        Reason.DEPENDENCY_FAILED,
        f"{command} was skipped: it needs what {cause.command} (stream {cause.stream}) should have produced, and that "
        f"failed: {cause.refusal.message}",
        fix=cause.refusal.fix or "repair the command that failed first",
        details={"cause": cause.refusal.reason, "cause_command": cause.command, "cause_stream": cause.stream},
    )
    # The root is the cause itself, not the skip before this one, so that a long chain of skips keeps two failures alive
    # instead of all.
    return StreamFailure(command, stream, seq, index, refusal, root=cause)


def surface(failures: list[StreamFailure]) -> status_pb2.Status:
    """Returns the status that reports `failures` (not empty) to a client.

    The first failure determines the reason, and all are listed.
    """
    first = failures[0].refusal
    more = len(failures) - 1 + sum(failure.merged for failure in failures)
    message = f"{failures[0].command}: {first.message}"
    if more:
        message += f" (and {more} more failed after it)"
    refusal = Refusal(first.reason, message, fix=first.fix, details=first.details, retry_after_s=first.retry_after_s)
    return refusal.to_status([failure.to_message() for failure in failures])
