"""`hearth.Group` over several daemons, through the client: results, refusals, and the state after the loss of a
node."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import hearth
from hearth.collectives.rendezvous import describe
from tests.support.client.internals import session_of
from tests.support.collectives.group_nodes import LentNodes
from tests.support.daemon.harness import DaemonProcess, on_cpu, wait_until
from tests.support.timing import LATE


@pytest.fixture
def daemons(lent_nodes: LentNodes) -> list[DaemonProcess]:
    return lent_nodes.lend(3)


@pytest.fixture
def connected(daemons: list[DaemonProcess]) -> Iterator[list[hearth.Node]]:
    with ExitStack() as stack:
        yield [stack.enter_context(daemon.connect()) for daemon in daemons]


@pytest.fixture
def group(connected: list[hearth.Node]) -> Iterator[hearth.Group]:
    with hearth.Group([node.device(0) for node in connected]) as group:
        yield group


def works(group: hearth.Group) -> None:
    """Checks that an all_reduce of the group gives the correct result."""
    arrays = [device.full(100, rank + 1, np.int32) for rank, device in enumerate(group.devices)]
    group.all_reduce(arrays)
    expected = len(group) * (len(group) + 1) // 2
    assert all((array.get() == expected).all() for array in arrays)


def test_group_over_daemons_behaves_like_group_of_one_node(group: hearth.Group) -> None:
    n = len(group)
    hosts = [np.arange(12, dtype=np.float32).reshape(6, 2) + 100 * rank for rank in range(n)]
    arrays = [device.asarray(host) for device, host in zip(group.devices, hosts, strict=True)]
    total = np.sum(hosts, axis=0)
    for gathered in group.all_gather(arrays):
        np.testing.assert_array_equal(gathered.get(), np.stack(hosts))
    for rank, out in enumerate(group.reduce_scatter(arrays)):
        np.testing.assert_array_equal(out.get(), np.split(total, n)[rank])
    for rank, out in enumerate(group.all_to_all(arrays)):
        np.testing.assert_array_equal(out.get(), np.concatenate([np.split(host, n)[rank] for host in hosts]))
    np.testing.assert_array_equal(group.reduce(arrays, root=2).get(), total)
    np.testing.assert_array_equal(group.gather(arrays, root=1).get(), np.stack(hosts))
    for rank, out in enumerate(group.scatter(arrays[1], root=1)):
        np.testing.assert_array_equal(out.get(), np.split(hosts[1], n)[rank])
    for out in group.broadcast(arrays[2], root=2):
        np.testing.assert_array_equal(out.get(), hosts[2])
    group.barrier(timeout=20)
    works(group)


def test_sends_and_rings(group: hearth.Group) -> None:
    n = len(group)
    arrays = [device.full(50, rank, np.int32) for rank, device in enumerate(group.devices)]
    outs = [device.empty(50, np.int32) for device in group.devices]
    with group.batch():
        for rank in range(n):
            group.send(arrays[rank], to=(rank + 1) % n)
            group.recv(outs[rank], source=(rank - 1) % n)
    assert [int(out.get()[0]) for out in outs] == [2, 0, 1]
    sender = threading.Thread(target=lambda: group.send(arrays[1], to=2))
    sender.start()
    group.recv(outs[2], source=1)
    sender.join()
    group.send(outs[2], to=1)
    group.recv(outs[1], source=2)
    assert (outs[2].get() == 1).all() and (outs[1].get() == 1).all()
    works(group)


def test_several_groups_of_the_same_nodes(group: hearth.Group, connected: list[hearth.Node]) -> None:
    with group.subgroup([2, 0]) as small, hearth.Group(group.devices[::-1]) as turned:
        for _ in range(3):
            works(small)
            works(turned)
            works(group)
    works(group)
    assert group.subgroup([1]).id == ""


def test_two_sessions_of_one_daemon_with_two_devices(lossy: DaemonProcess) -> None:
    with lossy.connect() as one, lossy.connect() as other:
        if len(one.devices) < 2:
            pytest.skip("needs two devices")
        with hearth.Group([one.device(0), other.device(1)]) as group:
            works(group)
            x, y = one.device(0).full(7, 3, np.int32), other.device(1).empty(7, np.int32)
            group.send(x, to=1)
            group.recv(y, source=0)
            assert (y.get() == 3).all()


def test_flight_recorder_after_mismatch_and_missing_rank(group: hearth.Group) -> None:
    works(group)
    target = group.devices[1].zeros(3, np.int32)
    group.recv(target, source=0)
    group.send(group.devices[0].ones(4, np.int32), to=1)
    for device in group.devices[:2]:
        with pytest.raises(hearth.CommunicatorError) as caught:
            device.synchronize()
        assert caught.value.reason == "COLLECTIVE_MISMATCH" and caught.value.recorder
    entries = group.flight_recorder()
    assert [entry.ranks for entry in entries][-2:] == [(0, 1, 2), (0, 1)]
    assert entries[-1].state == "failed" and entries[-1].error
    began = time.monotonic()
    group.send(group.devices[0].ones(4, np.int32), to=1, timeout=0.3)
    with pytest.raises(hearth.CommunicatorError) as late:
        group.devices[0].synchronize(timeout=20)
    assert time.monotonic() - began < 0.3 + LATE
    assert late.value.reason == "COLLECTIVE_TIMEOUT"
    works(group)


def test_a_dropped_group_is_left_on_all_daemons(connected: list[hearth.Node]) -> None:
    def known() -> list[int]:
        return [sum(bool(info.group) for info in describe(session_of(node))) for node in connected]

    before = known()
    group = hearth.Group([node.device(0) for node in connected])
    works(group)
    assert known()[0] == before[0] + 1
    del group
    gc.collect()
    wait_until(lambda: known() == before)


def test_group_creation_with_closed_session_fails_and_others_stay_usable(
    connected: list[hearth.Node], daemons: list[DaemonProcess]
) -> None:
    lost = daemons[0].connect()
    device = lost.device(0)
    lost.close()
    with pytest.raises(hearth.ClosedError):
        hearth.Group([connected[1].device(0), device, connected[2].device(0)])
    with hearth.Group([node.device(0) for node in connected]) as group:
        works(group)


@pytest.mark.parametrize("victim", [0, 1], ids=["the coordinator", "one that joined"])
def test_a_daemon_that_is_killed(daemons: list[DaemonProcess], victim: int) -> None:
    with ExitStack() as stack:
        connected = [daemon.connect() for daemon in daemons]
        for node in connected:
            stack.callback(node.close)
        group = hearth.Group([node.device(0) for node in connected])
        works(group)
        survivors = [rank for rank in range(3) if rank != victim]
        kept = group.devices[survivors[0]].full(9, 4, np.int32)
        arrays = [device.ones(1000, np.float32) for device in group.devices]
        target = group.devices[survivors[0]].zeros(1000, np.float32)
        for rank in survivors:
            group.devices[rank].synchronize()
        daemons[victim].process.send_signal(signal.SIGKILL)
        daemons[victim].process.wait()
        began = time.monotonic()
        with contextlib.suppress(hearth.HearthError):
            group.all_reduce(arrays, timeout=2)
        for rank in survivors:
            with contextlib.suppress(hearth.CommunicatorError):
                group.devices[rank].synchronize(timeout=20)
        assert time.monotonic() - began < 2 + LATE
        began = time.monotonic()
        smaller = group.rebuild(without=connected[victim])
        works(smaller)
        assert time.monotonic() - began < LATE
        assert [device.node for device in smaller.devices] == [connected[rank] for rank in survivors]
        assert (kept.get() == 4).all() and not target.get().any()
        with pytest.raises(hearth.HearthError):
            hearth.Group([node.device(0) for node in connected], timeout=5)
        works(smaller)


@on_cpu
def test_a_device_process_that_is_killed(lent_nodes: LentNodes) -> None:
    with ExitStack() as stack:
        daemons = lent_nodes.lend(2)
        connected = [stack.enter_context(daemon.connect()) for daemon in daemons]
        group = hearth.Group([node.device(0) for node in connected])
        works(group)
        os.kill(daemons[1].device_pid(0), signal.SIGKILL)
        with contextlib.suppress(hearth.HearthError):
            group.all_reduce([device.ones(10) for device in group.devices], timeout=2)
        for device in group.devices:
            with contextlib.suppress(hearth.CommunicatorError, hearth.DeviceLostError):
                device.synchronize(timeout=20)
        wait_until(lambda: connected[1].device(0).state == "serving")

        def again() -> bool:
            nonlocal group
            try:
                group = group.rebuild()
                works(group)
            except (hearth.CommunicatorError, hearth.DeviceLostError, hearth.BufferLostError):
                return False
            return True

        wait_until(again)
        group.close()
