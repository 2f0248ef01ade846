"""Failures that belong to a profile: those of commands between its start and its end, whenever they fail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.session.stretch import MAX_KEPT, Position, Stretch
from hearthd.device.streams.stream_errors import StreamFailure

PLACES = st.tuples(st.integers(1, 5), st.integers(0, 5))


def failure(place: Position) -> StreamFailure:
    return StreamFailure("launch f", 0, *place, Refusal(Reason.LAUNCH_FAILED, "no"))


@given(PLACES, PLACES, st.lists(PLACES))
def test_position_and_not_time_decides(since: Position, until: Position, places: list[Position]) -> None:
    stretch = Stretch(since)
    stretch.until = until  # the end has arrived while earlier commands are still waiting
    for place in places:
        stretch.add(failure(place))
    inside = [place for place in places if since < place < until]
    assert [(each.seq, each.index) for each in stretch.failures] == inside[:MAX_KEPT]
    assert stretch.void == bool(inside)


def test_open_stretch_contains_all_later_failures() -> None:
    stretch = Stretch((1, 3))
    for place in ((1, 2), (1, 4), (9, 0)):
        stretch.add(failure(place))
    assert [(each.seq, each.index) for each in stretch.failures] == [(1, 4), (9, 0)]


def test_failures_of_single_calls_have_no_position() -> None:
    stretch = Stretch(None)
    stretch.add(failure((0, 0)))
    assert stretch.void


def test_stretch_is_bounded_and_counts_the_rest() -> None:
    stretch = Stretch((0, 0))
    for index in range(MAX_KEPT + 7):
        stretch.add(failure((1, index)))
    assert len(stretch.failures) == MAX_KEPT and stretch.omitted == 7
