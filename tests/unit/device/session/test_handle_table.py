"""Limits of the number of handles, for each session and for each tenant in a device process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.session.handle_limit import HandleLimits
from hearthd.device.session.handle_table import HandleTable


class World:
    """Sessions of one process, with two tables each."""

    def __init__(self, per_session: int, *tenants: tuple[str, int]) -> None:
        self.sessions: list[Any] = []
        self.limits = HandleLimits(per_session, lambda: self.sessions)
        for tenant, handles in tenants:
            session = SimpleNamespace(
                tenant=tenant, handles=handles, tables=(HandleTable("buffer"), HandleTable("event"))
            )
            self.limits.limit(session)
            self.sessions.append(session)

    def held(self, tenant: str | None = None) -> int:
        return sum(sum(map(len, each.tables)) for each in self.sessions if tenant in (None, each.tenant))


def mint(table: HandleTable[int], number: int) -> bool:
    try:
        table.add(number, number)
    except Refusal as refusal:
        assert refusal.reason == Reason.QUOTA_EXCEEDED and refusal.details["quota"] == "handles" and refusal.fix
        return False
    return True


def test_one_session() -> None:
    world = World(10, ("a", 0))
    buffers, events = world.sessions[0].tables
    assert [mint(buffers, number) for number in range(1, 8)] == [True] * 7
    assert [mint(events, number) for number in range(1, 5)] == [True] * 3 + [False]
    assert not mint(buffers, 99)
    buffers.pop(1)
    assert mint(events, 9) and not mint(events, 10)
    with pytest.raises(Refusal, match=r"limits\.max_handles"):
        buffers.check_room(1)


def test_all_sessions_of_a_tenant() -> None:
    world = World(100, ("a", 8), ("a", 8), ("b", 0))
    first, second, other = (session.tables[0] for session in world.sessions)
    assert (
        sum(mint(first, number) for number in range(1, 20)) + sum(mint(second, number) for number in range(1, 9)) == 8
    )
    with pytest.raises(Refusal, match=r"tenant a has 8 .*quotas\.handles"):
        second.check_room(1)
    assert all(mint(other, number) for number in range(1, 50)), "handles of another tenant are counted separately"
    first.items.clear()
    assert all(mint(second, number) for number in range(100, 108))


@given(st.integers(1, 5000), st.lists(st.tuples(st.integers(0, 3), st.integers(-700, 700)), max_size=40))
def test_a_limit_is_never_passed(most: int, steps: list[tuple[int, int]]) -> None:
    """Tables count by themselves between two requests for a larger bound. Freed handles leave no room in their table
    that another table has been granted."""
    world = World(most, ("a", most), ("a", most))
    tables = [table for session in world.sessions for table in session.tables]
    number = 1
    for which, count in steps:
        for _ in range(-count):
            if tables[which].items:
                tables[which].items.popitem()
        for _ in range(count):
            number += 1
            minted = mint(tables[which], number)
            assert minted or world.held() == most, "the whole limit is available"
            if not minted:
                break
        assert world.held() <= most


def test_shared_limit_is_consulted_seldom() -> None:
    asked = []
    world = World(1 << 20, ("a", 0))
    table = world.sessions[0].tables[0]
    real = table.extend
    table.extend = lambda table, more: asked.append(more) or real(table, more)
    assert all(mint(table, number) for number in range(1, 50_000))
    assert len(asked) < 80
