"""Operation lists of ranks: equal lists match, and any single change is found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearthd.front.collectives.signature import find_mismatch

Lists = dict[int, list[dict[str, Any]]]

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
KINDS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
DTYPES = ("float32", "int8", "uint64")


def operation(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "count": 4, "dtype": "float32", "reduce": "", "root": 0, "peer": 0, **fields}


@st.composite
def agreeing(draw: st.DrawFn, ranks: int | None = None) -> Lists:
    """Draws lists that match: collectives in one order, with each rank's sends and receives at any position between
    them."""
    size = ranks or draw(st.integers(1, 5))
    lists: Lists = {rank: [] for rank in range(size)}
    counts = st.integers(0, 3)
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from((*KINDS, "barrier")))
        shared = operation(
            kind, count=draw(counts), dtype=draw(st.sampled_from(DTYPES)), root=draw(st.integers(0, size - 1))
        )
        shared["reduce"] = draw(st.sampled_from(("sum", "max"))) if kind in REDUCING else ""
        for operations in lists.values():
            operations.append(dict(shared))
    for _ in range(draw(st.integers(0, 4))):
        sender, receiver = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
        fields = {"count": draw(counts), "dtype": draw(st.sampled_from(DTYPES))}
        for rank, kind, peer in ((sender, "send", receiver), (receiver, "recv", sender)):
            operations = lists[rank]
            # The k-th send belongs to the k-th receive, so it must follow those of the same pair.
            earliest = 1 + max(
                (index for index, entry in enumerate(operations) if (entry["kind"], entry["peer"]) == (kind, peer)),
                default=-1,
            )
            operations.insert(draw(st.integers(earliest, len(operations))), operation(kind, peer=peer, **fields))
    return lists


@settings(deadline=None)
@given(agreeing())
def test_matching_lists_are_accepted(lists: Lists) -> None:
    assert find_mismatch(lists, len(lists)) is None
    for rank in lists:  # nor is there a mismatch while the lists of other ranks are missing
        assert find_mismatch({other: lists[other] for other in lists if other != rank}, len(lists)) is None


def meaningful(operation: dict[str, Any]) -> list[str]:
    """Returns the fields in which a change of this operation matters."""
    kind = operation["kind"]
    fields = ["kind"]
    if kind != "barrier":
        fields += ["count", "dtype"]
    if kind in REDUCING:
        fields.append("reduce")
    if kind in ROOTED:
        fields.append("root")
    if kind in ("send", "recv"):
        fields.append("peer")
    return fields


OTHER_KIND = {**dict.fromkeys(KINDS, "barrier"), "barrier": "all_gather", "send": "recv", "recv": "all_reduce"}


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_single_change_is_found_and_names_a_rank_that_differs(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 5))
    lists = data.draw(agreeing(size).filter(lambda lists: any(lists.values())))
    rank = data.draw(st.sampled_from([rank for rank, operations in lists.items() if operations]))
    index = data.draw(st.integers(0, len(lists[rank]) - 1))
    changed = lists[rank][index]
    if data.draw(st.booleans()):
        field = data.draw(st.sampled_from(meaningful(changed)))
        new: Any = {"count": 99, "dtype": "float16", "reduce": "prod", "root": 77}.get(field)
        if field == "kind":
            new = OTHER_KIND[changed["kind"]]
        if field == "peer":
            new = data.draw(
                st.sampled_from([-1, size, "1", *(peer for peer in range(size) if peer != changed["peer"])])
            )
        lists[rank][index] = {**changed, field: new}
    else:
        field = "dropped"
        del lists[rank][index]
    difference = find_mismatch(lists, size)
    assert difference is not None
    assert set(difference.odd_ranks) <= set(difference.values) and difference.odd_ranks
    assert (
        len(set(map(repr, difference.values.values()))) > 1 or difference.field == "peer" or len(difference.values) == 1
    )
    has_majority = changed["kind"] not in ("send", "recv") or difference.pair is None
    if has_majority and difference.field != "peer" and size > 2:
        assert difference.odd_ranks == [rank], "the others agree"
    else:
        assert rank in difference.odd_ranks or size == 2


def test_positions_are_those_in_the_odd_ranks_list() -> None:
    first, second = operation("all_gather"), operation("broadcast")
    lists = {0: [first, second], 1: [first, second], 2: [operation("send", peer=2), first, {**second, "root": 1}]}
    difference = find_mismatch(lists, 3)
    assert difference is not None and (difference.field, difference.odd_ranks, difference.position) == ("root", [2], 3)
    assert difference.majority == [0, 1] and difference.values == {0: 0, 1: 0, 2: 1}


def test_mismatch_of_single_operations() -> None:
    difference = find_mismatch({0: [operation("barrier")], 1: [operation("all_gather")]}, 2)
    assert difference is not None and (difference.field, difference.odd_ranks, difference.position) == ("kind", [1], 0)


def test_a_rank_with_fewer_operations_is_named_with_their_number() -> None:
    both = [operation("all_gather")] * 3
    difference = find_mismatch({0: both, 1: both, 2: both[:2]}, 3)
    assert difference is not None and (difference.field, difference.odd_ranks, difference.values) == (
        "operations",
        [2],
        {0: 3, 1: 3, 2: 2},
    )


def test_order_matters_within_a_pair_only() -> None:
    """Two sends to different ranks may be in any order. Two sends to the same rank belong to its receives in order."""
    small, large = {"count": 1}, {"count": 2}
    lists = {
        0: [operation("send", peer=2, **large), operation("send", peer=1, **small)],
        1: [operation("recv", peer=0, **small)],
        2: [operation("recv", peer=0, **large)],
    }
    assert find_mismatch(lists, 3) is None
    lists = {
        0: [operation("send", peer=1, **large), operation("send", peer=1, **small)],
        1: [operation("recv", peer=0, **small), operation("recv", peer=0, **large)],
    }
    difference = find_mismatch(lists, 2)
    assert difference is not None and (difference.field, difference.odd_ranks, difference.pair) == (
        "count",
        [0, 1],
        (0, 1, 2, 1),
    )
    assert difference.position == 1


def test_exchange_of_a_rank_with_itself() -> None:
    lists = {0: [operation("send", peer=0), operation("recv", peer=0, count=5)]}
    difference = find_mismatch(lists, 1)
    assert difference is not None and difference.pair == (0, 0, 4, 5)
    lists[0][1]["count"] = 4
    assert find_mismatch(lists, 1) is None


@pytest.mark.parametrize("peer", [2, -1, None, "0", 0.5, True])
def test_invalid_peer_is_a_mismatch(peer: object) -> None:
    difference = find_mismatch({0: [operation("send", peer=peer)], 1: []}, 2)
    assert difference is not None and difference.odd_ranks[0] == 0


def test_fields_without_a_meaning_are_not_compared() -> None:
    for kind in ("all_gather", "barrier", "all_to_all"):
        assert find_mismatch({0: [operation(kind, root=1, reduce="sum")], 1: [operation(kind)]}, 2) is None
    difference = find_mismatch({0: [operation("unheard_of", root=1)], 1: [operation("unheard_of")]}, 2)
    assert difference is not None and difference.field == "root"


values = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
names = st.sampled_from(["kind", "count", "dtype", "reduce", "root", "peer"])
kinds = st.sampled_from([*KINDS, "send", "recv", "barrier"])


@settings(deadline=None)
@given(
    st.dictionaries(
        st.integers(0, 3), st.lists(st.dictionaries(names, values | kinds, max_size=6), max_size=3), max_size=4
    )
)
def test_random_lists_raise_no_error(lists: Lists) -> None:
    difference = find_mismatch(lists, 4)
    assert difference is None or set(difference.odd_ranks) <= set(lists)
