"""Memory budgets, with vyre's figures and with Hearth's, and the text of a refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import MemoryInfo
from hearthd.device.resources.budget import available, budget, ceiling, check_budget, out_of_memory, rounded


def info(free: int, total: int, reserved: int = 0, in_use: int = 0) -> MemoryInfo:
    return MemoryInfo(free, total, reserved, in_use)


def test_a_conservative_part_of_the_device() -> None:
    assert budget(info(1000, 1000), 0) == 900


def test_budget_is_capped_by_free_memory() -> None:
    assert budget(info(1000, 10_000), 0) == 900
    # 8,000 free, 2,000 in buffers, and 1,000 unused in the pool, which vyre counts as used.
    assert budget(info(8000, 10_000, 3000, 3000), 0) == 6000
    assert budget(info(0, 10_000), 0) == 0


def test_unused_pool_memory_counts_as_free() -> None:
    assert budget(info(0, 10_000, 5000, 3000), 0) == 1800
    assert available(info(0, 10_000, 5000, 3000), 0) == 2000


def test_budget_is_never_negative() -> None:
    assert budget(info(500, 10_000, 9500, 9500), 0) == 0
    assert available(info(0, 1000, 2000, 2000), 0) == 0


def test_a_limit_of_ours_counts_in_full() -> None:
    assert budget(info(8000, 10_000), 4000) == 4000
    assert budget(info(8000, 10_000, 3000, 3000), 4000) == 1000
    assert available(info(8000, 10_000, 3000, 3000), 4000) == 1000
    assert ceiling(info(1, 10_000), 4000) == 4000 and ceiling(info(1, 10_000), 20_000) == 10_000


def test_requirements_are_checked_against_the_budget() -> None:
    check_budget(900, info(1000, 1000), 0)
    check_budget(0, info(0, 1000), 0)
    with pytest.raises(Refusal) as caught:
        check_budget(901, info(1000, 1000), 0)
    refusal = caught.value
    assert refusal.reason is Reason.OUT_OF_MEMORY and "901" in refusal.message and "900" in refusal.message
    assert refusal.details["largest"] == "900" and refusal.details["fits"] == "not now"
    with pytest.raises(Refusal, match="never fit"):
        check_budget(1001, info(1000, 1000), 0)


def test_a_refusal_has_all_the_numbers() -> None:
    refusal = out_of_memory(500, info(100, 1000, 700, 600), 800)
    assert {name: refusal.details[name] for name in refusal.details} == {
        "requested": "500", "free": "100", "total": "800", "reserved": "700", "in_use": "600", "largest": "200",
        "limit": "800", "fits": "not now",
    }  # fmt: skip
    for number in (500, 200, 800, 100, 700, 600):
        assert str(number) in refusal.message
    assert "wait" in refusal.fix
    never = out_of_memory(801, info(1000, 1000), 800)
    assert never.details["fits"] == "never" and "can never fit" in never.message and "801" in never.message
    assert "wait" not in never.fix
    large = out_of_memory(3 << 40, info(1 << 30, 1 << 31), 0).message
    assert "3 TiB (3298534883328 bytes) can never fit: the maximum is 2 GiB (2147483648 bytes)" in large


@given(
    st.integers(0, 2**70), st.integers(0, 2**70), st.integers(0, 2**70), st.integers(0, 2**70), st.integers(0, 2**70)
)
def test_budget_never_exceeds_the_available_memory(
    free: int, total: int, reserved: int, in_use: int, limit: int
) -> None:
    numbers = info(min(free, total), total, reserved, min(in_use, reserved))
    assert 0 <= budget(numbers, limit) <= available(numbers, limit) <= ceiling(numbers, limit)


def test_rounding() -> None:
    assert [rounded(size) for size in (0, 1, 511, 512, 513)] == [0, 512, 512, 512, 1024]
    assert rounded(2**64 - 1) == 2**64
