"""Child graphs and bodies of conditional nodes, while they are being captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.graph_nodes import Conditional
from hearthd.device.graphs.sections import MAX_CASES, MAX_DEPTH, ChildGraph, OpenSection, Sections


def test_child_graphs_come_before_those_that_they_contain() -> None:
    inner, middle, outer = (Sections(graph) for graph in (1, 2, 3))
    middle.add_child(1, 2, 4, inner)
    outer.add_child(2, 10, 9, middle)
    outer.add_child(1, 19, 4, inner)
    assert outer.children == [ChildGraph(2, 10, 9), ChildGraph(1, 12, 4), ChildGraph(1, 19, 4)]


IF, WHILE, SWITCH = Conditional.IF, Conditional.WHILE, Conditional.SWITCH


def body(section: OpenSection) -> tuple[int, int | None, int]:
    """Returns a section's node, the index of its body and its first node."""
    return section.node, section.body, section.first


def test_bodies_end_in_reverse_order() -> None:
    sections = Sections(1)
    assert not sections.in_body
    sections.begin(0, 4, WHILE)
    sections.begin(0, 6, IF)
    assert sections.in_body
    assert [body(sections.end(0, 9)), body(sections.end(0, 9))] == [(6, 0, 7), (4, 0, 5)]
    assert not sections.in_body
    sections.check_ended()
    sections.add_event("an event")
    sections.check_node(3, "a copy")


def test_commands_that_a_body_excludes_are_refused() -> None:
    sections = Sections(1)
    with pytest.raises(Refusal, match="no body of a conditional node has begun"):
        sections.end(0, 0)
    sections.begin(2, 4, WHILE)
    sections.check_node(2, "a copy")
    for refused in (
        lambda: sections.check_node(0, "a copy"),
        lambda: sections.end(0, 5),
        lambda: sections.add_event("an event"),
        sections.check_ended,
    ):
        with pytest.raises(Refusal) as caught:
            refused()
        assert caught.value.reason == Reason.CAPTURE_INVALID and caught.value.fix
    assert sections.end(2, 5).node == 4


def test_bodies_are_nested_to_a_limited_depth() -> None:
    """Switches do not count, their bodies do."""
    sections = Sections(1)
    for node in range(0, MAX_DEPTH, 2):
        sections.begin(0, node, WHILE)
        sections.begin(0, node + 1, SWITCH)
        sections.begin_case(0, sections.open_switch(0, 2), 2, node + 2)
    with pytest.raises(Refusal, match="16 other bodies, which is the maximum"):
        sections.begin(0, MAX_DEPTH, IF)
    assert body(sections.end(0, MAX_DEPTH)) == (MAX_DEPTH - 1, 2, MAX_DEPTH)


def test_a_switch_contains_nodes_in_its_cases_only() -> None:
    sections = Sections(1)
    with pytest.raises(Refusal, match="no switch has begun on this stream directly around the case for 1"):
        sections.open_switch(0, 1)
    sections.begin(0, 3, SWITCH)
    with pytest.raises(Refusal, match="a copy in the switch of node 3, but in none of its cases") as caught:
        sections.check_node(0, "a copy")
    assert caught.value.reason == Reason.CAPTURE_INVALID and caught.value.fix
    with pytest.raises(Refusal, match="a switch has cases for 0 to 255"):
        sections.open_switch(0, MAX_CASES)
    with pytest.raises(Refusal, match="no switch has begun on this stream"):
        sections.open_switch(1, 0)
    sections.begin_case(0, sections.open_switch(0, 7), 7, 4)
    sections.check_node(0, "a copy")
    with pytest.raises(Refusal, match="no switch has begun on this stream directly around"):
        sections.open_switch(0, 1)
    assert body(sections.end(0, 6)) == (3, 7, 4)
    with pytest.raises(Refusal, match="no if without an else"):
        sections.begin_else(0, 6)
    with pytest.raises(Refusal, match="has not ended"):
        sections.check_ended()
    assert body(sections.end(0, 6)) == (3, None, 0)
    sections.check_ended()


def test_an_else_follows_the_end_of_an_if_directly() -> None:
    sections = Sections(1)

    def ended(kind: Conditional = IF) -> None:
        sections.begin(0, 4, kind)
        sections.end(0, 6)

    ended()
    assert sections.begin_else(0, 6) == 4
    assert body(sections.end(0, 8)) == (4, 1, 6)
    refused: list[tuple[Callable[[], object], int, int]] = [
        (lambda: None, 0, 8),  # the second else
        (ended, 0, 7),  # a node lies between
        (ended, 1, 6),  # another stream
        (lambda: ended(WHILE), 0, 6),
        (lambda: (ended(), sections.add_event("an event")), 0, 6),
    ]
    for prepare, lane, nodes in refused:
        prepare()
        with pytest.raises(Refusal, match="no if without an else has ended") as caught:
            sections.begin_else(lane, nodes)
        assert caught.value.reason == Reason.CAPTURE_INVALID and caught.value.fix


def test_an_else_belongs_to_the_if_that_has_ended_last() -> None:
    sections = Sections(1)
    sections.begin(0, 0, IF)
    sections.begin(0, 1, IF)
    sections.end(0, 2)
    assert sections.begin_else(0, 2) == 1
    sections.end(0, 3)
    sections.end(0, 3)
    assert sections.begin_else(0, 3) == 0
