"""Choice of a track for a stream: a withheld track is never chosen while there is an alternative."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.streams import track_choice
from hearthd.device.streams.track import PooledStream
from hearthd.device.streams.track_choice import MAX_FACTOR, WITHHELD_GRACE_S

NOW = 100.0


def pooled(users: int, priority: int, exclusive: bool, hold_count: int, withheld_since: float) -> PooledStream:
    track = PooledStream(0, None, priority)
    track.users, track.exclusive = users, exclusive
    track.hold_count, track.withheld_since = hold_count, withheld_since
    return track


tracks = st.lists(
    st.builds(
        pooled, st.integers(0, 3), st.integers(-1, 0), st.booleans(), st.integers(0, 2), st.floats(NOW - 3, NOW)
    ),
    max_size=12,
)  # fmt: skip


@given(tracks, st.integers(-1, 0))
def test_no_stream_gets_a_withheld_track(every: list[PooledStream], priority: int) -> None:
    free, shared = track_choice.free_track(every, priority), track_choice.shared_track(every, priority)
    assert free is None or (free.users, free.hold_count, free.priority) == (0, 0, priority)
    others = [track for track in every if not track.hold_count and not track.exclusive]
    assert (shared is None) == (not others)
    if shared is not None:
        assert not (shared.hold_count or shared.exclusive)
        same = [track for track in others if track.priority == priority]
        assert shared.users == min(track.users for track in same or others)


@given(tracks, st.integers(1, 8))
def test_stuck_tracks_make_room_for_new_ones(every: list[PooledStream], most: int) -> None:
    long = [track for track in every if track.hold_count and NOW - track.withheld_since >= WITHHELD_GRACE_S]
    assert track_choice.long_withheld(every, NOW) == long
    assert track_choice.may_create(every, most, NOW) == (
        len(every) - len(long) < most and len(every) < MAX_FACTOR * most
    )
