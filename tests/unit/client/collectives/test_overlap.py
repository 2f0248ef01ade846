"""Check of memory overlap between concurrent operations, compared with a check of every byte."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hearth
from hearth.collectives.overlap import check
from hearth.collectives.part import RankPart
from hearth_proto.v1 import commands_pb2 as c
from tests.support.client.internals import handle_of, offset_of


def array(buffer: int, start: int, size: int) -> Any:
    return SimpleNamespace(_memory=SimpleNamespace(handle=buffer), _offset=start, nbytes=size)


arrays = st.builds(array, st.integers(1, 2), st.integers(0, 12), st.integers(0, 4))
SEND, RECV = c.COLLECTIVE_KIND_SEND, c.COLLECTIVE_KIND_RECV
ALL_TO_ALL, ALL_REDUCE = c.COLLECTIVE_KIND_ALL_TO_ALL, c.COLLECTIVE_KIND_ALL_REDUCE


def bytes_of(array: Any) -> set[tuple[int, int]]:
    return {(handle_of(array), at) for at in range(offset_of(array), offset_of(array) + array.nbytes)}


@given(st.lists(st.tuples(st.booleans(), arrays), max_size=6))
def test_written_memory_that_overlaps_another_operand_is_refused(program: list[tuple[bool, Any]]) -> None:
    parts = [RankPart(0, RECV, None, array) if writes else RankPart(0, SEND, array) for writes, array in program]
    wrong = any(
        (program[i][0] or program[j][0]) and bytes_of(program[i][1]) & bytes_of(program[j][1])
        for i in range(len(program))
        for j in range(i)
    )
    if wrong:
        with pytest.raises(hearth.ArgumentError, match="same memory of rank 0"):
            check(parts)
    else:
        check(parts)


@given(arrays, arrays)
def test_source_and_destination(source: Any, destination: Any) -> None:
    apart = not bytes_of(source) & bytes_of(destination)
    equal = bytes_of(source) == bytes_of(destination)
    for kind, fine in ((ALL_TO_ALL, apart), (ALL_REDUCE, apart or equal)):
        if fine:
            check([RankPart(0, kind, source, destination)])
        else:
            with pytest.raises(hearth.ArgumentError, match="overlap"):
                check([RankPart(0, kind, source, destination)])


@given(st.integers(0, 3), st.integers(0, 16), st.integers(1, 4))
def test_in_place_at_a_ranks_share(rank: int, start: int, size: int) -> None:
    whole, share = array(1, 4, 4 * size), array(1, start, size)
    right = start == 4 + rank * size or not bytes_of(whole) & bytes_of(share)
    for kind, source, destination in (
        (c.COLLECTIVE_KIND_ALL_GATHER, share, whole),
        (c.COLLECTIVE_KIND_GATHER, share, whole),
        (c.COLLECTIVE_KIND_REDUCE_SCATTER, whole, share),
        (c.COLLECTIVE_KIND_SCATTER, whole, share),
    ):
        if right:
            check([RankPart(rank, kind, source, destination)])
        else:
            with pytest.raises(hearth.ArgumentError, match=f"rank {rank} overlap"):
                check([RankPart(rank, kind, source, destination)])


def test_the_same_array_twice() -> None:
    x = array(1, 0, 4)
    check([RankPart(0, ALL_REDUCE, x, x)])
    with pytest.raises(hearth.ArgumentError, match="overlap"):
        check([RankPart(0, ALL_TO_ALL, x, x)])
    with pytest.raises(hearth.ArgumentError, match="same memory"):
        check([RankPart(0, ALL_REDUCE, x, x), RankPart(0, SEND, x)])
