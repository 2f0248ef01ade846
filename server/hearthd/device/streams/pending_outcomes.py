"""Collectives that have been launched, and what stands behind them until it is known how they ended.

The device comes to the end of a collective whether it went well or not. What is made of its result meanwhile is worth
as much as it is, and nobody is told of it before the verdict: not who reads, and not who waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Protocol

from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_errors import StreamFailure

Callback = Callable[[], None]


class PendingOutcome(Protocol):
    """How a collective ends that has been launched: known later than when the device has done with it."""

    @property
    def over(self) -> bool: ...
    @property
    def failure(self) -> StreamFailure | None: ...
    @property
    def row(self) -> Hashable:
        """Verdicts of one row, a communicator's, are given in the order of `place`: one that ended well says so of all
        before it."""
        ...

    @property
    def place(self) -> int: ...
    def then(self, callback: Callback) -> None:
        """`callback` when it is known."""
        ...


class PendingOutcomes:
    """Which contents stand behind which collectives. Device-handle thread."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: dict[PendingOutcome, None] = {}
        """Collectives of which nobody knows yet how they end."""

    def about(self, usage: Usage) -> list[PendingOutcome]:
        """Those that a buffer's contents stand behind, as far as they have been given to the device."""
        if not (usage.behind and self.open):
            return []
        return [each for each in usage.behind if each in self.open]

    def spread(self, writes: Collection[Usage], reads: Collection[Usage]) -> None:
        """A command writes and reads these: what it makes stands behind all that its buffers stood behind."""
        found: dict[Hashable, PendingOutcome] = {}
        for usages in (writes, reads):
            for usage in usages:
                for each in self.about(usage):
                    known = found.get(each.row)
                    if known is None or known.place < each.place:
                        found[each.row] = each
        for usage in writes:
            usage.behind = tuple(found.values())

    def launched(self, verdict: PendingOutcome, writes: Iterable[Usage]) -> None:
        """A collective writes these from now on."""
        self.open[verdict] = None
        for usage in writes:
            usage.behind = (*(each for each in self.about(usage) if each.row is not verdict.row), verdict)

    def settled(self, usage: Usage, callback: Callback) -> Callback:
        """`callback`, for when what has been given to the device by now is done: it then waits for the verdicts on the
        buffer's contents, too."""
        verdicts = self.about(usage)
        return both(verdicts, callback) if verdicts else callback


def both(verdicts: Iterable[PendingOutcome], callback: Callback) -> Callback:
    """`callback` when what this returns has been called, and it is known how each of them ended.

    Of those who stand behind the same things, whoever asks first is told first: errors surface in a stream's order.
    """
    waiting = [each for each in verdicts if not each.over]
    left = len(waiting) + 1

    def one() -> None:
        nonlocal left
        left -= 1
        if not left:
            callback()

    for each in waiting:
        each.then(one)
    return one
