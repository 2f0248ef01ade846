"""Recordings of one stream: refused steps have no effect on the state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.graphs.capture_policy import EXECUTED, REASONS, RECORDED, SHARED, TRANSITIONS, CaptureOrder

KINDS = tuple(field.name for field in commands_pb2.Command.DESCRIPTOR.oneofs_by_name["kind"].fields)

steps = st.lists(
    st.tuples(st.sampled_from(("begin", "end", "abort", "command")), st.integers(1, 3), st.sampled_from(KINDS))
)


def refused(order: CaptureOrder, what: str, graph: int, kind: str) -> bool:
    """Takes the step. Returns True if it was refused."""
    try:
        if what == "begin":
            order.begin(graph)
        elif what == "end":
            order.end(graph)
        elif what == "abort":
            order.abort()
        else:
            order.records(kind)
    except Refusal as refusal:
        assert refusal.reason == Reason.CAPTURE_INVALID and refusal.fix
        assert refusal.details["stream"] == "7"
        return True
    return False


def test_transitions_follow_the_capture_order() -> None:
    order = CaptureOrder(7)
    assert not order.recording
    order.begin(3)
    assert order.recording and order.graph == 3
    order.end(3)
    assert not order.recording
    order.begin(3)
    with pytest.raises(Refusal, match="records graph 3 already; graph 4 cannot"):
        order.begin(4)
    with pytest.raises(Refusal, match="records graph 3, not graph 4"):
        order.end(4)
    order.end(3)
    with pytest.raises(Refusal, match="stream 7 records no graph"):
        order.end(3)


@given(steps)
def test_a_rejected_transition_changes_nothing(program: list[tuple[str, int, str]]) -> None:
    order = CaptureOrder(7)
    graph = 0  # model of the order: the graph that is being recorded
    for what, number, kind in program:
        allowed = {
            "begin": graph == 0,
            "end": graph == number,
            "abort": True,
            "command": graph == 0 or kind in RECORDED | EXECUTED | TRANSITIONS,
        }[what]
        assert refused(order, what, number, kind) != allowed
        if allowed and what != "command":
            graph = number if what == "begin" else 0
        assert (order.graph, order.recording) == (graph, graph != 0)


@given(steps, st.integers(1, 3))
def test_abort_recovers(program: list[tuple[str, int, str]], graph: int) -> None:
    """`abort` works in any state, and any number of times."""
    order = CaptureOrder(7)
    for what, number, kind in program:
        refused(order, what, number, kind)
    before = order.graph
    assert order.abort() == before
    assert order.abort() == 0 and not order.recording
    order.begin(graph)
    assert order.graph == graph


@pytest.mark.parametrize("kind", sorted(SHARED))
def test_copies_of_shared_memory_are_recorded_and_others_refused_with_the_fix(kind: str) -> None:
    order = CaptureOrder(7)
    assert order.records(kind, shared=True) is False
    order.begin(3)
    assert order.records(kind, shared=True) is True
    with pytest.raises(Refusal, match=kind) as caught:
        order.records(kind)
    assert "hearth.empty_pinned" in caught.value.fix


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_command_is_decided(kind: str) -> None:
    """During a recording, each kind of command is recorded, executed, or refused with its name; otherwise all are
    executed."""
    order = CaptureOrder(7)
    assert order.records(kind) is False
    order.begin(3)
    if kind in RECORDED:
        assert order.records(kind) is True
    elif kind in EXECUTED | TRANSITIONS:
        assert order.records(kind) is False
    else:
        with pytest.raises(Refusal, match=rf": {kind} on stream 7 while it records graph 3: ") as caught:
            order.records(kind)
        assert caught.value.details["command"] == kind
    assert order.graph == 3


def test_the_lists_name_commands_that_exist_and_none_twice() -> None:
    assert RECORDED | EXECUTED | TRANSITIONS | set(REASONS) <= set(KINDS)
    assert not RECORDED & EXECUTED and not (RECORDED | EXECUTED) & (TRANSITIONS | set(REASONS))
