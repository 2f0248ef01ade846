"""Shares of global limits: every tenant gets its guaranteed share, no tenant can take everything, and operators can
always connect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.rights import ORDINARY
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.tenancy.shares import RESERVE, Shares, reserve
from hearthd.front.tenancy.tenants import Caller, Tenant
from tests.support.front.fixture import run

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.01, 100), min_size=1, max_size=6)
STEPS = st.lists(st.tuples(st.sampled_from("abcdefx"), st.booleans()), max_size=300)
"""Tenants that take (True) or return one; `x` is no longer configured."""


def maximum(shares: Shares, tenant: str, used: dict[str, int], *, operator: bool = False) -> int:
    """Returns the maximum number that a tenant may have while the other tenants keep theirs."""
    counts = dict(used)
    while shares.admits(tenant, counts, operator=operator):
        counts[tenant] = counts.get(tenant, 0) + 1
    return counts.get(tenant, 0)


@given(st.integers(1, 200), WEIGHTS, STEPS, st.sets(st.sampled_from("abcdef")))
def test_any_course_of_takes_and_returns(
    limit: int, weights: dict[str, float], steps: list[tuple[str, bool]], operators: set[str]
) -> None:
    shares = Shares(limit, weights, reserve(limit))
    used: dict[str, int] = {}
    for name, take in steps:
        if not take:
            used[name] = max(0, used.get(name, 0) - 1)
            continue
        guaranteed = used.get(name, 0) < shares.guarantee(name)
        admitted = shares.admits(name, used, operator=name in operators)
        assert admitted or not guaranteed, "guaranteed entries are always available"
        if admitted:
            used[name] = used.get(name, 0) + 1
        assert sum(used.values()) <= limit
        if not operators:
            assert sum(used.values()) <= shares.pool, "the reserve is for operators"


@given(st.integers(8, 2000), WEIGHTS, st.sampled_from("abcdef"))
def test_greedy_tenant_leaves_the_guarantees_of_others(limit: int, weights: dict[str, float], greedy: str) -> None:
    shares = Shares(limit, weights, reserve(limit))
    used = {greedy: maximum(shares, greedy, {})}
    assert used[greedy] >= shares.guarantee(greedy)
    for other in weights.keys() - {greedy}:
        assert shares.admits(other, used), "the next tenant is admitted"
        assert maximum(shares, other, used) >= shares.guarantee(other)
    assert shares.admits("operator", used, operator=True)


@given(st.integers(1, 2000), WEIGHTS)
def test_guarantees_follow_weights(limit: int, weights: dict[str, float]) -> None:
    shares = Shares(limit, weights, reserve(limit))
    assert sum(map(shares.guarantee, weights)) <= shares.pool
    by_weight = sorted(weights, key=weights.__getitem__)
    assert list(map(shares.guarantee, by_weight)) == sorted(map(shares.guarantee, by_weight))
    assert shares.guarantee("unknown") == 0


def test_a_single_tenant_has_all_but_the_reserve() -> None:
    shares = Shares(1024, {"a": 1.0}, reserve(1024))
    assert maximum(shares, "a", {}) == 1024 - 1024 // RESERVE and maximum(shares, "a", {}, operator=True) == 1024
    two = Shares(1024, {"a": 1.0, "b": 1.0}, reserve(1024))
    most = maximum(two, "a", {})
    assert (two.guarantee("a"), most, maximum(two, "b", {"a": most})) == (240, 480, 360)


def test_sessions_are_shared() -> None:
    """A tenant that opens as many sessions as it can excludes neither another tenant nor an operator. Its refusal names
    it."""
    tenants = {name: Tenant(name, rights=ORDINARY) for name in ("a", "b")} | {"operator": Tenant("operator")}

    async def scenario() -> None:
        sessions = SessionTable(30, 32)
        sessions.accounts.change(tenants)
        opened: dict[str, list[str]] = {"a": [], "b": [], "operator": []}
        refusals: dict[str, Refusal] = {}
        for name in ("a", "b", "operator"):
            for _ in range(40):
                try:
                    opened[name].append(sessions.open(name, "", Caller(tenants[name]))[1])
                except Refusal as refusal:
                    refusals[name] = refusal
                    break
        counts = {name: len(tokens) for name, tokens in opened.items()}
        assert counts["a"] < 20 and counts["b"] >= 5 and counts["operator"] >= 5 + 2, counts
        refusal = refusals["a"]
        assert refusal.reason == Reason.SESSION_LIMIT and "Tenant 'a'" in refusal.message and refusal.retry_after_s
        assert refusal.details["allowed"] == str(counts["a"]) and refusal.details["guaranteed"] == "5"
        assert sessions.accounts.of(tenants["a"]).refused["sessions_share"] == 1
        await sessions.close(sessions.find(opened["a"][0]), "test")
        with pytest.raises(Refusal):  # it may open again as many as it closed, but no more
            [sessions.open("a", "", Caller(tenants["a"])) for _ in range(2)]

    run(scenario())
