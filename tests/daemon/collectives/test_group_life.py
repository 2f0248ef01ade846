"""Groups during their whole lifetime: subgroups, threads, failures, and rebuilt groups."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import hearth
from tests.support.collectives.ranks import several
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.timing import LATE


@pytest.fixture(scope="module")
def four(cache: Path) -> Iterator[DaemonProcess]:
    with several(cache, 4) as process:
        yield process


@pytest.fixture
def group(four: DaemonProcess) -> Iterator[hearth.Group]:
    """Yields a group of four devices, not in the order of their numbers."""
    with four.connect() as node:
        yield hearth.Group([node.device(ordinal) for ordinal in (3, 1, 0, 2)])


def works(group: hearth.Group) -> None:
    """Checks that an all_reduce of the group gives the correct result."""
    arrays = [device.full(100, rank + 1, np.int32) for rank, device in enumerate(group.devices)]
    group.all_reduce(arrays)
    expected = len(group) * (len(group) + 1) // 2
    assert all((array.get() == expected).all() for array in arrays)


# ---- subgroups, threads ----


def test_subgroups_and_whole_group_work_together(group: hearth.Group) -> None:
    for ranks in ([0, 1], [3, 2, 1], [2], [1, 0]):
        small = group.subgroup(ranks)
        arrays = [device.full(10, rank, np.int32) for rank, device in zip(ranks, small.devices, strict=True)]
        for out in small.all_gather(arrays):
            assert out.get()[:, 0].tolist() == ranks
        works(group)


def test_overlapping_groups_in_threads(group: hearth.Group) -> None:
    """No deadlock occurs, whichever groups the threads use, in any order."""
    groups = [group.subgroup(ranks) for ranks in ([0, 1], [1, 2], [2, 3], [3, 0], [2, 0, 1], [3, 2, 1, 0])]

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for index in random.permutation(len(groups) * 3):
            works(groups[index % len(groups)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_each_rank_in_a_separate_thread(group: hearth.Group) -> None:
    """Each rank sends to the next rank and receives from the previous one, as in programs with a process for each
    rank."""
    n, turns = len(group), 10
    seen: list[list[int]] = [[] for _ in range(n)]

    def rank(own: int) -> None:
        device = group.devices[own]
        mine, came = device.full(8, own, np.int32), device.empty(8, np.int32)
        with device.stream():
            for _ in range(turns):
                for sender in range(n):  # all ranks use this order, so that no two ranks wait for each other
                    if own == sender:
                        group.send(mine, to=(sender + 1) % n)
                    elif own == (sender + 1) % n:
                        group.recv(came, source=sender)
                mine.copy_from(came)
                seen[own].append(int(mine.get()[0]))

    with ThreadPoolExecutor(n) as pool:
        list(pool.map(rank, range(n)))
    for own in range(n):
        assert len(seen[own]) == turns and set(seen[own]) <= set(range(n))
    assert [each[-1] for each in seen] == _around(n, turns)


def _around(n: int, turns: int) -> list[int]:
    """Returns the values of the ranks after `turns` turns: in each turn, each rank passes on its previous value."""
    held = list(range(n))
    for _ in range(turns):
        held = [held[(own - 1) % n] for own in range(n)]
    return held


# ---- failures ----


def test_mismatched_sends_are_distinguished_from_unreceived_ones(group: hearth.Group) -> None:
    first, second = group.devices[:2]
    group.send(first.zeros(4, np.float32), to=1)
    target = second.zeros(3, np.float32)
    group.recv(target, source=0)
    for device in (first, second):
        with pytest.raises(hearth.CommunicatorError) as caught:
            device.synchronize()
        assert caught.value.reason == "COLLECTIVE_MISMATCH" and caught.value.details["field"] == "count"
        assert any("send 4 float32" in line or "recv 3 float32" in line for line in caught.value.recorder)
        assert "last operations" in str(caught.value)
    group.send(first.zeros(4, np.float32), to=1, timeout=0.3)
    with pytest.raises(hearth.CommunicatorError) as late:
        first.synchronize()
    assert late.value.reason == "COLLECTIVE_TIMEOUT" and late.value.missing == [second.ordinal]
    recorded = group.flight_recorder()
    pairs = [entry for entry in recorded if entry.ranks in ((0, 1), (1, 0))]
    assert [entry.state for entry in pairs[-2:]] == ["failed", "failed"]
    assert pairs[-1].presented == (0,) and pairs[-1].missing == (1,) and pairs[-1].error
    # Each side counts its own operations: the pending receive is matched with the send that failed.
    group.recv(target, source=0, timeout=5)
    with pytest.raises(hearth.CommunicatorError):
        second.synchronize()
    group.send(first.full(3, 5, np.float32), to=1)
    group.recv(target, source=0)
    assert (target.get() == 5).all()
    works(group)


def test_read_only_array_of_one_rank_stops_no_other_rank(group: hearth.Group, four: DaemonProcess) -> None:
    x = group.devices[1].ones(4, np.float32)
    x.publish("weights")
    with four.connect() as other:
        theirs = hearth.Group([other.device(device.ordinal) for device in group.devices])
        arrays = [device.ones(4, np.float32) for device in theirs.devices]
        arrays[1] = theirs.devices[1].attach("weights")
        with pytest.raises(hearth.ArgumentError) as caught:
            theirs.all_reduce(arrays)
        assert caught.value.reason == "READ_ONLY"
        outs = theirs.all_gather(arrays)  # it can be read like any other array
        assert (outs[0].get() == 1).all()
        works(theirs)
    group.devices[1].unpublish("weights")


def test_the_flight_recorder_has_the_last_operations(group: hearth.Group) -> None:
    works(group)
    arrays = [device.zeros(12, np.int8) for device in group.devices]
    group.all_to_all(arrays)
    group.send(arrays[3], to=0)
    group.recv(arrays[0], source=3)
    with group.batch():
        group.all_reduce(arrays)
        group.barrier()
    for device in group.devices:
        device.synchronize()
    wait_until(lambda: all(entry.state == "done" for entry in group.flight_recorder()))
    # Ranks that take no part in the send may reach the batch before the send is presented.
    found = sorted(group.flight_recorder()[-4:], key=lambda entry: (len(entry.ranks) == 2, entry.presented_ns))
    reduced, exchanged, batch, sent = found
    assert reduced.what.startswith("all_reduce") and exchanged.what.startswith("all_to_all")
    assert batch.what.startswith("all_reduce") and batch.what.endswith(", barrier")
    assert batch.ranks == batch.presented == (0, 1, 2, 3)
    assert sent.what.split()[0] in ("send", "recv") and sorted(sent.presented) == [0, 3]
    assert reduced.ranks == (2, 1, 3, 0)  # in the order of the devices' numbers
    for entry in found:
        assert 0 < entry.presented_ns <= entry.launched_ns <= entry.finished_ns
        assert abs(entry.presented_ns - time.time_ns()) < 60e9


# ---- rebuilt groups ----


def test_rebuilt_without_a_rank_that_is_lost(cache: Path) -> None:
    with several(cache, 3, harmed=True) as daemon, daemon.connect() as node:
        group = hearth.Group(node.devices)
        works(group)
        kept = node.device(0).full(5, 3, np.int32)
        node.device(0).synchronize()
        os.kill(daemon.device_pid(2), signal.SIGKILL)
        with contextlib.suppress(hearth.HearthError):
            group.all_reduce([device.ones(4) for device in node.devices], timeout=2)
        began = time.monotonic()
        for device in node.devices:
            with contextlib.suppress(hearth.CommunicatorError, hearth.DeviceLostError):
                device.synchronize(timeout=10)
        assert time.monotonic() - began < 2 + LATE
        smaller = group.rebuild(without=node.device(2))
        assert group.closed and len(smaller) == len(group) - 1
        works(smaller)
        assert (kept.get() == 3).all()
        wait_until(lambda: node.device(2).state == "serving")
        with contextlib.suppress(hearth.DeviceLostError):
            node.device(2).synchronize()
        whole = hearth.Group(node.devices)

        def again() -> bool:
            try:
                works(whole)
            except (hearth.CommunicatorError, hearth.DeviceLostError, hearth.BufferLostError):
                return False
            return True

        wait_until(again)


def test_close_of_group_does_not_abort_pending_operations(group: hearth.Group) -> None:
    arrays = [device.ones(1000, np.int32) for device in group.devices]
    group.all_reduce(arrays)
    group.close()
    assert all((array.get() == 4).all() for array in arrays)
    with pytest.raises(hearth.ClosedError):
        group.all_reduce(arrays)


def test_sends_from_one_thread_while_another_waits(group: hearth.Group) -> None:
    """A send whose receiver is late blocks only its stream."""
    first, second = group.devices[:2]
    with first.stream() as waiting:
        group.send(first.full(4, 9, np.int32), to=1, timeout=20)
    done: list[bool] = []

    def other() -> None:
        works(group)
        done.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(20)
    assert done == [True]
    target = second.empty(4, np.int32)
    group.recv(target, source=0)
    assert (target.get() == 9).all()
    waiting.synchronize()


def test_a_send_matches_its_receive_despite_work_in_between(group: hearth.Group) -> None:
    source, target = group.devices[:2]
    small = group.subgroup([0, 1])
    elsewhere = target.zeros(4, np.float32)

    def copied() -> None:
        elsewhere.copy_from(source.full(4, 9, np.float32))
        assert (elsewhere.get() == 9).all()

    with source.stream() as sending, target.stream() as receiving:
        pass
    for sends, between in ((small, lambda: works(small)), (group, copied), (group, lambda: works(group))):
        there, back = (device.zeros(4, np.float32) for device in (target, source))
        with sending:
            sends.send(source.full(4, 7, np.float32), to=1)
            sends.recv(back, source=1)
        between()
        with receiving:
            sends.recv(there, source=0)
            sends.send(there, to=0)
        assert (there.get() == 7).all() and (back.get() == 7).all()


def test_sends_of_two_groups_of_the_same_devices_are_separate(pair: list[hearth.Device]) -> None:
    groups = [hearth.Group(pair), hearth.Group(pair)]
    source, target = pair
    for value, group in enumerate(groups):
        with source.stream():
            group.send(source.full(4, value, np.float32), to=1)
    targets = [target.zeros(4, np.float32) for _ in groups]
    for value in (1, 0):
        with target.stream():
            groups[value].recv(targets[value], source=0)
    assert [array.get().tolist() for array in targets] == [[0] * 4, [1] * 4]


def test_both_ranks_may_send_first_on_separate_streams(pair: list[hearth.Device]) -> None:
    group = hearth.Group(pair)
    received = [device.zeros(4, np.float32) for device in pair]
    for rank in (0, 1):
        with pair[rank].stream():
            group.send(pair[rank].full(4, rank, np.float32), to=1 - rank)
    for rank in (0, 1):
        with pair[rank].stream():
            group.recv(received[rank], source=1 - rank)
    assert [array.get().tolist() for array in received] == [[1] * 4, [0] * 4]


def test_unreceived_send_does_not_block_for_ever(pair: list[hearth.Device]) -> None:
    group = hearth.Group(pair)
    xs = [gpu.full(4, rank + 1, np.float32) for rank, gpu in enumerate(pair)]
    group.send(xs[0], to=1, timeout=0.2)
    with pytest.raises(hearth.CommunicatorError, match="devices 1"):
        pair[0].synchronize()
    group.all_reduce(xs)
    again = hearth.Group(pair)  # sends of this group do not match receives of the first one
    again.send(xs[0], to=1)
    got = again.recv(pair[1].zeros(4, np.float32), source=0)
    assert [array.get().tolist() for array in (*xs, got)] == [[3.0] * 4] * 3
