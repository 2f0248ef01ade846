"""The flight recorder: its lines, and its bounded size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.front.collectives.flight_recorder import GROUPS, LINES, OPERATIONS, FlightRecorder, describe_operations
from tests.support.front.collective_parts import SIGNATURE, key


class Clock:
    """A clock in nanoseconds that advances by a millisecond with each reading."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


def test_the_life_of_an_operation() -> None:
    recorder = FlightRecorder(Clock())
    one = key(4, 2)
    recorder.record_presentation(one, 1, [SIGNATURE])
    assert recorder.lines("s", (4, 2)) == ["1 all_reduce 8 float32 sum: presented, presented by ranks 1"]
    recorder.record_presentation(one, 0, [SIGNATURE])
    recorder.record_launch(one)
    assert recorder.lines("s", (4, 2)) == [
        "1 all_reduce 8 float32 sum: launched, presented by ranks 0, 1, launched after 2.0 ms"
    ]
    recorder.record_completion(one)
    assert recorder.lines("s", (4, 2)) == [
        "1 all_reduce 8 float32 sum: done, presented by ranks 0, 1, launched after 2.0 ms, finished after 3.0 ms"
    ]
    recorder.record_failure(one, "too late to fail")
    history = recorder.history("s", (4, 2))
    assert history is not None and history.operations[1].state == "done"
    assert recorder.lines("s", (2, 4)) == [] == recorder.lines("t", (4, 2))


def test_a_failure_has_its_reason() -> None:
    recorder = FlightRecorder(Clock())
    recorder.record_presentation(key(0, 1), 0, [])
    recorder.record_failure(key(0, 1), "x" * 10_000)
    (line,) = recorder.lines("s", (0, 1))
    assert line.startswith("1 nothing: failed, presented by ranks 0, ended after 1.0 ms (xxx") and len(line) == 200


def test_empty_part_of_a_rank_does_not_name_the_operation() -> None:
    recorder = FlightRecorder(Clock())
    recorder.record_presentation(key(0, 1), 0, [])
    recorder.record_presentation(key(0, 1), 1, [{**SIGNATURE, "kind": "barrier"}])
    assert recorder.lines("s", (0, 1))[0].startswith("1 barrier: presented, presented by ranks 0, 1")


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ({}, "all_reduce 8 float32 sum"),
        ({"kind": "broadcast", "reduce": "", "root": 3}, "broadcast 8 float32 root 3"),
        ({"kind": "reduce", "root": 1}, "reduce 8 float32 sum root 1"),
        ({"kind": "send", "reduce": None, "peer": 2}, "send 8 float32 to 2"),
        ({"kind": "recv", "reduce": "", "peer": 0}, "recv 8 float32 from 0"),
        ({"kind": "barrier"}, "barrier"),
    ],
)
def test_how_operations_are_spelt(operation: dict[str, Any], text: str) -> None:
    assert describe_operations([{**SIGNATURE, **operation}]) == text


def test_long_batches_are_cut() -> None:
    assert describe_operations([SIGNATURE] * 2) == "all_reduce 8 float32 sum, all_reduce 8 float32 sum"
    assert (
        describe_operations([SIGNATURE] * 1000).endswith(", 994 more")
        and len(describe_operations([{"dtype": "x" * 9999}] * 1000)) < 700
    )


def test_lines_are_short() -> None:
    """Lines are sent with errors in trailing metadata, whose size is limited."""
    recorder = FlightRecorder()
    recorder.record_presentation(key(0, 1), 0, [SIGNATURE] * 100)
    (line,) = recorder.lines("s", (0, 1))
    assert len(line) <= 200 and line.endswith("...: presented, presented by ranks 0")


def test_everything_is_bounded() -> None:
    recorder = FlightRecorder()
    for sequence in range(OPERATIONS + 10):
        recorder.record_presentation(key(0, 1, sequence=sequence), 0, [SIGNATURE])
    history = recorder.history("s", (0, 1))
    assert history is not None and list(history.operations) == list(range(10, OPERATIONS + 10))
    assert len(recorder.lines("s", (0, 1))) == LINES
    for device in range(GROUPS - 1):
        recorder.record_presentation(key(5, device), 0, [SIGNATURE])
    recorder.record_presentation(key(0, 1, sequence=99), 0, [SIGNATURE])  # most recently used now
    recorder.record_presentation(key(7, 8), 0, [SIGNATURE])
    groups = [members for members, _ in recorder.histories("s")]
    assert len(groups) == GROUPS and groups[-1] == (7, 8) and (0, 1) in groups and (5, 0) not in groups


@given(st.sampled_from(["launch", "completion", "failure", "ready", "abort"]))
def test_events_of_unknown_operations_are_ignored(event: str) -> None:
    """For example, late events of a session that has ended."""
    recorder = FlightRecorder()
    recorder.record_presentation(key(0, 1), 0, [SIGNATURE])
    recorder.forget("s")
    arguments: dict[str, tuple[Any, ...]] = {
        "failure": (key(0, 1), "why"),
        "ready": ("s", (0, 1)),
        "abort": ("s", (0, 1), "why"),
    }
    getattr(recorder, f"record_{event}")(*arguments.get(event, (key(0, 1),)))
    assert len(recorder) == 0
