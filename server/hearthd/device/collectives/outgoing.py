"""Queue of operations to be presented to the front: runs of equal operations are sent as one message.

A lone operation is sent at once, and so is what has no other of its line before it. While two messages of a line have
no answer, those behind them are kept: they could not go before these anyhow, so nothing can come to wait for them that
does not wait already, and what has gathered when the first answer comes is one message. That way messages grow longer
as the front has more to do, however the clients cut their batches. Nothing is kept for long: that two ranks have their
operations in different orders is found out by what they present.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hearthd.device.collectives.pending import OperationKey, OperationRun, PendingCollective
from hearthd.device.platform.spin_policy import sooner

UNANSWERED = 2
"""Messages of a line that may be without an answer while more are sent: the ranks and the front work at the same
time."""

KEEP_S = 10e-3
"""Longest time for which an operation is kept, in seconds."""

MOST_KEPT = 64
"""Limit of operations that are kept: the front serves no others while it handles a message."""

Say = Callable[[dict[str, Any]], None]


class OutgoingOperations:
    """Operations that have not been sent. Device-handle thread only. `unanswered`: True while the front owes an answer
    for an operation."""

    def __init__(
        self, say: Say, unanswered: Callable[[OperationKey], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._unanswered = unanswered
        self._clock = clock
        self._rows: list[OperationRun] = []
        """Runs that have not been sent, in order."""
        self._count = 0
        """Operations in them."""
        self._line = False
        """True if each waits for the one before, and the first for the last one sent."""
        self._since = 0.0
        """Time at which the first of them came."""
        self._sent: list[OperationKey] = []
        """The last operation of each of the messages of one line that were sent last, oldest first."""

    def __len__(self) -> int:
        """Operations that have not been sent."""
        return self._count

    def add(self, pending: PendingCollective, signature: list[dict[str, Any]]) -> None:
        """Adds an operation that is presented."""
        rows = self._rows
        if rows and rows[-1].goes_on(pending, signature):
            rows[-1].last = pending.key
            rows[-1].count += 1
            self._line = self._line and bool(pending.behind)
        else:
            before = rows[-1].last if rows else self._sent[-1] if self._sent else None
            follows = before is not None and not before.group and _same_line(before, pending)
            if rows:
                self._line = self._line and follows
            else:
                self._line = follows
                self._since = self._clock()
            rows.append(OperationRun(pending, signature))
        self._count += 1

    def flush(self) -> bool:
        """Sends all that there is; whether that was anything."""
        rows, self._rows, self._count = self._rows, [], 0
        if not rows:
            return False
        if not self._line:
            self._sent.clear()
        for row in rows:
            self._say(row.message())
        self._sent.append(rows[-1].last)
        del self._sent[:-UNANSWERED]
        return True

    def forget(self, channel: int) -> None:
        """The session is over."""
        self._sent = [key for key in self._sent if key.channel != channel]

    def settle(self) -> bool:
        """Sends what is not worth keeping, or may not be kept; whether that was anything."""
        if not self._rows or (self._kept() and self._clock() < self._since + KEEP_S):
            return False
        return self.flush()

    def _kept(self) -> bool:
        return (
            self._line
            and self._count < MOST_KEPT
            and len(self._sent) == UNANSWERED
            and self._unanswered(self._sent[0])
        )  # fmt: skip

    def sleep(self, asleep: float | None) -> float | None:
        """Returns how long the loop may sleep, at most `asleep`."""
        if not self._rows:
            return asleep
        return sooner(max(self._since + KEEP_S - self._clock(), 0.0), asleep)


def _same_line(before: OperationKey, pending: PendingCollective) -> bool:
    key = pending.key
    return key.channel == before.channel and key.devices == before.devices and pending.behind == [before]
