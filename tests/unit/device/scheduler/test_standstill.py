"""Standstill: the time for which a queue waits for a full stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.scheduler.standstill import TIMEOUT_S, Standstill


def test_standstill_lasts_while_commands_complete() -> None:
    row: Standstill[str] = Standstill()
    assert row.stream is None
    assert row.continues(0, 128, 5.0)
    assert row.seconds_left(5.0) == pytest.approx(TIMEOUT_S)
    assert row.continues(0, 128, 5.0 + 0.9 * TIMEOUT_S)
    assert row.continues(0, 256, 5.0 + 1.8 * TIMEOUT_S)
    assert not row.continues(0, 256, 5.0 + 2.9 * TIMEOUT_S)
    assert row.seconds_left(9.0) == 0.0


def test_standstill_of_another_stream_is_separate() -> None:
    row: Standstill[str] = Standstill()
    assert row.continues(0, 128, 1.0)
    assert row.continues(1, 128, 2.0)
    assert not row.continues(1, 128, 3.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.floats(0, TIMEOUT_S * 2))))
def test_standstill_without_progress_is_bounded(steps: list[tuple[int, int, float]]) -> None:
    """Between two changes of the number of completed commands, `lasts` returns True for at most `TIMEOUT_S`."""
    row: Standstill[str] = Standstill()
    now, done, since, seen = 100.0, 0, 0.0, None
    for stream, more, seconds in steps:
        now += seconds
        done += more
        if (stream, done) != seen:
            seen, since = (stream, done), now
        assert row.continues(stream, done, now) == (now < since + TIMEOUT_S)
        assert 0.0 <= row.seconds_left(now) <= TIMEOUT_S + 1e-9
