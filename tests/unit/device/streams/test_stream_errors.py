"""Failures are reported together, once, in order; the buffers that they poisoned can be used again afterwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal, from_status, stream_failures
from hearthd.device.streams.stream_errors import MAX_KEPT, StreamErrors, StreamFailure, poisoned, skipped, surface


def failure(seq: int, index: int = 0, root: StreamFailure | None = None) -> StreamFailure:
    return StreamFailure(f"launch k{seq}", 3, seq, index, Refusal(Reason.LAUNCH_INVALID, f"wrong {seq}"), root=root)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), unique=True, max_size=MAX_KEPT))
def test_taken_once_in_order(places: list[tuple[int, int]]) -> None:
    errors = StreamErrors()
    for seq, index in places:
        errors.add(failure(seq, index))
    taken = errors.pop_all()
    assert [(each.seq, each.index) for each in taken] == sorted(places)
    assert errors.pop_all() == []
    assert all(each.surfaced for each in taken)


@given(st.integers(1, 500))
def test_no_error_is_dropped_silently(count: int) -> None:
    errors = StreamErrors()
    for seq in range(count):
        errors.add(failure(seq))
    taken = errors.pop_all()
    assert len(taken) <= MAX_KEPT
    assert taken[0].seq == 0, "the likeliest cause is kept"
    assert taken[-1].seq == count - 1
    assert sum(1 + each.merged for each in taken) == count


def test_consequences_of_a_reported_failure_are_not_reported_again() -> None:
    errors = StreamErrors()
    cause = failure(1)
    errors.add(cause)
    for seq in range(2, 1000):
        errors.add(skipped(f"launch k{seq}", 3, seq, 0, cause))
    assert errors.pop_all() == [cause]


def test_poison_lasts_until_the_failure_itself_has_surfaced() -> None:
    """Reporting the cause does not report its consequence on another stream, which that stream must still report."""
    here, there = StreamErrors(), StreamErrors()
    cause = failure(1)
    here.add(cause)
    consequence = skipped("launch b", 4, 2, 0, cause)
    there.add(consequence)
    assert poisoned(cause) is cause
    assert poisoned(consequence) is consequence
    assert poisoned(None) is None
    here.pop_all()
    assert poisoned(cause) is None
    assert poisoned(consequence) is consequence
    assert there.pop_all() == [consequence]
    assert poisoned(consequence) is None


def test_buffers_spoiled_by_a_merged_failure_stay_so_until_its_report() -> None:
    errors = StreamErrors()
    failures = [failure(seq) for seq in range(3 * MAX_KEPT)]
    for each in failures:
        errors.add(each)
    assert all(poisoned(each) is each for each in failures), "a merged failure does not count as reported"
    errors.pop_all()
    assert not any(poisoned(each) for each in failures)


def test_consequence_is_reported_with_its_cause() -> None:
    errors = StreamErrors()
    cause = failure(0)
    errors.add(cause)
    consequence = skipped("launch b", 3, 1, 0, cause)
    errors.add(consequence)
    for seq in range(2, 2 + 2 * MAX_KEPT):
        errors.add(failure(seq))
    assert poisoned(consequence) is consequence
    errors.pop_all()
    assert poisoned(consequence) is None


def test_the_last_skip_of_a_long_chain_names_its_cause() -> None:
    cause = failure(1)
    link = skipped("copy", 3, 2, 0, cause)
    for seq in range(3, 5000):
        link = skipped("copy", 3, seq, 0, link)
    assert link.root is cause
    assert link.cause is cause


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


def test_handed_over_errors_stay_unreported() -> None:
    errors, heir = StreamErrors(), StreamErrors()
    first = failure(1)
    errors.add(first)
    errors.hand_over(heir)
    assert not errors
    assert poisoned(first) is first
    assert heir.pop_all() == [first]
    assert poisoned(first) is None


STREAMS = 3
happenings = st.lists(
    st.tuples(st.sampled_from(["fail"] * 12 + ["skip"] * 4 + ["take"]), st.integers(0, STREAMS - 1)), max_size=200
)


@given(happenings)
def test_every_failure_is_reported_exactly_once(program: list[tuple[str, int]]) -> None:
    """Streams fail, skip commands that depend on the latest failure, and are queried; at the end one stream is
    destroyed."""
    streams = [StreamErrors() for _ in range(STREAMS)]
    waiting: list[set[StreamFailure]] = [set() for _ in range(STREAMS)]
    made: list[StreamFailure] = []
    counted = beside = 0

    def ask(which: int) -> None:
        nonlocal counted
        counted += sum(1 + told.merged for told in streams[which].pop_all())
        assert all(each.reported for each in waiting[which])
        waiting[which].clear()

    for seq, (what, which) in enumerate(program):
        if what == "take":
            ask(which)
            continue
        skips = what == "skip" and bool(made)
        each = skipped("copy", which, seq, 0, made[-1]) if skips else failure(seq)
        streams[which].add(each)
        beside += each.reported_by is not None  # its stream reports the cause: the newest failure is never merged
        made.append(each)
        waiting[which].add(each)
        assert not any(each.reported for stream in waiting for each in stream), "not before it is requested"
    streams[2].hand_over(streams[0])
    waiting[0] |= waiting.pop()
    ask(0)
    ask(1)
    assert all(each.reported for each in made)
    assert counted <= len(made) - beside
    if not any(each.root for each in made):  # otherwise the stream that receives failures may report their cause
        assert counted == len(made)
