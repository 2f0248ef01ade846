"""Order of captured nodes: forks, joins, streams that are not joined, and graphs inside graphs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.graphs.node_order import NodeOrders

STREAMS = 4
steps = st.lists(
    st.tuples(st.sampled_from(("add", "record", "wait")), st.integers(0, STREAMS - 1), st.integers(0, 2)), max_size=30
)


def diamond() -> NodeOrders:
    """Returns a node, two that follow it on two streams, and a node after both."""
    orders = NodeOrders(5)
    orders.add(0)
    side = orders.fork(6)
    orders.join(side, orders.point(0))
    orders.add(0)
    orders.add(side)
    orders.join(0, orders.point(side))
    orders.add(0)
    return orders


def afters(orders: NodeOrders) -> list[tuple[int, ...]]:
    return [order.after for order in orders.orders]


def test_a_single_stream_is_a_chain() -> None:
    orders = NodeOrders(5)
    for _ in range(3):
        orders.add(0)
    assert afters(orders) == [(), (0,), (1,)] and not orders.forked and not orders.unjoined()


def test_a_diamond() -> None:
    orders = diamond()
    assert orders.forked and not orders.unjoined()
    assert afters(orders) == [(), (0,), (0,), (1, 2)]
    assert [order.lane for order in orders.orders] == [0, 0, 1, 0]


def test_streams_that_are_not_joined_are_listed_once() -> None:
    orders = NodeOrders(5)
    first, second, idle = orders.fork(6), orders.fork(7), orders.fork(8)
    orders.add(first)
    orders.add(first)
    orders.add(second)
    assert orders.unjoined() == [6, 7]
    orders.join(idle, orders.point(second))
    orders.join(0, orders.point(idle))  # joined through a third stream
    assert orders.unjoined() == [6]
    orders.join(0, orders.point(first))
    assert not orders.unjoined()
    orders.add(first)
    assert orders.unjoined() == [6]


@given(steps)
def test_orders_equal_those_of_a_model_with_all_ancestors(program: list[tuple[str, int, int]]) -> None:
    """A node depends, through its predecessors, on exactly the nodes that its stream has waited for or has run."""
    orders = NodeOrders(0)
    for stream in range(1, STREAMS):
        orders.fork(stream)
    seen: list[set[int]] = [set() for _ in range(STREAMS)]
    events: dict[int, tuple[frozenset[int], set[int]]] = {}
    expected: list[set[int]] = []
    for what, lane, event in program:
        if what == "add":
            orders.add(lane)
            expected.append(set(seen[lane]))
            seen[lane].add(len(expected) - 1)
        elif what == "record":
            events[event] = orders.point(lane), set(seen[lane])
        elif event in events:
            orders.join(lane, events[event][0])
            seen[lane] |= events[event][1]
    found: list[set[int]] = []
    for index, order in enumerate(orders.orders):
        assert all(before < index for before in order.after)
        found.append(set(order.after).union(*(found[before] for before in order.after)))
    assert found == expected
    missing = {orders.orders[index].lane for index in range(len(expected)) if index not in seen[0]}
    assert set(orders.unjoined()) <= missing and bool(orders.unjoined()) == bool(missing)


@pytest.mark.parametrize("lane", [0, 1])
def test_a_graph_inside_a_graph_is_one_step_of_its_stream(lane: int) -> None:
    orders = NodeOrders(1)
    orders.fork(2)
    orders.add(lane)
    orders.embed(lane, diamond())
    orders.embed(lane, NodeOrders(9))  # an empty graph
    orders.embed(lane, diamond())
    orders.add(lane)
    assert afters(orders) == [(), (0,), (1,), (1,), (2, 3), (4,), (5,), (5,), (6, 7), (8,)]
    assert [order.lane for order in orders.orders] == [lane] * 3 + [2] + [lane] * 3 + [2] + [lane] * 2
    assert orders.unjoined() == ([] if lane == 0 else [2])
