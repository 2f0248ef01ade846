"""Failures of an exchange: mismatches, ranks that never join or die, and aborts."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cpu.collective import shared_segment
from hearthd.device.cpu.collective.shared_exchange import SharedExchange
from hearthd.device.cpu.toolchain import find_toolchain
from tests.support.cpu.ranks import Ranks, address, communicator

BARRIER = CollectiveExchange("barrier")
MANY = 2_000_000


@pytest.fixture(scope="module")
def processes() -> Iterator[Ranks]:
    with communicator(3) as made:
        yield made


@pytest.fixture
def three(processes: Ranks) -> Ranks:
    """Returns a new communicator for each test, which is possible even after a failure."""
    processes.clear()
    processes.join()
    return processes


def summing(ranks: Ranks, rank: int, **changes: Any) -> CollectiveExchange:
    both = address(ranks.array(rank, 4096))
    return replace(CollectiveExchange("reduce", both, both, 100, "int32", "sum"), **changes)


@pytest.mark.parametrize(
    ("change", "other_call"),
    [
        ({"count": 101}, "reduce of 101 int32 with sum at rank 0"),
        ({"dtype": "float32"}, "reduce of 100 float32 with sum at rank 0"),
        ({"op": "max"}, "reduce of 100 int32 with max at rank 0"),
        ({"root": 2}, "reduce of 100 int32 with sum at rank 2"),
        ({"kind": "all_reduce"}, "all_reduce of 100 int32 with sum"),
        ({"kind": "barrier", "count": 0, "dtype": "uint8"}, "barrier"),
        ({"count": 1_000_000, "kind": "broadcast", "root": 1}, "broadcast of 1000000 int32 at rank 1"),
    ],
)
def test_a_mismatch_is_an_error_on_every_rank(three: Ranks, change: dict[str, Any], other_call: str) -> None:
    if change.get("count", 0) > 1000:
        change = {**change, "source": address(three.array(1, 4_000_000))}
    lists = [[BARRIER, summing(three, 0)], [BARRIER, summing(three, 1, **change)], [BARRIER, summing(three, 2)]]
    outcomes = three.run(lists)
    assert {reason for reason, _ in outcomes} <= {Reason.COLLECTIVE_MISMATCH, Reason.COMMUNICATOR_FAILED}
    mismatches = [text for reason, text in outcomes if reason is Reason.COLLECTIVE_MISMATCH]
    assert mismatches
    for text in mismatches:
        assert "reduce of 100 int32 with sum at rank 0" in text and other_call in text and re.search("[Rr]ank 1", text)
    for rank in range(3):  # the communicator stays failed
        three.start(rank, [BARRIER])
        assert three.outcome(rank)[0] is Reason.COMMUNICATOR_FAILED


@pytest.mark.parametrize("change", [{"count": 801}, {"dtype": "int8", "count": 800}])
def test_mismatched_message_is_reported(three: Ranks, change: dict[str, Any]) -> None:
    send = CollectiveExchange("send", address(three.array(0, 800)), 0, 800, peer=1)
    receive = replace(CollectiveExchange("recv", 0, address(three.array(1, 801)), 800, peer=0), **change)
    three.start(2, [])
    assert three.outcome(2) == (None, "")
    outcomes = three.run([[send], [receive], [BARRIER]])
    assert outcomes[1][0] is Reason.COLLECTIVE_MISMATCH
    assert f"recv of {receive.count} {receive.dtype} from rank 0" in outcomes[1][1]
    assert "rank 0 for send of 800 uint8 to rank 1" in outcomes[1][1]
    assert outcomes[2][0] is Reason.COMMUNICATOR_FAILED


def test_missing_rank_is_named(three: Ranks) -> None:
    three.start(1, [BARRIER, summing(three, 1)])
    three.start(0, [summing(three, 0)], 0.3)
    reason, message = three.outcome(0)
    # Rank 1 has requested a different operation, but that is detected only when all ranks have joined.
    assert reason is Reason.COLLECTIVE_TIMEOUT and "reduce" in message and "rank 2 of 3" in message
    assert three.outcome(1)[0] is Reason.COMMUNICATOR_FAILED  # notified immediately, not after its own 60 s
    three.start(2, [BARRIER])
    assert three.outcome(2)[0] is Reason.COMMUNICATOR_FAILED


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_missing_peer_is_named(three: Ranks, kind: str) -> None:
    data = address(three.array(0, MANY))
    three.start(0, [CollectiveExchange(kind, data, data, MANY, peer=2)], 0.3)
    reason, message = three.outcome(0)
    assert reason is Reason.COLLECTIVE_TIMEOUT and f"{kind} waited 0.3 s for rank 2 of 3" in message


def never_sent(rank: int) -> CollectiveExchange:
    return CollectiveExchange("recv", 0, 1, 1, peer=(rank + 1) % 3)


def endless(three: Ranks, rank: int, kind: str) -> list[CollectiveExchange]:
    """Returns many operations, followed by a message that is never sent."""
    one, two = address(three.array(rank, MANY)), address(three.array(rank, 3 * MANY))
    if kind == "messages":
        peers = [peer for peer in range(3) if peer != rank]
        operations = [CollectiveExchange("send", one, 0, MANY, peer=peer) for peer in peers]
        operations += [CollectiveExchange("recv", 0, two + peer * MANY, MANY, peer=peer) for peer in peers]
    else:
        operations = [CollectiveExchange(kind, one, two, MANY // 12, "float32", "sum")]
    return [*operations * 100, never_sent(rank)]


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all", "messages"])
def test_an_abort_ends_every_rank_immediately(three: Ranks, kind: str) -> None:
    for rank in range(3):
        three.start(rank, endless(three, rank, kind))
    three.pipes[1].send(("abort",))
    for rank in range(3):
        assert three.outcome(rank) == (
            Reason.COMMUNICATOR_FAILED, f"The communicator of rank {rank} was aborted."
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "messages"])
def test_a_killed_rank_and_an_abort(kind: str) -> None:
    with communicator(3) as ranks:
        for rank in range(3):
            ranks.start(rank, endless(ranks, rank, kind))
        os.kill(ranks.processes[2].pid, signal.SIGKILL)
        ranks.processes[2].join()
        for rank in (0, 1):  # they wait for the killed rank until the abort
            assert not ranks.pipes[rank].poll(0.05)
        ranks.pipes[0].send(("abort",))
        assert {ranks.outcome(rank)[0] for rank in (0, 1)} == {Reason.COMMUNICATOR_FAILED}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(aborting_rank=st.integers(0, 2), coming=st.sets(st.integers(0, 2), max_size=2), big=st.booleans())
def test_an_abort_at_any_time(processes: Ranks, aborting_rank: int, coming: set[int], big: bool) -> None:
    """Checks that an abort ends ranks that wait, ranks that are busy, and ranks that join later."""
    processes.clear()
    processes.join()
    lists = [[*[summing(processes, rank, count=1000 if big else 1)] * 50, never_sent(rank)] for rank in range(3)]
    for rank in coming:
        processes.start(rank, lists[rank])
    processes.pipes[aborting_rank].send(("abort",))
    for rank in {0, 1, 2} - coming:
        processes.start(rank, lists[rank])
    reasons = {processes.outcome(rank)[0] for rank in range(3)}
    assert reasons == {Reason.COMMUNICATOR_FAILED}


@pytest.fixture
def alone() -> Iterator[SharedExchange]:
    """Provides rank 0 of two, in this process; the other rank never joins."""
    end = SharedExchange.attach(shared_segment.create(2, find_toolchain()), 0, 2, find_toolchain())
    yield end
    end.close()


@pytest.mark.parametrize("ending", ["abort", "close"])
@pytest.mark.parametrize("operation", [BARRIER, CollectiveExchange("recv", 0, 1, 5, peer=1)])
def test_abort_from_another_thread_ends_a_wait(
    alone: SharedExchange, ending: str, operation: CollectiveExchange
) -> None:
    outcomes: list[Refusal] = []

    def wait() -> None:
        with pytest.raises(Refusal) as caught:
            alone.run(alone.prepare([operation]), 60.0)
        outcomes.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    end: Callable[[], None] = getattr(alone, ending)
    end()
    waiting.join(20.0)
    assert [outcome.reason for outcome in outcomes] == [Reason.COMMUNICATOR_FAILED]
    end()  # a second call has no effect
    with pytest.raises(Refusal, match="closed" if ending == "close" else "aborted"):
        alone.run(alone.prepare([BARRIER]), 60.0)


@pytest.mark.parametrize(
    "operation",
    [
        CollectiveExchange("all_reduce", 0, 0, 1, "complex64", "sum"),
        CollectiveExchange("all_reduce", 0, 0, 1, "int8", ""),
        CollectiveExchange("reduce_scatter", 0, 0, 1, "int8", "xor"),
        CollectiveExchange("all_gather", 0, 0, 1 << 62),
        CollectiveExchange("all_gather", 0, 0, -1),
        CollectiveExchange("broadcast", 0, 0, 1, root=2),
        CollectiveExchange("send", 0, 0, 1, peer=2),
        CollectiveExchange("recv", 0, 0, 1, peer=-1),
        CollectiveExchange("gossip", 0, 0, 1),
    ],
)
def test_invalid_operation_is_refused(alone: SharedExchange, operation: CollectiveExchange) -> None:
    with pytest.raises(Refusal) as caught:
        alone.run(alone.prepare([operation]), 60.0)
    assert caught.value.reason is Reason.INVALID_ARGUMENT and operation.kind in caught.value.message
    with pytest.raises(Refusal) as caught:  # the refusal has changed nothing: a valid operation waits for rank 1
        alone.run(alone.prepare([BARRIER]), 0.0)
    assert caught.value.reason is Reason.COLLECTIVE_TIMEOUT
