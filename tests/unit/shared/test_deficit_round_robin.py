"""Deficit round robin: shares by weight whatever the cost of turns, no idle capacity while a flow waits, no
starvation."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearthd.shared.deficit_round_robin import GUARANTEED_FRACTION, DeficitRoundRobin, HierarchicalRoundRobin

QUANTUM = 3.0

weights = st.lists(st.floats(0.1, 16.0), min_size=2, max_size=6)
costs = st.lists(st.floats(0.01, 5.0), min_size=1, max_size=8)


def serve(
    ring: DeficitRoundRobin[int] | HierarchicalRoundRobin[int], cost_of: list[list[float]], turns: int
) -> list[float]:
    """Serves `turns` turns, each at one of the flow's costs; returns the total cost of each flow."""
    used = [0.0] * len(cost_of)
    dice = random.Random(1)
    for _ in range(turns):
        key = ring.turn()
        assert key is not None
        cost = dice.choice(cost_of[key])
        used[key] += cost
        ring.charge(key, cost)
    return used


def greatest(cost_of: list[list[float]]) -> float:
    return max(max(each) for each in cost_of)


@settings(max_examples=60, deadline=None)
@given(weights, st.data())
def test_shares_are_as_the_weights_however_unlike_the_costs(given_weights: list[float], data: st.DataObject) -> None:
    cost_of = [data.draw(costs) for _ in given_weights]
    ring: DeficitRoundRobin[int] = DeficitRoundRobin(QUANTUM)
    for key, weight in enumerate(given_weights):
        ring.enter(key, weight)
    serve(ring, cost_of, 1000)  # the first flows began with a different share
    used = serve(ring, cost_of, 3000)
    # Each is within one round's share and one cost of its fair share (Shreedhar and Varghese, theorem 4.2).
    total, mean = sum(given_weights), sum(given_weights) / len(given_weights)
    served = [amount / weight for amount, weight in zip(used, given_weights, strict=True)]
    for one in range(len(given_weights)):
        for other in range(len(given_weights)):
            bound = 2 * QUANTUM / mean + greatest(cost_of) * (1 / given_weights[one] + 1 / given_weights[other])
            assert abs(served[one] - served[other]) <= bound + 1e-6 * sum(used) / total


@given(weights, st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.floats(0.0, 50.0)), max_size=60))
def test_exactly_the_waiting_participants_are_served(
    given_weights: list[float], moves: list[tuple[int, bool, float]]
) -> None:
    ring: DeficitRoundRobin[int] = DeficitRoundRobin(QUANTUM)
    wanting: set[int] = set()
    for index, wants, cost in moves:
        key = index % len(given_weights)
        (ring.enter(key, given_weights[key]), wanting.add(key)) if wants else (ring.leave(key), wanting.discard(key))
        turn = ring.turn()
        assert (turn in wanting) if wanting else turn is None
        ring.charge(key, cost)


def test_a_turn_lasts_until_the_credit_is_used() -> None:
    ring: DeficitRoundRobin[str] = DeficitRoundRobin(4.0)
    for key in "ab":
        ring.enter(key)
    turns = []
    for _ in range(16):
        key = ring.turn()
        assert key is not None
        turns.append(key)
        ring.charge(key, 1.0)
    assert "".join(turns) == "aaaabbbb" * 2


def test_debt_is_paid_before_the_next_turn_also_after_leaving() -> None:
    ring: DeficitRoundRobin[str] = DeficitRoundRobin(1.0)
    for key in "ab":
        ring.enter(key)
    assert ring.turn() == "a"
    ring.charge("a", 10.0)
    ring.leave("a")
    ring.enter("a")
    served = 0.0
    while ring.turn() == "b":
        ring.charge("b", 0.5)
        served += 0.5
    assert 9.0 <= served <= 11.0


def test_returning_participant_has_no_more_credit_than_a_new_one() -> None:
    ring: DeficitRoundRobin[str] = DeficitRoundRobin(1.0)
    for key in "ab":
        ring.enter(key)
    ring.charge("a", 0.5)
    ring.leave("a")
    for _ in range(200):
        ring.turn()
        ring.charge("b", 0.5)
    ring.enter("a")
    assert ring.credit("a") == pytest.approx(1.0)


def test_single_participant_has_unlimited_credit() -> None:
    ring: DeficitRoundRobin[str] = DeficitRoundRobin(1.0)
    ring.enter("a")
    ring.charge("a", 1e9)
    assert ring.turn() == "a"
    assert ring.credit("a") == float("inf")
    ring.enter("b")  # its use while no other flow waited creates no debt
    assert ring.credit("a") == ring.credit("b") == 1.0


def test_a_weight_may_change() -> None:
    ring: DeficitRoundRobin[int] = DeficitRoundRobin(QUANTUM)
    for key in (0, 1):
        ring.enter(key)
    serve(ring, [[1.0], [1.0]], 100)
    ring.enter(1, 9.0)
    used = serve(ring, [[1.0], [1.0]], 5000)
    assert used[1] / used[0] == pytest.approx(9.0, rel=0.05)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from("pqrs"), st.tuples(st.floats(0.5, 8.0), st.integers(1, 4)), min_size=2))
def test_a_tenants_weight_is_shared_out_among_its_sessions(tenants: dict[str, tuple[float, int]]) -> None:
    fair: HierarchicalRoundRobin[tuple[str, int]] = HierarchicalRoundRobin(QUANTUM)
    keys = [(tenant, number) for tenant, (_, count) in tenants.items() for number in range(count)]
    used = dict.fromkeys(keys, 0.0)
    for key in keys:
        fair.enter(key, key[0], tenants[key[0]][0])
    dice = random.Random(2)
    for _ in range(8000):
        turn = fair.turn()
        assert turn is not None
        cost = dice.uniform(0.1, 2.0)
        used[turn] += cost
        fair.charge(turn, cost)
    total, weight = sum(used.values()), sum(weight for weight, _ in tenants.values())
    for (tenant, _), amount in used.items():
        due = total * tenants[tenant][0] / weight / tenants[tenant][1]
        assert amount == pytest.approx(due, rel=0.1, abs=4 * QUANTUM)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 20.0), st.integers(2, 4))
def test_urgent_classes_run_first_and_leave_a_share_to_each_lower_class(cost: float, classes: int) -> None:
    fair: HierarchicalRoundRobin[int] = HierarchicalRoundRobin(QUANTUM)
    for priority in range(classes):
        fair.enter(priority, priority=priority)
    used = serve(fair, [[cost]] * classes, 6000)
    for priority in range(1, classes):
        assert GUARANTEED_FRACTION * 0.7 <= used[priority] / used[0] <= GUARANTEED_FRACTION * 1.4
        assert fair.credit(priority) == 0.0
    fair.leave(0)
    assert fair.turn() != 0
    fair.enter(0)
    assert fair.credit(0) == float("inf")


def test_usage_of_an_ended_session_counts_against_its_tenant() -> None:
    fair: HierarchicalRoundRobin[str] = HierarchicalRoundRobin(1.0)
    fair.enter("a1", "a")
    fair.enter("b1", "b")
    fair.charge("a1", 5.0)
    fair.forget("a1")
    fair.enter("a2", "a")
    assert fair.credit("a2") < 0 < fair.credit("b1")
    assert fair.turn() == "b1"
    fair.forget("a2")
    fair.forget("b1")
    assert fair.turn() is None


def test_a_flow_may_change_its_place() -> None:
    fair: HierarchicalRoundRobin[str] = HierarchicalRoundRobin(1.0)
    fair.enter("a", "one")
    fair.enter("a", "two", priority=-1)
    fair.enter("b", "one")
    assert fair.turn() == "a"
    fair.leave("a")
    assert fair.turn() == "b"
