"""Choice of the track for a logical stream. Pure.

A track without users may still have work: its stream was destroyed, or its session closed, with a kernel on it that may
never end. Such a track is kept back until it is done: a new user would wait behind the kernel of another session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

PATIENCE_S = 1.0
"""Seconds for which a track that is kept back counts toward the limit: its work will soon be done. After that, another
track may replace it."""

MOST = 2
"""Limit of all tracks for streams that clients create, as a multiple of the limit of tracks."""


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
        """Number of waits for it to be done; 0: it is not kept back."""
        ...

    @property
    def kept_since(self) -> float:
        """Time at which it was first kept back, in seconds of a monotonic clock."""
        ...


C = TypeVar("C", bound=ChoosableStream)


def free(tracks: Sequence[C], priority: int) -> C | None:
    """Returns a track without users whose work is done."""
    return next((each for each in tracks if not (each.users or each.kept) and each.priority == priority), None)


def room(tracks: Sequence[ChoosableStream], most: int, now: float) -> bool:
    """True if one more track may be made. `most` is the limit, without tracks whose work does not end."""
    return len(tracks) - len(stuck(tracks, now)) < most and len(tracks) < MOST * most


def shared(tracks: Sequence[C], priority: int) -> C | None:
    """Returns the track with the fewest users, for want of room, of the wanted priority if possible. Never one that is
    kept back; None: all are."""
    candidates = [each for each in tracks if not (each.own or each.kept)]
    same = [each for each in candidates if each.priority == priority]
    return min(same or candidates, key=lambda each: each.users, default=None)


def stuck(tracks: Sequence[C], now: float) -> list[C]:
    """Returns the tracks that have been kept back for long."""
    return [each for each in tracks if each.kept and now - each.kept_since >= PATIENCE_S]
