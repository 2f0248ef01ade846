"""Which track a logical stream gets. Pure.

A track that nobody uses any more may still work: its stream was destroyed, or its session closed, with a kernel on it
that may never end. Such a track is kept back until it is done: who got it would wait behind a stranger's kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

PATIENCE_S = 1.0
"""So long a track that is kept back counts as one of those that there may be: its work will be done in a moment. From
then on another one may take its place."""

MOST = 2
"""Times the tracks that there should be: no more than that are made for streams that clients create."""


class ChoosableStream(Protocol):
    """A pooled stream (`hearthd.device.streams.track.PooledStream`), as the choice sees it."""

    @property
    def users(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def own(self) -> bool: ...
    @property
    def kept(self) -> int:
        """How many wait for it to be done; 0: it is not kept back."""
        ...

    @property
    def kept_since(self) -> float:
        """When it was kept back first, in seconds of a monotonic clock."""
        ...


C = TypeVar("C", bound=ChoosableStream)


def free(tracks: Sequence[C], priority: int) -> C | None:
    """One that nobody uses, and that is done."""
    return next((each for each in tracks if not (each.users or each.kept) and each.priority == priority), None)


def room(tracks: Sequence[ChoosableStream], most: int, now: float) -> bool:
    """Whether one more may be made. `most`: that there should be, those not counted whose work does not end."""
    return len(tracks) - len(stuck(tracks, now)) < most and len(tracks) < MOST * most


def shared(tracks: Sequence[C], priority: int) -> C | None:
    """Where there is no room: that with the fewest users, of the wanted priority if it can be. Never one that is kept
    back; None: all are."""
    candidates = [each for each in tracks if not (each.own or each.kept)]
    same = [each for each in candidates if each.priority == priority]
    return min(same or candidates, key=lambda each: each.users, default=None)


def stuck(tracks: Sequence[C], now: float) -> list[C]:
    """Those that have been kept back for long."""
    return [each for each in tracks if each.kept and now - each.kept_since >= PATIENCE_S]
