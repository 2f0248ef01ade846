"""Device times on the host's clock: no work starts before its submission, and the true time is found if possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.profiling.device_clock import DeviceClock

MOMENTS = st.integers(min_value=0, max_value=10**9)


def test_the_quickest_start_decides() -> None:
    clock = DeviceClock()
    segment = clock.renew(0)
    clock.observe(segment, 0, 0, 1_000, 90_000)  # the reference event itself
    clock.observe(segment, 50_000, 60_000, 51_900, 100_000)
    clock.observe(segment, 70_000, 80_000, 60_000, 99_000)  # this work waited on the device
    assert clock.references() == [1_900]


def test_observed_end_bounds_the_reference_from_above() -> None:
    clock = DeviceClock()
    first = clock.renew(0)
    clock.observe(first, 0, 10, 0, 5_000)
    second = clock.renew(2_000_000)  # The clocks drift: by the gap alone, the reference would be at 2,000,000.
    clock.observe(second, 100, 200, 0, 1_900_200)
    assert clock.references() == [0, 1_900_000]


def test_references_without_bounds_use_the_gaps() -> None:
    clock = DeviceClock()
    clock.renew(0)
    clock.renew(7)
    clock.renew(5)
    assert clock.references() == [0, 7, 12]


@given(
    st.integers(min_value=-(10**9), max_value=10**9),
    st.lists(st.tuples(MOMENTS, MOMENTS, MOMENTS, MOMENTS), min_size=1, max_size=20),
    st.integers(min_value=1, max_value=5),
)
def test_no_command_starts_before_it_was_submitted_or_ends_after_it_was_seen(
    truth: int, commands: list[tuple[int, int, int, int]], renew_every: int
) -> None:
    clock = DeviceClock()
    observed: list[tuple[int, int, int, int, int]] = []
    reference = truth
    segment = clock.renew(0)
    for number, (latency, length, delay, later) in enumerate(commands):
        if number and number % renew_every == 0:
            reference += later
            segment = clock.renew(later)
        start = reference + later
        observed.append((segment, later, later + length, start - latency, start + length + delay))
        clock.observe(*observed[-1])
    references = clock.references()
    for segment, started, ended, submitted, noticed in observed:
        assert submitted <= references[segment] + started
        assert references[segment] + ended <= noticed


@given(st.integers(min_value=-(10**9), max_value=10**9), st.lists(st.tuples(MOMENTS, MOMENTS), min_size=1, max_size=20))
def test_command_that_starts_immediately_makes_the_reference_exact(truth: int, commands: list[tuple[int, int]]) -> None:
    clock = DeviceClock()
    segment = clock.renew(0)
    for latency, started in commands:
        clock.observe(segment, started, started + 1, truth + started - latency, truth + started + 1 + latency)
    clock.observe(segment, 5, 6, truth + 5, truth + 10**10)
    assert clock.references() == [truth]
