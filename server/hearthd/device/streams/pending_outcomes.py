"""Pending outcomes of collectives and memory checks, and the buffer contents that depend on them.

The device completes a collective whether it succeeded or failed. Later commands may run on its result before the
outcome is known; reads and waits are answered only when the outcome is known. So are reads of the buffers of a launch
with `mode="validate"`, whose memory is checked after the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable

from hearthd.device.platform.event_loop import countdown
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_errors import StreamFailure

Callback = Callable[[], None]


class PendingOutcome:
    """The outcome of a launched collective or of a memory check, known some time after its completion on the device."""

    __slots__ = ("_callbacks", "failure", "position", "sequence", "settled")

    def __init__(self, sequence: Hashable, position: int) -> None:
        self.sequence = sequence
        """The communicator, or an object of this outcome alone.

        Outcomes of one sequence become known in the order of `position`: a success implies the success of all earlier
        outcomes.
        """
        self.position = position
        """Position among the outcomes of its sequence, ascending."""
        self.settled = False
        """True once the outcome is known."""
        self.failure: StreamFailure | None = None
        """The failure that was recorded for the stream and made contents invalid; None until then, and otherwise."""
        self._callbacks: list[Callback] = []

    def then(self, callback: Callback) -> None:
        """Calls `callback` when the outcome is known; immediately if it is known already."""
        if self.settled:
            callback()
        else:
            self._callbacks.append(callback)

    def report(self) -> None:
        """Calls the callbacks of an outcome that is `settled`."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class PendingOutcomes:
    """Dependencies of buffer contents on pending outcomes. Device-handle thread only."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: dict[PendingOutcome, None] = {}
        """Outcomes that are not known yet."""

    def of_buffer(self, usage: Usage) -> list[PendingOutcome]:
        """Returns the pending outcomes that the contents of a buffer depend on, after all commands issued so far."""
        if not (usage.outcomes and self.open):
            return []
        return [outcome for outcome in usage.outcomes if outcome in self.open]

    def propagate(self, writes: Collection[Usage], reads: Collection[Usage]) -> None:
        """Propagates dependencies: the written buffers depend on all that a buffer of the command depended on."""
        latest: dict[Hashable, PendingOutcome] = {}
        for usages in (writes, reads):
            for usage in usages:
                for outcome in self.of_buffer(usage):
                    previous = latest.get(outcome.sequence)
                    if previous is None or previous.position < outcome.position:
                        latest[outcome.sequence] = outcome
        for usage in writes:
            usage.outcomes = tuple(latest.values())

    def launched(self, outcome: PendingOutcome, writes: Iterable[Usage]) -> None:
        """Records the outcome that the contents of these buffers depend on from now on."""
        self.open[outcome] = None
        for usage in writes:
            usage.outcomes = (
                *(earlier for earlier in self.of_buffer(usage) if earlier.sequence is not outcome.sequence),
                outcome,
            )

    def settle(self, outcome: PendingOutcome) -> None:
        """Marks an outcome as known, after its failure, if any, has been recorded. `PendingOutcome.report` follows."""
        outcome.settled = True
        self.open.pop(outcome, None)

    def when_settled(self, usage: Usage, callback: Callback) -> Callback:
        """Returns a callback for completion on the device.

        It defers `callback` until the outcomes that the buffer depends on are also known.
        """
        outcomes = self.of_buffer(usage)
        return both(outcomes, callback) if outcomes else callback


def both(outcomes: Iterable[PendingOutcome], callback: Callback) -> Callback:
    """Returns a function that calls `callback` after the function has been called and all outcomes are known.

    Callbacks keep their order, so errors surface in the order of the stream.
    """
    unsettled = [outcome for outcome in outcomes if not outcome.settled]
    complete_one = countdown(len(unsettled) + 1, callback)
    for outcome in unsettled:
        outcome.then(complete_one)
    return complete_one
