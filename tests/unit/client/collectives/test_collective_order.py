"""Ranks of devices as the daemon numbers them, and the order in which threads submit operations."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.collectives.commands import PairNumbers, present
from hearth.collectives.part import RankPart, by_rank
from hearth.session.collective_order import CollectiveSequence, RankOrder, in_order, sorted_order
from hearth_proto.collectives import operation_name, pair_number, short_number
from hearth_proto.v1 import commands_pb2 as c
from tests.support.client.interrupts import interrupting

ordinals = st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True)


@given(ordinals, st.data())
def test_ranks_are_the_same_devices_under_both_names(devices: list[int], data: st.DataObject) -> None:
    given_order, by_number = in_order(devices), sorted_order(devices)
    assert given_order.name == tuple(devices) and by_number.name == tuple(sorted(devices))
    for rank, device in enumerate(devices):
        assert given_order.rank(rank) == rank
        assert by_number.name[by_number.rank(rank)] == device
    pair = data.draw(st.lists(st.integers(0, len(devices) - 1), min_size=1, max_size=2, unique=True))
    two = sorted_order(devices, pair)
    assert two.name == tuple(sorted(devices[rank] for rank in pair))
    assert [two.name[two.rank(rank)] for rank in pair] == [devices[rank] for rank in pair]


@given(ordinals, st.randoms(use_true_random=False))
def test_permutations_share_the_sorted_name(devices: list[int], random: Any) -> None:
    other = devices[:]
    random.shuffle(other)
    assert sorted_order(devices).name == sorted_order(other).name


@given(ordinals, st.data())
def test_roots_and_peers_are_translated(devices: list[int], data: st.DataObject) -> None:
    order = sorted_order(devices)
    root = data.draw(st.integers(0, len(devices) - 1))
    message = c.CollectiveOperation()
    RankPart(0, c.COLLECTIVE_KIND_BROADCAST, root=root).write(message, order)
    assert order.name[message.root] == devices[root] and message.peer == 0
    message = c.CollectiveOperation()
    RankPart(0, c.COLLECTIVE_KIND_SEND, peer=root).write(message, order)
    assert order.name[message.peer] == devices[root] and message.root == 0
    message = c.CollectiveOperation()
    RankPart(0, c.COLLECTIVE_KIND_ALL_REDUCE).write(message, order)
    assert message.root == message.peer == 0


class Device:
    """Stand-in for the connection that `present` needs; keeps the submitted commands."""

    def __init__(self) -> None:
        self.sequence = CollectiveSequence()
        self.submitted: list[tuple[Any, int]] = []

    def attachment(self) -> Device:
        return self

    def submit(self, command: c.Command, worth: int = 1) -> None:
        part = command.collective
        self.submitted.append((part.group or tuple(part.devices), part.sequence))


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), max_size=30))
def test_each_device_counts_its_own_operations_of_each_name(program: list[list[int]]) -> None:
    devices: Any = {rank: Device() for rank in range(4)}
    expected: dict[int, dict[Any, int]] = {rank: {} for rank in devices}
    for ranks in program:
        order = RankOrder(tuple(ranks), tuple(ranks))
        present(devices, order, by_rank([], ranks), 0, dict.fromkeys(ranks))
        for rank in ranks:
            expected[rank][order.name] = expected[rank].get(order.name, 0) + 1
            assert devices[rank].submitted[-1] == (order.name, expected[rank][order.name])


def submit_one(devices: Any, numbers: PairNumbers, rank: int, kind: c.CollectiveKind) -> int:
    """Submits a send or receive of one of two ranks, and returns its number."""
    part = RankPart(rank, kind, peer=1 - rank)
    present(devices, sorted_order([0, 1]), {rank: [part]}, 0, {rank: None}, None, numbers)
    name, number = devices[rank].submitted[-1]
    assert name == (0, 1)
    return int(number)


SEND, RECV = c.COLLECTIVE_KIND_SEND, c.COLLECTIVE_KIND_RECV


@given(st.lists(st.sampled_from([(0, SEND), (0, RECV), (1, SEND), (1, RECV), None]), max_size=40))
def test_sends_match_receives_in_the_order_of_their_direction(program: list[Any]) -> None:
    """The ranks may call them in any order, with common operations (None) and those of another group in between."""
    devices: Any = {rank: Device() for rank in range(2)}
    group, other = PairNumbers(), PairNumbers()
    numbers: dict[Any, list[int]] = {(rank, kind): [] for rank in (0, 1) for kind in (SEND, RECV)}
    for step in program:
        if step is None:
            submit_one(devices, other, 0, SEND)
            present(devices, sorted_order([0, 1]), by_rank([], [0, 1]), 0, {0: None, 1: None})
            assert devices[0].submitted[-1] == devices[1].submitted[-1]
        else:
            numbers[step].append(submit_one(devices, group, *step))
    for rank in (0, 1):
        sent, received = numbers[rank, SEND], numbers[1 - rank, RECV]
        assert all(one == two for one, two in zip(sent, received, strict=False))
        assert [short_number(number) for number in sent] == list(range(1, len(sent) + 1))
    for device in devices.values():
        submitted = [number for _, number in device.submitted]
        assert len(submitted) == len(set(submitted)) and max(submitted, default=0) < 1 << 63


def test_failed_send_uses_no_number() -> None:
    devices: Any = {rank: Device() for rank in range(2)}
    group = PairNumbers()

    def fail(_command: c.Command, _worth: int) -> None:
        raise OSError("gone")

    kept, devices[0].submit = devices[0].submit, fail
    with pytest.raises(OSError, match="gone"):
        submit_one(devices, group, 0, SEND)
    devices[0].submit = kept
    assert submit_one(devices, group, 0, SEND) == submit_one(devices, group, 1, RECV)


def test_numbers_of_sends_are_shown_by_their_count() -> None:
    assert operation_name(pair_number(5, True, 3)) == "send and receive 3" and operation_name(3) == "operation 3"
    assert short_number(2**64 - 1) == 2**64 - 1  # another client's number
    assert pair_number((1 << 21) + 1, False, 1) == pair_number(1, False, 1) < pair_number(1, True, 1)


def test_common_number_follows_the_largest_count() -> None:
    """An interrupted call may leave one device ahead of the other."""
    devices: Any = {rank: Device() for rank in range(2)}
    order = sorted_order([0, 1])
    devices[0].sequence.record(order.name, 1)
    present(devices, order, by_rank([], [0, 1]), 0, {0: None, 1: None})
    assert devices[0].submitted == devices[1].submitted == [((0, 1), 2)]


def test_failed_submission_still_counts_in_the_order() -> None:
    devices: Any = {rank: Device() for rank in range(2)}

    def fail(_command: c.Command, _worth: int) -> None:
        raise OSError("gone")

    kept, devices[1].submit = devices[1].submit, fail
    order = in_order([0, 1])
    try:
        present(devices, order, by_rank([], [0, 1]), 0, {0: None, 1: None})
    except OSError:
        devices[1].submit = kept
    present(devices, order, by_rank([], [0, 1]), 0, {0: None, 1: None})
    assert devices[0].submitted[-1] == devices[1].submitted[-1] == ((0, 1), 2)


def test_threads_present_in_one_order_on_all_devices() -> None:
    devices: Any = {rank: Device() for rank in range(4)}
    groups = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3], [2, 0, 3], [0, 1], [2, 1]]
    start = threading.Barrier(len(groups))

    def work(ranks: list[int]) -> None:
        order = RankOrder(tuple(ranks), tuple(ranks))
        start.wait()
        for _ in range(200):
            present(devices, order, by_rank([], ranks), 0, dict.fromkeys(ranks))

    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(work, groups))
    # If every device runs its operations in order, all operations complete.
    queues = {rank: list(device.submitted) for rank, device in devices.items()}
    while any(queues.values()):
        heads = {rank: queue[0] for rank, queue in queues.items() if queue}
        ready = [name for name, number in heads.values() if all(heads.get(rank) == (name, number) for rank in name)]
        assert ready, f"circular wait: {heads}"
        for rank in ready[0]:
            queues[rank].pop(0)


def test_ctrl_c_while_an_operation_is_submitted_leaves_no_lock_held() -> None:
    devices = {rank: Device() for rank in range(3)}
    order, step, is_interrupted = RankOrder((0, 1, 2), (0, 1, 2)), 0, True
    while is_interrupted:
        step += 1
        is_interrupted = interrupting(
            lambda: present(devices, order, by_rank([], [0, 1, 2]), 0, dict.fromkeys(range(3))), step
        )
        assert not any(device.sequence.lock.locked() for device in devices.values())
    assert step > 20


def test_a_group_that_was_left_is_forgotten() -> None:
    sequence = CollectiveSequence()
    sequence.record(b"g", 2)
    sequence.record((0, 1), 1)
    sequence.forget(b"g")
    assert [sequence.count(b"g"), sequence.count((0, 1))] == [0, 1]
