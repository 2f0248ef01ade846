"""The history of rates that a daemon keeps for the status page."""

from __future__ import annotations

import itertools

import pytest

from hearthd.front.rates import HISTORY_INTERVAL_S, HISTORY_S, RateHistory, Rates


def filled(seconds: int, step: float) -> RateHistory:
    """A history of a counter that grows by 10 per second and is reported every `step` seconds."""
    history, rates = RateHistory(), Rates()
    for number in range(int(seconds / step) + 1):
        now = number * step
        rates.sample(now, {"n": 10 * now})
        history.add(now, rates)
    return history


def test_history_begins_with_the_first_rate() -> None:
    history, rates = RateHistory(), Rates()
    assert history.since(0.0) == []
    rates.sample(0.0, {"n": 0})
    history.add(0.0, rates)
    assert history.since(0.0) == [], "one sample has no rate"
    rates.sample(2.0, {"n": 20})
    history.add(2.0, rates)
    assert history.since(3.0) == [(1.0, {"n": 10.0})]


@pytest.mark.parametrize("step", [0.01, 1.0, 2.0])
def test_history_spans_its_time_and_is_bounded_at_any_rate_of_reports(step: float) -> None:
    seconds = 2 * HISTORY_S if step >= 1 else 20
    history = filled(int(seconds), step)
    entries = history.since(seconds)
    assert len(history) <= HISTORY_S / HISTORY_INTERVAL_S
    ages = [age for age, _ in entries]
    assert ages == sorted(ages, reverse=True) and ages[-1] < 2 * HISTORY_INTERVAL_S
    assert ages[0] == pytest.approx(min(HISTORY_S, seconds), abs=2 * max(step, HISTORY_INTERVAL_S))
    assert all(rates["n"] == pytest.approx(10.0) for _, rates in entries)
    assert all(before - after >= HISTORY_INTERVAL_S - 1e-6 for before, after in itertools.pairwise(ages))


def test_history_of_a_silent_device_ends() -> None:
    history = filled(20, 2.0)
    assert history.since(20 + HISTORY_S + 1) == []
