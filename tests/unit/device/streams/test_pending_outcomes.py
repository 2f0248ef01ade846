"""Dependencies of contents on collectives: the few outcomes that are kept for a communicator imply all earlier ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.pending_outcomes import PendingOutcome, PendingOutcomes

BUFFERS, ROWS = 4, 2

LAUNCH = st.tuples(st.just("launch"), st.integers(0, ROWS - 1), st.sets(st.integers(0, BUFFERS - 1), min_size=1))
WORK = st.tuples(
    st.just("work"), st.sets(st.integers(0, BUFFERS - 1), min_size=1), st.sets(st.integers(0, BUFFERS - 1))
)
SUCCESS = st.tuples(st.just("success"), st.integers(0, ROWS - 1), st.just(0))


@given(st.lists(st.one_of(LAUNCH, WORK, SUCCESS), max_size=60))
def test_latest_outcome_of_each_queue_implies_the_earlier_ones(
    steps: list[tuple[str, int | set[int], int | set[int]]],
) -> None:
    pending_outcomes = PendingOutcomes()
    usages = [Usage() for _ in range(BUFFERS)]
    every: list[set[PendingOutcome]] = [set() for _ in range(BUFFERS)]
    rows: list[list[PendingOutcome]] = [[] for _ in range(ROWS)]
    counts = [0] * ROWS
    for what, first, second in steps:
        if what == "launch":
            assert isinstance(first, int) and isinstance(second, set)
            verdict = PendingOutcome(first, counts[first])
            counts[first] += 1
            rows[first].append(verdict)
            pending_outcomes.launched(verdict, [usages[number] for number in second])
            for number in second:
                every[number].add(verdict)
        elif what == "work":
            assert isinstance(first, set) and isinstance(second, set)
            pending_outcomes.propagate([usages[number] for number in first], [usages[number] for number in second])
            made_of = set().union(*(every[number] for number in first | second))
            for number in first:
                every[number] = set(made_of)
        else:
            assert isinstance(first, int)
            if rows[first]:
                verdict = rows[first].pop(0)
                pending_outcomes.settle(verdict)
        for usage, stands_behind in zip(usages, every, strict=True):
            kept = pending_outcomes.of_buffer(usage)
            undecided = {verdict for verdict in stands_behind if not verdict.settled}
            assert {verdict.sequence for verdict in kept} == {verdict.sequence for verdict in undecided}
            assert all(
                verdict.position == max(each.position for each in undecided if each.sequence == verdict.sequence)
                for verdict in kept
            )
            assert len(kept) <= ROWS
