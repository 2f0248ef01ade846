"""Errors of one-way commands: kept per logical stream, surfacing once, all, in order.

A failed command poisons the buffers that it would have written. Until the failure has surfaced, commands that need
such a buffer are skipped; afterwards the client knows, and the buffer holds whatever it held before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import status_pb2

MAX_KEPT = 32
"""Failures kept per stream; older ones are merged into one entry that counts them."""


@dataclass(eq=False)
class Failure:
    """One failed command: where it was, and why it failed."""

    command: str
    stream: int
    seq: int
    index: int
    refusal: Refusal
    merged: int = 0
    surfaced: bool = False
    root: Failure | None = None

    @property
    def cause(self) -> Failure:
        """The failure that this one follows from, or itself."""
        return self.root.cause if self.root is not None else self

    def to_message(self) -> status_pb2.CommandFailure:
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
    """The failures of one logical stream that nobody has been told of."""

    _kept: list[Failure] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, failure: Failure) -> None:
        if failure.root is not None and any(kept.cause is failure.cause for kept in self._kept):
            return  # skipped because of what this stream reports anyway
        self._kept.append(failure)
        if len(self._kept) > MAX_KEPT:
            # The first is the likeliest cause of the rest, so the second oldest goes, and the first says how many.
            gone = self._kept.pop(1)
            self._kept[0].merged += 1 + gone.merged
            gone.surfaced = True

    def hand_over(self) -> list[Failure]:
        """All failures, for another stream to report."""
        kept, self._kept = self._kept, []
        return kept

    def take(self) -> list[Failure]:
        """All failures, oldest first; they have surfaced now, and what they poisoned may be used again."""
        taken = sorted(self._kept, key=lambda failure: (failure.seq, failure.index))
        self._kept = []
        for failure in taken:
            failure.surfaced = True
        return taken


def poisoned(failure: Failure | None) -> Failure | None:
    """The failure that still stands behind a buffer, if any."""
    if failure is None or failure.surfaced or failure.cause.surfaced:
        return None
    return failure


def skipped(command: str, stream: int, seq: int, index: int, because: Failure) -> Failure:
    """The failure of a command that was not run because what it needs was never produced."""
    cause = because.cause
    refusal = Refusal(
        Reason.DEPENDENCY_FAILED,
        f"{command} was skipped: it needs what {cause.command} (stream {cause.stream}) should have produced, and that "
        f"failed: {cause.refusal.message}",
        fix=cause.refusal.fix or "repair the command that failed first",
        details={"cause": cause.refusal.reason, "cause_command": cause.command, "cause_stream": cause.stream},
    )
    return Failure(command, stream, seq, index, refusal, root=because)


def surface(failures: list[Failure]) -> status_pb2.Status:
    """The status that tells a client of `failures` (not empty): the first decides, all are listed."""
    first = failures[0].refusal
    more = len(failures) - 1 + sum(failure.merged for failure in failures)
    message = f"{failures[0].command}: {first.message}"
    if more:
        message += f" (and {more} more failed after it)"
    whole = Refusal(first.reason, message, fix=first.fix, details=first.details, retry_after_s=first.retry_after_s)
    return whole.to_status([failure.to_message() for failure in failures])
