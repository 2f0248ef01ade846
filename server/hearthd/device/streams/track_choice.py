"""Choice of the track for a logical stream. Pure.

A track without users may still have work: its stream was destroyed, or its session closed, while a kernel that may
never end was running on it. Such a track is withheld until its work is done, because a new user would wait for the
kernel of another session.
"""

from __future__ import annotations

from collections.abc import Sequence

from hearthd.device.streams.track import PooledStream

WITHHELD_GRACE_S = 1.0
"""Seconds for which a withheld track counts toward the limit, because its work will probably be done soon. After that,
a new track may replace it."""

MAX_FACTOR = 2
"""Limit of all tracks for streams that clients create, as a multiple of the configured limit of tracks."""


def free_track(tracks: Sequence[PooledStream], priority: int) -> PooledStream | None:
    """Returns a track of this priority without users whose work is done; None if there is none."""
    free = (track for track in tracks if not (track.users or track.hold_count))
    return next((track for track in free if track.priority == priority), None)


def may_create(tracks: Sequence[PooledStream], limit: int, now: float) -> bool:
    """True if another track may be created.

    Tracks that were withheld for long do not count toward `limit`.
    """
    return len(tracks) - len(long_withheld(tracks, now)) < limit and len(tracks) < MAX_FACTOR * limit


def shared_track(tracks: Sequence[PooledStream], priority: int) -> PooledStream | None:
    """Returns the track with the fewest users, of the wanted priority if possible.

    Returns None if all tracks are withheld or not shareable.
    """
    candidates = [track for track in tracks if not (track.exclusive or track.hold_count)]
    same = [track for track in candidates if track.priority == priority]
    return min(same or candidates, key=lambda track: track.users, default=None)


def long_withheld(tracks: Sequence[PooledStream], now: float) -> list[PooledStream]:
    """Returns the tracks that have been withheld for at least `WITHHELD_GRACE_S`."""
    return [track for track in tracks if track.hold_count and now - track.withheld_since >= WITHHELD_GRACE_S]
