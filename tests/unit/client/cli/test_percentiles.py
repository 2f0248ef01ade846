"""Pure functions of the `hearth` command: percentiles, sizes and tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.cli.bench.sampling import Percentiles, quantile
from hearth.cli.format.table import number, table
from hearth.cli.format.units import parse_size, size_name

samples = st.lists(st.floats(0.001, 1e9), min_size=1, max_size=200)


@given(samples, st.floats(0, 1))
def test_quantiles_are_numpys(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == pytest.approx(float(np.quantile(values, share)))


@given(samples)
def test_percentiles_are_ordered_from_better_to_worse(values: list[float]) -> None:
    times, rates = Percentiles.of(values, "lower"), Percentiles.of(values, "higher")
    assert times.p50 <= times.p90 <= times.p99 <= max(values)
    assert rates.p50 >= rates.p90 >= rates.p99 >= min(values)
    assert times.n == rates.n == len(values)
    assert times.p50 == pytest.approx(rates.p50)


def test_percentiles_by_hand() -> None:
    assert Percentiles.of(range(101), "lower") == (50, 90, 99, 101)
    assert Percentiles.of(range(101), "higher") == (50, 10, 1, 101)
    with pytest.raises(ValueError, match="no samples"):
        Percentiles.of([], "lower")


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64MiB", 64 << 20), (" 1.5 gib ", 3 << 29), ("1GB", 10**9), ("7b", 7), ("0", 0)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "64 MiBs", "1,5GiB", "٣MiB", "nan", "1" * 40])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.integers(0, 1 << 40))
def test_a_size_is_named_within_a_tenth(size: int) -> None:
    named = parse_size(size_name(size).replace("bytes", ""))
    assert abs(named - size) <= max(1, size * 0.06)
    assert size_name(64 << 20) == "64 MiB"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0004, "0.000"), (0.58, "0.580"), (0.9997, "1.00"), (3.14159, "3.14"), (9.999, "10.0"), (31.4, "31.4"),
     (99.96, "100"), (41234.5, "41234")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_columns_are_aligned() -> None:
    assert table(("", "p50", "unit"), [("latency", "7", "us"), ("rate", "12345", "1/s")], frozenset({1})) == (
        "           p50  unit\n"
        "latency      7  us\n"
        "rate     12345  1/s"
    )  # fmt: skip


def test_last_cell_of_a_short_row_may_exceed_its_column() -> None:
    text = table(("", "p50", "unit"), [("a", "not measured: for a long reason"), ("b", "1", "us")], frozenset({1}))
    assert text == "   p50  unit\na  not measured: for a long reason\nb    1  us"
