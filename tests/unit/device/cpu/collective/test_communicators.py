"""The backend's communicators: operations on streams, failures that are visible after them, and the supported
operations."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hearth_proto.collectives import REDUCING
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cpu.collective.communicators import CpuCommunicator, CpuCommunicators
from hearthd.device.cpu.libraries import DTYPES, KINDS, OPS
from hearthd.device.cpu.toolchain import find_toolchain
from tests.support.cpu.ranks import address
from tests.support.cpu.stream_ranks import WAIT_S, Rank, pair_of

BARRIER = CollectiveExchange("barrier")


@pytest.fixture
def communicators() -> CpuCommunicators:
    return CpuCommunicators(find_toolchain())


@pytest.fixture
def pair(communicators: CpuCommunicators) -> Iterator[tuple[Rank, Rank]]:
    made = pair_of(communicators)
    yield made
    for rank in made:
        rank.close()


def test_operations_run_in_the_order_of_the_stream(pair: tuple[Rank, Rank]) -> None:
    """Checks that many calls can be enqueued before the other rank enqueues any, without blocking."""
    arrays = [np.full(70_000, rank + 1.0, np.float32) for rank in range(2)]
    both = [
        CollectiveExchange("all_reduce", address(each), address(each), each.size, "float32", "sum") for each in arrays
    ]
    first = [pair[0].enqueue(both[0]) for _ in range(10)]
    assert not any(event.done for event in first)
    second = [pair[1].enqueue(both[1]) for _ in range(10)]
    pair[0].reached(first[-1])
    pair[1].reached(second[-1])
    assert all(np.all(each == 3 * 2.0**9) for each in arrays)
    assert [rank.communicator.failure_reason() for rank in pair] == ["", ""]


def test_a_group_of_messages_and_a_collective(pair: tuple[Rank, Rank]) -> None:
    size = 1_000_003
    sources = [np.random.default_rng(rank).integers(0, 256, size, np.uint8) for rank in range(2)]
    results = [np.empty_like(each) for each in sources]
    events = [
        rank.enqueue(
            CollectiveExchange("send", address(sources[i]), 0, size, peer=1 - i),
            BARRIER,
            CollectiveExchange("recv", 0, address(results[i]), size, peer=1 - i),
        )
        for i, rank in enumerate(pair)
    ]
    for rank, event in zip(pair, events, strict=True):
        rank.reached(event)
    np.testing.assert_array_equal(results[0], sources[1])
    np.testing.assert_array_equal(results[1], sources[0])


def test_abort_lets_the_stream_continue(pair: tuple[Rank, Rank]) -> None:
    waits = pair[0].enqueue(BARRIER)
    behind = pair[0].enqueue(BARRIER)
    aborting = threading.Thread(target=pair[0].communicator.abort)
    aborting.start()
    pair[0].reached(waits)
    assert "was aborted" in pair[0].communicator.failure_reason()
    pair[0].reached(behind)
    aborting.join(WAIT_S)
    assert not aborting.is_alive()
    with pytest.raises(Refusal, match="aborted") as caught:
        pair[0].enqueue(BARRIER)
    assert caught.value.reason is Reason.COMMUNICATOR_FAILED


def test_abort_affects_only_its_rank(pair: tuple[Rank, Rank]) -> None:
    """Checks that the other rank keeps waiting, and gets the reason from its own abort instead of failing as a
    consequence."""
    events = [rank.enqueue(BARRIER, BARRIER) for rank in pair]
    for rank, event in zip(pair, events, strict=True):
        rank.reached(event)
    waits = [rank.enqueue(CollectiveExchange("recv", 0, 1, 5, peer=1 - i)) for i, rank in enumerate(pair)]
    pair[0].communicator.abort()
    pair[0].reached(waits[0])
    pair[1].progress.wait(0.3)
    assert not waits[1].done
    assert pair[1].communicator.failure_reason() == ""
    pair[1].communicator.abort()
    pair[1].reached(waits[1])
    assert pair[1].communicator.failure_reason()


def test_mismatch_is_reported_before_the_next_event_completes(pair: tuple[Rank, Rank]) -> None:
    x = np.zeros(8, np.int64)
    one = pair[0].enqueue(CollectiveExchange("broadcast", address(x), address(x), 8, root=0))
    two = pair[1].enqueue(CollectiveExchange("broadcast", 0, address(x), 16, root=0))
    pair[0].reached(one)
    pair[1].reached(two)
    reasons = [rank.communicator.failure_reason() for rank in pair]
    assert all(reasons) and any("broadcast of 16 uint8 at rank 0" in reason for reason in reasons)


def test_invalid_operations_are_refused_on_submission(pair: tuple[Rank, Rank]) -> None:
    with pytest.raises(Refusal) as caught:
        pair[0].enqueue(CollectiveExchange("broadcast", 0, 0, 1, root=2))
    assert caught.value.reason is Reason.INVALID_ARGUMENT
    assert pair[0].communicator.failure_reason() == ""  # it has had no effect
    events = [rank.enqueue(BARRIER) for rank in pair]
    for rank, event in zip(pair, events, strict=True):
        rank.reached(event)


def test_abort_of_an_idle_communicator(pair: tuple[Rank, Rank]) -> None:
    communicator: CpuCommunicator = pair[0].communicator
    communicator.abort()
    communicator.abort()
    assert communicator.failure_reason()


def test_supported_operations_are_accepted(communicators: CpuCommunicators) -> None:
    for kind in KINDS:
        for dtype in DTYPES:
            for op in OPS if kind in REDUCING else ("",):
                communicators.check(kind, dtype, op)
    communicators.check("all_gather", "complex64", "")  # operations that do not reduce accept every dtype
    communicators.check("barrier", "", "")


@pytest.mark.parametrize("kind", sorted(REDUCING))
@pytest.mark.parametrize("dtype", ["bool", "complex64", "complex128", "float8_e4m3", "int4", "object", ""])
def test_unsupported_dtypes_are_refused(communicators: CpuCommunicators, kind: str, dtype: str) -> None:
    with pytest.raises(Refusal) as caught:
        communicators.check(kind, dtype, "sum")
    assert caught.value.reason is Reason.UNSUPPORTED
    assert kind in caught.value.message and all(each in caught.value.message for each in DTYPES)


@pytest.mark.parametrize(("kind", "op", "allowed"), [("all_reduce", "", OPS), ("reduce", "xor", OPS), ("x", "", KINDS)])
def test_unsupported_operations_are_refused(
    communicators: CpuCommunicators, kind: str, op: str, allowed: tuple[str, ...]
) -> None:
    with pytest.raises(Refusal) as caught:
        communicators.check(kind, "float32", op)
    assert caught.value.reason is Reason.UNSUPPORTED and caught.value.details["allowed"] == ", ".join(allowed)
