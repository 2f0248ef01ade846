"""Operations in flight on a communicator, with the test's own clock; memory that one rank reads and writes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.collectives import ITEM_SIZES, SHAPES
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.collectives.flight_policy import PROGRESS_S, InFlightQueue
from hearthd.device.collectives.parts import locate
from hearthd.device.collectives.request import MAX_OPERATIONS, parse
from hearthd.device.session.buffer import Buffer, ReadOnly
from hearthd.device.session.handle_table import HandleTable
from hearthd.device.session.replay_cache import ReplayCache

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), st.floats(0.01, 5)),
        st.tuples(st.just("finish"), st.just(0.0)),
        st.tuples(st.just("wait"), st.floats(0.001, 3)),
        st.tuples(st.just("give up"), st.just(0.0)),
    )
)


@given(STEPS)
def test_flights_against_a_list(steps: list[tuple[str, float]]) -> None:
    flights: InFlightQueue[int] = InFlightQueue()
    now, reported, reported_at, launched, done = 0.0, 0, -math.inf, 0, 0
    in_flight: list[tuple[int, float]] = []
    for action, value in steps:
        if action == "launch":
            assert flights.number(launched + 1) and not flights.number(launched + 1)
            assert flights.next(launched + 1) and not flights.next(launched + 2)
            flights.launch(launched, now + value)
            in_flight.append((launched, now + value))
            launched += 1
        elif action == "finish" and in_flight:
            flights.finish(in_flight[0][0])
            flights.finish(in_flight.pop(0)[0])  # a second call has no effect
            done += 1
        elif action == "wait":
            now += value
        elif action == "give up":
            assert flights.pop_all() == [operation for operation, _ in in_flight]
            in_flight.clear()
        assert len(flights) == len(in_flight) and flights.done == done
        assert flights.overdue(now) == next((operation for operation, deadline in in_flight if deadline <= now), None)
        is_due = done != reported and now >= reported_at + PROGRESS_S
        assert flights.progress_at() == (reported_at + PROGRESS_S if done != reported else math.inf)
        assert flights.progress(now) == (done if is_due else None)
        if is_due:
            reported, reported_at = done, now


def test_progress_is_known_immediately() -> None:
    flights: InFlightQueue[str] = InFlightQueue()
    for name in "ab":
        flights.launch(name, math.inf)
    flights.finish("a")
    assert flights.progress(10.0) == 1
    flights.finish("b")
    assert flights.progress(10.01) is None
    assert flights.progress(10.01, at_once=True) == 2
    assert flights.progress(20.0, at_once=True) is None


# ---- parts ----

BASE = 1 << 20


def table(size: int = 4096, count: int = 2) -> HandleTable[Buffer]:
    buffers: HandleTable[Buffer] = HandleTable("buffer", ReplayCache())
    for handle in range(1, count + 1):
        buffer = buffers.add(handle, Buffer(handle, size))
        buffer.address = BASE * handle
    return buffers


def anything(kind: str, dtype: str, op: str) -> None:
    pass


def number(kind: str) -> int:
    return int(c.CollectiveKind.Value(f"COLLECTIVE_KIND_{kind.upper()}"))


def one(kind: str, **fields: Any) -> c.CollectiveOperation:
    values = {
        "source": 1, "destination": 2, "count": 8, "dtype": "float32", "op": c.REDUCE_OP_SUM, **fields
    }  # fmt: skip
    return c.CollectiveOperation(kind=number(kind), **values)


def parts(*operations: Any, rank: int = 1, ranks: int = 3, buffers: Any = None) -> Any:
    return parse(operations, buffers or table(), rank, ranks, anything)


def refused(*operations: Any, **more: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        locate(parts(*operations, **more))
    assert caught.value.message and caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    ("kind", "rank", "root", "reads", "writes"),
    [
        ("all_reduce", 1, 0, 1, 1), ("reduce", 1, 1, 1, 1), ("reduce", 1, 0, 1, None),
        ("broadcast", 1, 1, 1, 1), ("broadcast", 1, 0, None, 1), ("all_gather", 1, 0, 1, 3),
        ("reduce_scatter", 1, 0, 3, 1), ("all_to_all", 1, 0, 3, 3), ("gather", 1, 1, 1, 3),
        ("gather", 1, 0, 1, None), ("scatter", 1, 1, 3, 1), ("scatter", 1, 0, None, 1),
        ("send", 1, 0, 1, None), ("recv", 1, 0, None, 1), ("barrier", 1, 0, None, None),
    ],
)  # fmt: skip
def test_operands_read_and_written_by_each_kind(
    kind: str, rank: int, root: int, reads: int | None, writes: int | None
) -> None:
    fields: dict[str, Any] = {"root": root}
    if reads is None:
        fields["source"] = 0  # not used, so 0 or any other number is valid
    if writes is None:
        fields["destination"] = 999
    (part,) = parts(one(kind, **fields), rank=rank)
    assert (part.source.size if part.source else None) == (reads * 32 if reads else None)
    assert (part.destination.size if part.destination else None) == (writes * 32 if writes else None)
    (exchange,) = locate([part])
    assert exchange.kind == kind
    assert (exchange.source, exchange.destination) == (BASE if reads else 0, 2 * BASE if writes else 0)
    if SHAPES[kind].reduces:
        assert (exchange.count, exchange.dtype, exchange.op) == (8, "float32", "sum")
    elif kind != "barrier":
        assert (exchange.count, exchange.dtype, exchange.op) == (32, "uint8", "")
    assert exchange.root == (root if SHAPES[kind].rooted else 0)


@pytest.mark.parametrize("dtype", ITEM_SIZES)
def test_every_dtype_moves(dtype: str) -> None:
    (exchange,) = locate(parts(one("broadcast", dtype=dtype, root=1, op=0)))
    assert exchange.count == 8 * ITEM_SIZES[dtype] and exchange.dtype == "uint8"


def test_signature_omits_unused_fields() -> None:
    (first,) = parts(one("all_gather", op=c.REDUCE_OP_MAX, root=2, peer=1))
    (second,) = parts(one("all_gather", op=0), rank=2)
    assert first.signature == second.signature
    assert first.signature == {
        "kind": "all_gather", "count": 8, "dtype": "float32", "reduce": "", "root": 0, "peer": 0
    }  # fmt: skip
    (barrier,) = parts(one("barrier", count=5, dtype="no dtype", root=99))
    assert barrier.signature == {"kind": "barrier", "count": 0, "dtype": "", "reduce": "", "root": 0, "peer": 0}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kind": "all_reduce", "op": 0}, Reason.INVALID_ARGUMENT),
        ({"kind": "all_reduce", "op": 99}, Reason.INVALID_ARGUMENT),
        ({"kind": "all_reduce", "dtype": "complex64"}, Reason.UNSUPPORTED),
        ({"kind": "reduce", "dtype": "bool"}, Reason.UNSUPPORTED),
        ({"kind": "all_gather", "dtype": "float31"}, Reason.UNSUPPORTED),
        ({"kind": "all_gather", "dtype": ""}, Reason.UNSUPPORTED),
        ({"kind": "broadcast", "root": 3}, Reason.INVALID_ARGUMENT),
        ({"kind": "gather", "root": 2**32 - 1}, Reason.INVALID_ARGUMENT),
        ({"kind": "send", "peer": 3}, Reason.INVALID_ARGUMENT),
        ({"kind": "send", "peer": 1}, Reason.INVALID_ARGUMENT),
        ({"kind": "recv", "peer": 1}, Reason.INVALID_ARGUMENT),
        ({"kind": "all_reduce", "source": 3}, Reason.INVALID_HANDLE),
        ({"kind": "all_reduce", "destination": 0}, Reason.INVALID_HANDLE),
        ({"kind": "all_reduce", "count": 1025}, Reason.OUT_OF_BOUNDS),
        ({"kind": "all_gather", "count": 342}, Reason.OUT_OF_BOUNDS),
        ({"kind": "reduce_scatter", "count": 342}, Reason.OUT_OF_BOUNDS),
        ({"kind": "all_to_all", "count": 2**62}, Reason.OUT_OF_BOUNDS),
        ({"kind": "scatter", "root": 1, "count": 2**64 - 1}, Reason.OUT_OF_BOUNDS),
        ({"kind": "recv", "destination_offset": 2**64 - 1, "count": 1}, Reason.OUT_OF_BOUNDS),
        ({"kind": "send", "source_offset": 4097, "count": 0}, Reason.OUT_OF_BOUNDS),
        ({"kind": "all_reduce", "source_offset": 2}, Reason.INVALID_ARGUMENT),
        ({"kind": "reduce", "root": 1, "destination_offset": 1}, Reason.INVALID_ARGUMENT),
    ],
    ids=str,
)
def test_invalid_operations_are_refused(fields: dict[str, Any], reason: Reason) -> None:
    fields = dict(fields)
    assert refused(one(fields.pop("kind"), **fields)).reason == reason


def test_unknown_kinds_are_refused() -> None:
    for kind in (0, 12, 77):
        refusal = refused(c.CollectiveOperation(kind=kind, count=1, dtype="int8", source=1, destination=2))
        assert refusal.reason == Reason.INVALID_ARGUMENT


def test_operations_are_bounded() -> None:
    barrier = one("barrier")
    assert len(parts(*[barrier] * MAX_OPERATIONS)) == MAX_OPERATIONS
    assert "the maximum is" in refused(*[barrier] * (MAX_OPERATIONS + 1)).message
    assert parts() == []


def test_a_destination_that_cannot_be_written() -> None:
    buffers = table()
    buffers.find(2).read_only = ReadOnly("is published", "copy it")
    assert refused(one("all_reduce"), buffers=buffers).reason == Reason.READ_ONLY
    assert locate(parts(one("all_reduce", source=2, destination=1), buffers=buffers))


def test_a_buffer_without_memory() -> None:
    buffers = table()
    buffers.find(1).lost = Refusal(Reason.BUFFER_LOST, "gone")
    assert refused(one("all_reduce"), buffers=buffers).reason == Reason.BUFFER_LOST


def test_both_ends_of_an_exchange_with_itself() -> None:
    assert len(locate(parts(one("send", peer=1), one("recv", peer=1)))) == 2


@pytest.mark.parametrize("kind", [kind for kind in SHAPES if kind not in ("send", "recv", "barrier")])
@given(
    source_start=st.integers(0, 40),
    destination_start=st.integers(0, 40),
    rank=st.integers(0, 2),
    count=st.integers(0, 4),
)
def test_in_place_or_apart(kind: str, source_start: int, destination_start: int, rank: int, count: int) -> None:
    operation = one(
        kind,
        source=1,
        destination=1,
        source_offset=4 * source_start,
        destination_offset=4 * destination_start,
        count=count,
        root=rank,
    )
    (part,) = parts(operation, rank=rank)
    times = {1: 1, 2: 3}
    shape = SHAPES[kind]
    source = set(range(source_start, source_start + count * times[shape.source]))
    destination = set(range(destination_start, destination_start + count * times[shape.destination]))
    gathers = source_start == destination_start + rank * count
    scatters = destination_start == source_start + rank * count
    allowed = {
        "all_gather": gathers, "gather": gathers, "reduce_scatter": scatters, "scatter": scatters, "all_to_all": False,
    }.get(kind, source_start == destination_start)  # fmt: skip
    if source & destination and not allowed:
        with pytest.raises(Refusal) as caught:
            locate([part])
        assert caught.value.reason == Reason.INVALID_ARGUMENT and "overlap" in caught.value.message
    else:
        assert len(locate([part])) == (count > 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 5)), min_size=2, max_size=6))
def test_overlapping_operations_of_a_batch_are_refused(ranges: list[tuple[bool, int, int]]) -> None:
    operations = [
        one("recv" if writes else "send", source=1, destination=1, source_offset=at, destination_offset=at,
            count=count, dtype="uint8", peer=0)
        for writes, at, count in ranges
    ]  # fmt: skip
    clash = any(
        (first[0] or second[0])
        and set(range(first[1], first[1] + first[2])) & set(range(second[1], second[1] + second[2]))
        for index, first in enumerate(ranges)
        for second in ranges[:index]
    )
    if clash:
        assert "same memory" in refused(*operations).message
    else:
        assert len(locate(parts(*operations))) == sum(count > 0 for _, _, count in ranges)
