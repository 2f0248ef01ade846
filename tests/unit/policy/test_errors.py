"""Failures surface once, all, in order; what they spoiled is usable again afterwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal, from_status, stream_failures
from hearthd.device.policy.errors import MAX_KEPT, Failure, StreamErrors, poisoned, skipped, surface


def failure(seq: int, index: int = 0, root: Failure | None = None) -> Failure:
    return Failure(f"launch k{seq}", 3, seq, index, Refusal(Reason.LAUNCH_INVALID, f"wrong {seq}"), root=root)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), unique=True, max_size=MAX_KEPT))
def test_taken_once_in_order(places: list[tuple[int, int]]) -> None:
    errors = StreamErrors()
    for seq, index in places:
        errors.add(failure(seq, index))
    taken = errors.take()
    assert [(each.seq, each.index) for each in taken] == sorted(places)
    assert errors.take() == []
    assert all(each.surfaced for each in taken)


@given(st.integers(1, 500))
def test_none_is_dropped_silently(count: int) -> None:
    errors = StreamErrors()
    for seq in range(count):
        errors.add(failure(seq))
    taken = errors.take()
    assert len(taken) <= MAX_KEPT
    assert taken[0].seq == 0, "the likeliest cause is kept"
    assert taken[-1].seq == count - 1
    assert sum(1 + each.merged for each in taken) == count


def test_what_follows_from_a_reported_failure_is_not_reported_again() -> None:
    errors = StreamErrors()
    cause = failure(1)
    errors.add(cause)
    for seq in range(2, 1000):
        errors.add(skipped(f"launch k{seq}", 3, seq, 0, cause))
    assert errors.take() == [cause]


def test_poison_lasts_until_the_cause_has_surfaced() -> None:
    errors = StreamErrors()
    cause = failure(1)
    errors.add(cause)
    consequence = skipped("launch b", 4, 2, 0, cause)
    assert poisoned(cause) is cause
    assert poisoned(consequence) is consequence
    assert poisoned(None) is None
    errors.take()
    assert poisoned(cause) is None
    assert poisoned(consequence) is None


def test_a_skip_names_its_cause() -> None:
    other = skipped("launch c", 5, 9, 0, skipped("launch b", 4, 2, 0, failure(1)))
    assert other.refusal.reason == Reason.DEPENDENCY_FAILED
    assert "launch k1" in other.refusal.message
    assert other.refusal.details["cause"] == "LAUNCH_INVALID"


def test_the_status_lists_all_and_the_first_decides() -> None:
    status = surface([failure(1), failure(2), failure(3)])
    refusal = from_status(status)
    assert refusal.reason == Reason.LAUNCH_INVALID
    assert "2 more failed" in refusal.message
    assert [each.command for each in stream_failures(status)] == ["launch k1", "launch k2", "launch k3"]


def test_handing_over_keeps_them_unseen() -> None:
    errors = StreamErrors()
    errors.add(failure(1))
    (moved,) = errors.hand_over()
    assert not moved.surfaced
    assert not errors
