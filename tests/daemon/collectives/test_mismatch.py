"""Ranks of a collective that do not agree, and invalid operations: refused by name, with an error for all ranks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from tests.support.collectives.ranks import FLOATS, A, B, Ranks, collective, operation, refusal_of
from tests.support.timing import LATE

# ---- ranks that do not agree ----

ODD: dict[str, tuple[list[Any], list[Any]]] = {
    "kind": ([operation("all_reduce", A, B)], [operation("broadcast", A, B)]),
    "count": ([operation("all_reduce", A, B)], [operation("all_reduce", A, B, count=63)]),
    "dtype": ([operation("all_gather", A, B, count=9)], [operation("all_gather", A, B, count=9, dtype="int32")]),
    "reduce": ([operation("all_reduce", A, B)], [operation("all_reduce", A, B, op=c.REDUCE_OP_MAX)]),
    "root": ([operation("broadcast", A, B)], [operation("broadcast", A, B, root=1)]),
}


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("field", ODD)
def test_a_mismatch_names_the_odd_rank_and_the_field(ranks: Ranks, field: str, odd: int) -> None:
    usual, other = ODD[field]
    number = ranks.next()
    for rank, stream in enumerate(ranks.streams):
        stream.batch(collective((0, 1, 2), number, *(other if rank == odd else usual)))
    for rank in range(3):
        refusal = ranks.failure(rank)
        assert refusal.reason == Reason.COLLECTIVE_MISMATCH, refusal
        assert (refusal.details["odd_rank"], refusal.details["field"]) == (str(odd), field), refusal
        assert field in refusal.message and refusal.fix
    assert ranks.recorded((0, 1, 2), number).state == "failed"
    ranks.work()


def at(offset: int, count: int = 8) -> c.CollectiveOperation:
    """Returns an operation of a batch; the operations of the batch write disjoint ranges."""
    return operation("all_reduce", A, B, count=count, source_offset=offset, destination_offset=offset)


def test_the_odd_entry_of_a_batch_is_found(ranks: Ranks) -> None:
    number = ranks.next()
    for rank, stream in enumerate(ranks.streams):
        counts = [8, 9, 10 if rank != 1 else 11, 12]
        stream.batch(collective((0, 1, 2), number, *(at(64 * i, count) for i, count in enumerate(counts))))
    for rank in range(3):
        refusal = ranks.failure(rank)
        assert refusal.reason == Reason.COLLECTIVE_MISMATCH
        assert (refusal.details["odd_rank"], refusal.details["field"]) == ("1", "count"), refusal
        assert {refusal.details["requested"], refusal.details["expected"]} == {"10", "11"}
    ranks.work()


@pytest.mark.parametrize("more", [0, 1, 3])
def test_batches_of_different_lengths(ranks: Ranks, more: int) -> None:
    number = ranks.next()
    for rank, stream in enumerate(ranks.streams):
        length = more if rank == 2 else 2
        stream.batch(collective((0, 1, 2), number, *(at(32 * i) for i in range(length))))
    for rank in range(3):
        refusal = ranks.failure(rank)
        assert refusal.reason == Reason.COLLECTIVE_MISMATCH and refusal.details["odd_rank"] == "2", refusal
    ranks.work()


SENDS = {
    "count": (operation("send", A, peer=1, count=4), operation("recv", 0, B, peer=0, count=5)),
    "dtype": (operation("send", A, peer=1), operation("recv", 0, B, peer=0, dtype="int32")),
    "no rank receives": (operation("send", A, peer=1), None),
    "no rank sends": (None, operation("recv", 0, B, peer=0)),
    "another receives": (operation("send", A, peer=2), operation("recv", 0, B, peer=0)),
    "both send": (operation("send", A, peer=1), operation("send", A, peer=0)),
    "both receive": (operation("recv", 0, B, peer=1), operation("recv", 0, B, peer=0)),
}


@pytest.mark.parametrize("what", SENDS)
def test_mismatched_sends_and_receives(ranks: Ranks, what: str) -> None:
    number = ranks.next()
    operations = (*SENDS[what], None)
    for stream, one in zip(ranks.streams, operations, strict=True):
        stream.batch(collective((0, 1, 2), number, *([one] if one is not None else [])))
    for rank in range(3):
        refusal = ranks.failure(rank)
        assert refusal.reason == Reason.COLLECTIVE_MISMATCH and refusal.fix, refusal
        if what in ("count", "dtype"):
            assert refusal.details["field"] == what
            assert refusal.details["odd_rank"] == "0, 1", "with two ranks, both are named"
    ranks.work()


def test_rank_without_operations_presents_an_empty_part(ranks: Ranks) -> None:
    """A rank without operations presents an empty list; sends that would deadlock one by one form one NCCL group."""
    number = ranks.next()
    right = [operation("send", A, peer=1), operation("recv", 0, B, peer=1)]
    left = [operation("send", A, peer=0), operation("recv", 0, B, peer=0)]
    for stream, batch in zip(ranks.streams, (right, left, []), strict=True):
        stream.batch(collective((0, 1, 2), number, *batch))
    assert [set(ranks.data(rank, B)) for rank in range(3)] == [{2.0}, {1.0}, {-1.0}]
    ranks.work()


# ---- invalid operations ----

WRONG: dict[str, Any] = {
    "no such kind": collective((0, 1, 2), 1, c.CollectiveOperation(kind=99, source=A, destination=B, count=1)),
    "no kind": collective((0, 1, 2), 1, c.CollectiveOperation(source=A, destination=B, count=1)),
    "no such reduction": collective((0, 1, 2), 1, operation("all_reduce", A, B, op=77)),
    "no reduction": collective((0, 1, 2), 1, operation("reduce", A, B, op=0)),
    "no such dtype": collective((0, 1, 2), 1, operation("all_reduce", A, B, dtype="float31")),
    "dtype of a move": collective((0, 1, 2), 1, operation("all_gather", A, B, count=1, dtype="junk")),
    "no dtype": collective((0, 1, 2), 1, operation("broadcast", A, B, dtype="")),
    "complex": collective((0, 1, 2), 1, operation("all_reduce", A, B, count=1, dtype="complex64")),
    "root beyond": collective((0, 1, 2), 1, operation("broadcast", A, B, root=3)),
    "root far beyond": collective((0, 1, 2), 1, operation("reduce", A, B, root=2**32 - 1)),
    "peer beyond": collective((0, 1, 2), 1, operation("send", A, peer=3)),
    "peer far beyond": collective((0, 1, 2), 1, operation("recv", 0, B, peer=2**32 - 1)),
    "source too short": collective((0, 1, 2), 1, operation("all_reduce", A, B, count=FLOATS + 1)),
    "destination too short": collective((0, 1, 2), 1, operation("all_gather", A, B, count=FLOATS // 3 + 1)),
    "source of n too short": collective((0, 1, 2), 1, operation("reduce_scatter", A, B, count=FLOATS // 3 + 1)),
    "count overflows": collective((0, 1, 2), 1, operation("all_reduce", A, B, count=2**62)),
    "count times n overflows": collective((0, 1, 2), 1, operation("all_gather", A, B, count=2**63)),
    "largest count": collective((0, 1, 2), 1, operation("all_to_all", A, B, count=2**64 - 1)),
    "offset overflows": collective((0, 1, 2), 1, operation("all_reduce", A, B, count=1, source_offset=2**64 - 4)),
    "offset beyond": collective((0, 1, 2), 1, operation("all_reduce", A, B, count=1, destination_offset=4 * FLOATS)),
    "overlap": collective((0, 1, 2), 1, operation("all_reduce", A, A, count=8, destination_offset=4)),
    "overlap of a gather": collective((0, 1, 2), 1, operation("all_gather", A, A, count=4, source_offset=20)),
    "overlap of an all_to_all": collective((0, 1, 2), 1, operation("all_to_all", A, A, count=4)),
    "no source": collective((0, 1, 2), 1, operation("all_reduce", 0, B)),
    "no destination": collective((0, 1, 2), 1, operation("all_reduce", A, 0)),
    "no members": collective((), 1, operation("all_reduce", A, B)),
    "not this device": collective((1, 2), 1, operation("all_reduce", A, B)),
    "a device twice": collective((0, 0, 1), 1, operation("all_reduce", A, B)),
    "no such device": collective((0, 77), 1, operation("all_reduce", A, B)),
    "no such group": c.Command(
        collective=c.Collective(group=bytes(16), sequence=1, operations=[operation("all_reduce", A, B)])
    ),
    "a name that is none": c.Command(
        collective=c.Collective(group=b"x" * 5000, sequence=1, operations=[operation("all_reduce", A, B)])
    ),
    "both ways to name a group": c.Command(
        collective=c.Collective(
            devices=(0, 1, 2), group=bytes(16), sequence=1, operations=[operation("all_reduce", A, B)]
        )
    ),
}  # fmt: skip


def test_invalid_operations_are_refused_immediately(ranks: Ranks) -> None:
    """The other ranks receive the error only when they present their part; this also holds for the second operation of
    a batch."""
    assert ranks.next() == 1  # all of the commands have this number
    told = set()
    for name, command in WRONG.items():
        began = time.monotonic()
        refusal = refusal_of(ranks.streams[0], command)
        assert refusal.reason in (
            Reason.INVALID_ARGUMENT, Reason.UNSUPPORTED, Reason.OUT_OF_BOUNDS, Reason.DEVICE_NOT_FOUND,
            Reason.INVALID_HANDLE,
        ), (name, refusal)  # fmt: skip
        assert refusal.message and refusal.fix and time.monotonic() - began < LATE, (name, refusal)
        told.add(refusal.reason)
        parts = command.collective.operations
        if command.collective.devices and not command.collective.group:
            second = collective(command.collective.devices, 1, operation("barrier"), *parts)
            assert refusal_of(ranks.streams[0], second).reason == refusal.reason, name
    assert told >= {Reason.INVALID_ARGUMENT, Reason.UNSUPPORTED, Reason.OUT_OF_BOUNDS, Reason.INVALID_HANDLE}
    for stream in ranks.streams:
        assert stream.failures() == []
    assert ranks.data(0, A) == [1.0] * FLOATS and ranks.data(0, B) == [-1.0] * FLOATS
    ranks.work()


def test_operation_refused_on_one_rank_fails_on_ranks_that_present_later(ranks: Ranks) -> None:
    number = ranks.next()
    ranks.streams[0].batch(collective((0, 1, 2), number, operation("all_reduce", A, B, count=FLOATS + 1)))
    assert ranks.failure(0).reason == Reason.OUT_OF_BOUNDS
    began = time.monotonic()
    for stream in ranks.streams[1:]:
        stream.batch(collective((0, 1, 2), number, operation("all_reduce", A, B), timeout=60))
    for rank in (1, 2):
        refusal = ranks.failure(rank)
        assert refusal.reason == Reason.COMMUNICATOR_FAILED and refusal.details["failed"] == "0"
        assert refusal.details["cause"] == "OUT_OF_BOUNDS"
    assert time.monotonic() - began < LATE
    ranks.work()
