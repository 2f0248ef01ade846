"""Forecast of the completion of copies: made after the first of a kind, then polled for closely, and never for long."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.streams.completion_forecast import MAX_FORECASTS, MIN_SIZE, SHORT_S, CompletionForecast

RATE = 50e9
SIZES = st.integers(MIN_SIZE, 1 << 31)


def watched(
    forecast: CompletionForecast, size: int, given_at: float, took: float, nap: float = 1e-3
) -> tuple[float, float]:
    """Starts one copy and polls as the loop does, sleeping `nap` if no completion is forecast sooner. Returns how late
    the completion was noticed, and the time spent polling, in seconds."""
    foreseen = forecast.begin(0, size, given_at)
    assert foreseen is not None
    now, asked = given_at, 0.0
    while now < given_at + took:
        step = 1e-6 if forecast.near_completion(now) else max(1e-6, min(nap, forecast.seconds_until_next(now)))
        asked += step if forecast.near_completion(now) else 0.0
        now += step
    forecast.completed(foreseen, now)
    return now - given_at - took, asked


@given(SIZES, st.floats(10e9, 200e9))
def test_completion_is_noticed_immediately_after_a_few_samples(size: int, rate: float) -> None:
    forecast, took = CompletionForecast(), size / rate + 10e-6
    nap = min(1e-3, took / 8)
    for again in range(12):
        late, asked = watched(forecast, size, 100.0 + 10 * again, took, nap)
        assert late <= nap + 2e-6 and asked <= min(0.75e-3, max(60e-6, took * 3 / 16)) + 2e-6
    assert late <= 2e-6


@given(st.lists(st.tuples(SIZES, st.floats(1e-5, 1.0)), max_size=20), SIZES, st.floats(1e-5, 1.0))
def test_polling_for_one_copy_is_bounded_after_any_history(
    before: list[tuple[int, float]], size: int, took: float
) -> None:
    forecast = CompletionForecast()
    for index, (other, seconds) in enumerate(before):
        foreseen = forecast.begin(0, other, 10.0 * index)
        assert foreseen is not None
        forecast.completed(foreseen, 10.0 * index + seconds)
    _, asked = watched(forecast, size, 1e4, took)
    assert asked <= 0.8e-3


def test_slower_sample_changes_the_forecast_little_and_faster_one_fully() -> None:
    forecast = CompletionForecast()

    def ends(took: float) -> float:
        foreseen = forecast.begin(0, 64 << 20, 0.0)
        assert foreseen is not None
        forecast.completed(foreseen, took)
        last = forecast.begin(0, 64 << 20, 0.0)
        assert last is not None
        likely = (2 * last.window_start + last.window_end) / 3
        forecast.under_way.clear()
        return likely

    assert math.isclose(ends(1e-3), 1e-3)
    assert math.isclose(ends(2e-3), 1.25e-3)
    assert ends(0.5e-3) < 0.5e-3, "noticed before polling for it began: it may have ended long before"


def test_queued_copy_is_expected_after_earlier_ones_and_changes_no_estimate() -> None:
    forecast, size = CompletionForecast(), 64 << 20
    first = forecast.begin(0, size, 0.0)
    assert first is not None and first.window_start == math.inf and not forecast.near_completion(0.0)
    forecast.completed(first, 1e-3)
    rows = [forecast.begin(0, size, 1.0) for _ in range(3)]
    other = forecast.begin(1, size, 1.0)
    assert other is not None and other.window_start == math.inf, "the other direction uses another engine"
    for index, each in enumerate(rows):
        assert each is not None and each.window_start < 1.0 + 1e-3 * (index + 1) < each.window_end
    assert math.isclose(forecast.seconds_until_next(1.0), 1e-3 * 15 / 16)
    for each in reversed(rows):
        assert each is not None
        forecast.completed(each, 9.0)
    after = forecast.begin(0, size, 10.0)
    assert after is not None and after.window_start > 10.0 + 1e-3, "the first copy of the sequence was alone, and slow"


def test_short_copies_are_polled_continuously_if_enabled() -> None:
    forecast, size = CompletionForecast(), 64 << 20
    forecast.short = SHORT_S
    for took in (1.2e-3, 1.2e-3, 1.2e-3):
        late, _ = watched(forecast, size, 1.0, took)
    assert late <= 2e-6
    foreseen = forecast.begin(0, size, 5.0)
    assert foreseen is not None and foreseen.window_start == 5.0
    assert (
        forecast.near_completion(5.0)
        and forecast.near_completion(5.0 + 1.2e-3)
        and not forecast.near_completion(5.0 + 2.2e-3)
    )
    forecast.completed(foreseen, 5.0 + 0.1e-3)  # a faster copy replaces the estimate
    again = forecast.begin(0, size, 6.0)
    assert again is not None and not forecast.near_completion(6.0 + 0.3e-3)
    forecast.drop(again)
    long = 1 << 30
    for _ in range(2):
        watched(forecast, long, 10.0, 20e-3)
    foreseen = forecast.begin(0, long, 20.0)
    assert foreseen is not None and foreseen.window_start > 20.0 + 19e-3, "a long one is not"


def test_small_and_many_copies_are_not_forecast() -> None:
    forecast = CompletionForecast()
    assert forecast.begin(0, MIN_SIZE - 1, 0.0) is None
    rows = [forecast.begin(0, MIN_SIZE, 0.0) for _ in range(MAX_FORECASTS)]
    assert None not in rows and forecast.begin(0, MIN_SIZE, 0.0) is None
    assert forecast.seconds_until_next(0.0) == math.inf
