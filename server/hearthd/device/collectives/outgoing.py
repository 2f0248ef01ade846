"""Queue of operations to be presented to the front: runs of equal operations are sent as one message.

In a series, each operation waits for the one before it. An operation that has no unanswered predecessor in its series
is sent immediately. While two messages of a series are unanswered, later operations of the series are held back. They
could not start earlier anyway, so holding them delays no other operation; those gathered when the first answer arrives
are sent as one message. Messages thus grow longer as the front becomes busier, however the clients form their batches.
No operation is held for long, because the front detects ranks with different orders only from the operations that they
present.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hearthd.device.collectives.pending import OperationKey, OperationRun, PendingCollective
from hearthd.device.platform.spin_policy import at_most

UNANSWERED = 2
"""Number of messages of a series that may be unanswered before further operations are held: with 2, the ranks and the
front work concurrently."""

HOLD_S = 10e-3
"""Longest time for which an operation is held, in seconds."""

MAX_HELD = 64
"""Limit of held operations: the front handles nothing else while it handles a message."""

Send = Callable[[dict[str, Any]], None]
"""Sends a message to the front."""


class OutgoingOperations:
    """Operations that have not been sent.

    Device-handle thread only. `unanswered` returns True while the front has not answered an operation.
    """

    def __init__(
        self, say: Send, unanswered: Callable[[OperationKey], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._unanswered = unanswered
        self._clock = clock
        self._runs: list[OperationRun] = []
        """Runs that have not been sent, in order."""
        self._count = 0
        """Number of operations in `_runs`."""
        self._consecutive = False
        """True if each operation in `_runs` waits for the one before it, and the first one for the last one sent."""
        self._held_since = 0.0
        """Time at which the first operation in `_runs` was added."""
        self._sent: list[OperationKey] = []
        """Last operation of each of the most recently sent messages of one series, oldest first."""

    def __len__(self) -> int:
        """Returns the number of operations that have not been sent."""
        return self._count

    def add(self, pending: PendingCollective, signature: list[dict[str, Any]]) -> None:
        """Adds an operation to be presented."""
        runs = self._runs
        if runs and runs[-1].extends(pending, signature):
            runs[-1].last = pending.key
            runs[-1].count += 1
            self._consecutive = self._consecutive and bool(pending.predecessors)
        else:
            predecessor = runs[-1].last if runs else self._sent[-1] if self._sent else None
            follows = predecessor is not None and not predecessor.group and _same_series(predecessor, pending)
            if runs:
                self._consecutive = self._consecutive and follows
            else:
                self._consecutive = follows
                self._held_since = self._clock()
            runs.append(OperationRun(pending, signature))
        self._count += 1

    def flush(self) -> bool:
        """Sends all operations; returns True if there were any."""
        runs, self._runs, self._count = self._runs, [], 0
        if not runs:
            return False
        if not self._consecutive:
            self._sent.clear()
        for run in runs:
            self._say(run.message())
        self._sent.append(runs[-1].last)
        del self._sent[:-UNANSWERED]
        return True

    def send(self, message: dict[str, Any]) -> None:
        """Sends another message to the front, after all operations."""
        self.flush()
        self._say(message)

    def forget(self, channel: int) -> None:
        """Forgets the sent operations of a session that has ended."""
        self._sent = [key for key in self._sent if key.channel != channel]

    def settle(self) -> bool:
        """Sends the operations unless they may be held longer; returns True if any were sent."""
        if not self._runs or (self._may_hold() and self._clock() < self._held_since + HOLD_S):
            return False
        return self.flush()

    def _may_hold(self) -> bool:
        return (
            self._consecutive
            and self._count < MAX_HELD
            and len(self._sent) == UNANSWERED
            and self._unanswered(self._sent[0])
        )  # fmt: skip

    def max_sleep(self, limit: float | None) -> float | None:
        """Returns the longest time that the loop may sleep, at most `limit`."""
        if not self._runs:
            return limit
        return at_most(max(self._held_since + HOLD_S - self._clock(), 0.0), limit)


def _same_series(predecessor: OperationKey, pending: PendingCollective) -> bool:
    key = pending.key
    return (
        key.channel == predecessor.channel
        and key.devices == predecessor.devices
        and pending.predecessors == [predecessor]
    )
