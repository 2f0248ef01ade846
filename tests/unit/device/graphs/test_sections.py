"""Child graphs and bodies of conditional nodes, while they are being captured."""

from __future__ import annotations

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.graphs.sections import MAX_DEPTH, ChildGraph, Sections


def test_child_graphs_come_before_those_that_they_contain() -> None:
    inner, middle, outer = (Sections(graph) for graph in (1, 2, 3))
    middle.add_child(1, 2, 4, inner)
    outer.add_child(2, 10, 9, middle)
    outer.add_child(1, 19, 4, inner)
    assert outer.children == [ChildGraph(2, 10, 9), ChildGraph(1, 12, 4), ChildGraph(1, 19, 4)]


def test_bodies_end_in_reverse_order() -> None:
    sections = Sections(1)
    assert not sections.in_body
    sections.begin_body(0, 4)
    sections.begin_body(0, 6)
    assert sections.in_body
    assert [sections.end_body(0), sections.end_body(0)] == [6, 4]
    assert not sections.in_body
    sections.check_ended()
    sections.check_no_body("an event")
    sections.check_lane(3, "a copy")


def test_what_a_body_excludes_is_refused() -> None:
    sections = Sections(1)
    with pytest.raises(Refusal, match="no body of a conditional node has begun"):
        sections.end_body(0)
    sections.begin_body(2, 4)
    sections.check_lane(2, "a copy")
    for refused in (
        lambda: sections.check_lane(0, "a copy"),
        lambda: sections.end_body(0),
        lambda: sections.check_no_body("an event"),
        sections.check_ended,
    ):
        with pytest.raises(Refusal) as caught:
            refused()
        assert caught.value.reason == Reason.CAPTURE_INVALID and caught.value.fix
    assert sections.end_body(2) == 4


def test_bodies_are_nested_to_a_limited_depth() -> None:
    sections = Sections(1)
    for node in range(MAX_DEPTH):
        sections.begin_body(0, node)
    with pytest.raises(Refusal, match="16 other bodies, which is the maximum"):
        sections.begin_body(0, MAX_DEPTH)
    assert sections.end_body(0) == MAX_DEPTH - 1
