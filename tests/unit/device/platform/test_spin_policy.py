"""Duration of the polling for a completion before a sleep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.platform.spin_policy import MAX_SLEEP_S, MIN_SLEEP_S, MIN_SPIN_S, SPIN_S, SpinPolicy


def test_short_waits_are_spent_spinning() -> None:
    policy = SpinPolicy()
    policy.begin(10.0)
    assert policy.spins(10.0) and policy.spins(10.0 + 0.9 * SPIN_S)
    assert not policy.spins(10.0 + 1.1 * SPIN_S)


def test_spin_time_shrinks_after_long_waits_and_recovers_after_a_short_one() -> None:
    policy, now = SpinPolicy(), 0.0
    for _ in range(20):
        policy.begin(now)
        policy.wait_ended(now := now + 1e-3)
    policy.begin(now)
    assert not policy.spins(now + 1.1 * MIN_SPIN_S) and policy.spins(now + 0.9 * MIN_SPIN_S)
    policy.wait_ended(now := now + SPIN_S / 2)
    policy.begin(now)
    assert policy.spins(now + 0.9 * SPIN_S)


def test_lingering_policy_spins_longer() -> None:
    linger = 500e-6
    lingering = SpinPolicy(linger)
    lingering.begin(1.0)
    assert lingering.spins(1.0 + 0.9 * linger) and not lingering.spins(1.0 + 1.1 * linger)
    lingering.wait_ended(1.0 + 10 * linger)
    lingering.begin(2.0)
    assert not lingering.spins(2.0 + 0.6 * linger)
    lingering.wait_ended(2.0 + 1.9 * linger)
    lingering.begin(3.0)
    assert lingering.spins(3.0 + 0.9 * linger)


@given(st.lists(st.floats(1e-6, 1.0), max_size=30), st.floats(0.0, 10.0))
def test_spin_and_sleep_times_are_bounded(waits: list[float], waited: float) -> None:
    policy, now = SpinPolicy(), 100.0
    for each in waits:
        policy.begin(now)
        policy.wait_ended(now := now + each)
    policy.begin(now)
    if policy.spins(now + waited):
        assert waited <= SPIN_S + 1e-9
    assert MIN_SLEEP_S <= policy.sleep(now + waited) <= MAX_SLEEP_S
