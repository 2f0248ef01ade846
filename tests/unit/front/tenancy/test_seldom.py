"""Log lines that are written at most once per period."""

from __future__ import annotations

from hearthd.shared.log import LogThrottle


def test_a_line_is_due_once_a_period_and_counts_the_omitted_ones() -> None:
    logged = LogThrottle(10.0)
    assert [logged.times("a", now) for now in (0.0, 1.0, 9.9)] == [1, 0, 0]
    assert logged.times("b", 5.0) == 1, "each kind has its own period"
    assert logged.times("a", 10.0) == 3 and logged.times("a", 20.0) == 1


def test_due_counts_as_written() -> None:
    logged = LogThrottle(10.0)
    assert logged.due("a", 100.0) and not logged.due("a", 109.0) and logged.due("a", 110.0)


def test_kinds_are_bounded() -> None:
    logged = LogThrottle(10.0)
    assert all(logged.due(kind, 0.0) for kind in range(2000))
    assert logged.due(0, 1.0) and not logged.due(1999, 1.0), "the oldest are forgotten"
