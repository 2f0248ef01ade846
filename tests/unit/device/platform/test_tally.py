"""Sums in one integer: no field overflows into another one, however large the values are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.platform.tally import FULL, Tally, launch_weight, read

launches = st.tuples(
    st.integers(min_value=1, max_value=(2**31 - 1) * 65535 * 65535 * 1024), st.none() | st.integers(0, FULL)
)


@given(st.lists(st.tuples(launches, st.integers(min_value=1, max_value=10**9)), max_size=30))
def test_the_sums_are_exact(given_launches: list[tuple[tuple[int, int | None], int]]) -> None:
    tally = sum(launch_weight(*launch) * times for launch, times in given_launches)
    measured = [(occupancy, times) for (_, occupancy), times in given_launches if occupancy is not None]
    assert read(tally) == Tally(
        launches=sum(times for _, times in given_launches),
        threads=sum(threads * times for (threads, _), times in given_launches),
        measured=sum(times for _, times in measured),
        occupancy=sum(occupancy * times for occupancy, times in measured),
    )


def test_impossible_values_are_clamped() -> None:
    assert read(launch_weight(32, 10 * FULL)).occupancy == FULL
    assert read(launch_weight(32, -1)) == Tally(launches=1, threads=32, measured=1, occupancy=0)
    assert read(0) == Tally(0, 0, 0, 0)
