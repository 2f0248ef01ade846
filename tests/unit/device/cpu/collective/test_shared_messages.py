"""Sends and receives between real processes, listed by the ranks in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearthd.device.backend.communicator import CollectiveExchange
from tests.support.cpu.ranks import Array, Ranks, address, communicator, reduced

RING = 256 * 1024
RANKS = 4


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with communicator(RANKS) as made:
        yield made


def message(seed: int, size: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def sent(ranks: Ranks, rank: int, peer: int, data: Array) -> CollectiveExchange:
    return CollectiveExchange("send", address(ranks.array(rank, data)), 0, data.size, peer=peer)


def received(ranks: Ranks, rank: int, peer: int, size: int) -> tuple[CollectiveExchange, Array]:
    into = ranks.array(rank, size)
    return CollectiveExchange("recv", 0, address(into), size, peer=peer), into


@pytest.mark.parametrize("size", [1, 63, 64 * 1024, RING - 17, RING - 16, RING - 15, RING, RING + 1, 3_000_001])
def test_a_ring_in_which_all_send_first(four: Ranks, size: int) -> None:
    four.clear()
    lists, results = [], []
    for rank in range(RANKS):
        receive, into = received(four, rank, (rank - 1) % RANKS, size)
        lists.append([sent(four, rank, (rank + 1) % RANKS, message(rank, size)), receive])
        results.append(into)
    four.succeed(lists)
    for rank in range(RANKS):
        np.testing.assert_array_equal(results[rank], message((rank - 1) % RANKS, size))


@pytest.mark.parametrize("size", [700, 700_001])
def test_all_pairs_each_with_itself_too(four: Ranks, size: int) -> None:
    """Compares the messages with an all_to_all. Odd ranks list their messages in reverse order."""
    four.clear()
    lists, results = [], []
    for rank in range(RANKS):
        operations = [sent(four, rank, peer, message(rank * RANKS + peer, size)) for peer in range(RANKS)]
        for peer in range(RANKS):
            receive, into = received(four, rank, peer, size)
            operations.append(receive)
            results.append((peer * RANKS + rank, into))
        lists.append(operations[::-1] if rank % 2 else operations)
    four.succeed(lists)
    for seed, into in results:
        np.testing.assert_array_equal(into, message(seed, size))


def test_only_the_two_ranks_take_part(four: Ranks) -> None:
    """Checks that the two other ranks are not involved, and that a collective of all ranks works afterwards."""
    four.clear()
    receive, into = received(four, 3, 1, 500_000)
    four.start(1, [sent(four, 1, 3, message(1, 500_000))])
    four.start(3, [receive])
    assert four.outcome(1) == four.outcome(3) == (None, "")
    np.testing.assert_array_equal(into, message(1, 500_000))
    four.succeed([[CollectiveExchange("barrier")]] * RANKS)


def test_a_small_message_waits_for_its_receiver(four: Ranks) -> None:
    """Checks that the sender continues: its bytes are in the mailbox, in order, even if a message wraps around the end
    of the ring."""
    four.clear()
    sizes = [100, 0, 200_000, 5, 70_001, 262_000]
    for round_ in range(3):
        for i, size in enumerate(sizes[: 2 if round_ else 4]):
            four.start(0, [sent(four, 0, 2, message(i, size))])
            assert four.outcome(0) == (None, "")
        for i, size in enumerate(sizes[: 2 if round_ else 4]):
            receive, into = received(four, 2, 0, size)
            four.start(2, [receive])
            assert four.outcome(2) == (None, "")
            np.testing.assert_array_equal(into, message(i, size))


def test_messages_move_while_a_rank_waits_in_a_collective(four: Ranks) -> None:
    """Makes rank 1 join the collective only after it has received everything that rank 0 sends in the same call."""
    four.clear()
    size = 5 * RING
    sums = [four.array(rank, np.full(10, rank, np.int32)) for rank in range(RANKS)]
    total = [CollectiveExchange("all_reduce", address(array), address(array), 10, "int32", "sum") for array in sums]
    receive, into = received(four, 1, 0, size)
    four.start(0, [total[0], sent(four, 0, 1, message(0, size))])
    four.start(2, [total[2]])
    four.start(3, [total[3]])
    four.start(1, [receive])
    assert four.outcome(1) == (None, "")
    four.start(1, [total[1]])
    assert [four.outcome(rank) for rank in range(RANKS)] == [(None, "")] * RANKS
    np.testing.assert_array_equal(into, message(0, size))
    assert all(np.all(array == 6) for array in sums)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    messages=st.lists(
        st.tuples(
            st.integers(0, RANKS - 1),
            st.integers(0, RANKS - 1),
            st.sampled_from([1, 2, 100, 65_536, 131_000, RING - 16, RING, 300_001, 600_000]),
        ),
        max_size=24,
    ),
    collectives=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_any_batch(four: Ranks, messages: list[tuple[int, int, int]], collectives: int, seed: int) -> None:
    """Makes each rank list its part in a different order; between the same two ranks, the k-th send matches the k-th
    receive."""
    four.clear()
    shuffle = random.Random(seed).shuffle
    lists: list[list[CollectiveExchange]] = []
    results: list[tuple[Array, Array]] = []
    floats = [np.random.default_rng(rank).uniform(-1, 1, 50_000).astype(np.float32) for rank in range(RANKS)]
    for rank in range(RANKS):
        parts = [("send", to) for source, to, _ in messages if source == rank]
        parts += [("recv", source) for source, to, _ in messages if to == rank]
        parts += [("all_reduce", 0)] * collectives
        shuffle(parts)
        counts: dict[tuple[str, int], int] = {}
        operations = []
        for direction, peer in parts:
            k = counts[direction, peer] = counts.get((direction, peer), -1) + 1
            if direction == "all_reduce":
                both = four.array(rank, floats[rank])
                operations.append(
                    CollectiveExchange("all_reduce", address(both), address(both), 50_000, "float32", "sum")
                )
                results.append((both, reduced(floats, "sum")))
                continue
            pair = (rank, peer) if direction == "send" else (peer, rank)
            i = [j for j, entry in enumerate(messages) if entry[:2] == pair][k]
            if direction == "send":
                operations.append(sent(four, rank, peer, message(i, messages[i][2])))
            else:
                receive, into = received(four, rank, peer, messages[i][2])
                operations.append(receive)
                results.append((into, message(i, messages[i][2])))
        lists.append(operations)
    four.succeed(lists)
    for result, expected_result in results:
        np.testing.assert_array_equal(result, expected_result)
