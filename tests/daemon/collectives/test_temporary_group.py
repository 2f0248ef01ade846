"""Groups over several sessions that are dropped or closed while their operations are in progress."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import hearth
import hearth.aio
from hearth.collectives.rendezvous import describe
from tests.support.client.internals import session_of
from tests.support.collectives.group_nodes import LentNodes
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import gated


@pytest.fixture
def daemons(lent_nodes: LentNodes) -> list[DaemonProcess]:
    return lent_nodes.lend(2)


@pytest.fixture
def connected(daemons: list[DaemonProcess]) -> Iterator[list[hearth.Node]]:
    with ExitStack() as stack:
        yield [stack.enter_context(daemon.connect()) for daemon in daemons]


def known(connected: list[hearth.Node]) -> int:
    return sum(bool(info.group) for node in connected for info in describe(session_of(node)))


@pytest.mark.parametrize("how", ["dropped", "closed"])
def test_operation_of_a_temporary_group_is_completed(connected: list[hearth.Node], how: str) -> None:
    """The first device reaches the operation only after the group was garbage-collected."""
    devices = [node.device(0) for node in connected]
    arrays = [device.full(1000, rank + 1, np.int32) for rank, device in enumerate(devices)]
    with gated(devices[0]) as gate:
        gate.hold()
        group = hearth.Group(devices)
        group.all_reduce(arrays)
        if how == "closed":
            group.close()
        del group
        gc.collect()
        assert known(connected) == 2, "the daemon keeps the group until its operation is done"
        gate.open()
        assert [array.get().tolist() for array in arrays] == [[3] * 1000] * 2
    wait_until(lambda: known(connected) == 0)


def test_operations_on_several_streams_are_completed(connected: list[hearth.Node]) -> None:
    """The last operation is done before an earlier one on other streams has begun."""
    devices = [node.device(0) for node in connected]
    held, later = ([device.full(100, rank + 1, np.int32) for rank, device in enumerate(devices)] for _ in range(2))
    received = devices[1].zeros(100, np.int32)
    with hearth.Group(devices) as other, hearth.Group(devices) as group:
        with devices[0].stream(), devices[1].stream():
            other.recv(received, source=0)
            received.fill(5)  # waits in the process until the receive has been launched, and so do later commands
            group.all_reduce(held)
        group.all_reduce(later)
        assert [array.get().tolist() for array in later] == [[3] * 100] * 2
        group.close()
        assert known(connected) == 4
        other.send(devices[0].ones(100, np.int32), to=1)
        assert [array.get().tolist() for array in held] == [[3] * 100] * 2
    wait_until(lambda: known(connected) == 0)


def test_operation_of_streams_that_are_captured_meanwhile_is_completed(connected: list[hearth.Node]) -> None:
    devices = [node.device(0) for node in connected]
    arrays = [device.full(100, rank + 1, np.int32) for rank, device in enumerate(devices)]
    target = devices[0].zeros(4, np.int32)
    with gated(devices[0]) as gate, hearth.Group(devices) as group:
        streams = [device.stream() for device in devices]
        with streams[0], streams[1]:
            gate.hold()
            group.all_reduce(arrays)
            for stream in streams:
                stream.begin_capture()
            target.fill(3)
            group.close()
            graphs = [stream.end_capture() for stream in streams]
        assert known(connected) == 2
        gate.open()
        assert [array.get().tolist() for array in arrays] == [[3] * 100] * 2
        assert [node.kind for node in graphs[0].nodes] == ["fill"]
    wait_until(lambda: known(connected) == 0)


def test_operation_of_a_temporary_group_of_the_asyncio_client(daemons: list[DaemonProcess]) -> None:
    async def run() -> None:
        async with await hearth.aio.connect(daemons[0].unix) as a, await hearth.aio.connect(daemons[1].unix) as b:
            devices = [a.device(0), b.device(0)]
            arrays = [device.full(1000, rank + 1, np.int32) for rank, device in enumerate(devices)]
            with daemons[0].connect() as node, gated(node.device(0)) as gate:
                gate.hold(node.device(0).zeros(1, np.int32))
                async with hearth.aio.Group(devices) as group:
                    group.all_reduce(arrays)
                gate.open()
            assert [(await array.get()).tolist() for array in arrays] == [[3] * 1000] * 2

    asyncio.run(run())


def test_sends_and_batches_of_a_temporary_group_are_completed(connected: list[hearth.Node]) -> None:
    devices = [node.device(0) for node in connected]
    source, copies = devices[0].full(100, 7, np.int32), [devices[1].zeros(100, np.int32) for _ in range(2)]
    with gated(devices[0]) as gate, hearth.Group(devices) as group:
        with devices[0].stream() as stream:
            gate.hold(stream=stream)
            group.send(source, to=1)
            group.recv(copies[0], source=0)
            with group.batch():
                group.send(source, to=1)
                group.recv(copies[1], source=0)
        group.close()
        assert known(connected) == 2
        gate.open()
        assert [copy.get().tolist() for copy in copies] == [[7] * 100] * 2
    wait_until(lambda: known(connected) == 0)


def test_close_after_a_failed_operation_leaves_the_group(connected: list[hearth.Node]) -> None:
    devices = [node.device(0) for node in connected]
    group = hearth.Group(devices)
    group.send(devices[0].zeros(4, np.float32), to=1, timeout=0.1)
    with pytest.raises(hearth.HearthError) as caught:
        devices[0].synchronize()
    assert caught.value.reason == "COLLECTIVE_TIMEOUT"
    group.close()
    wait_until(lambda: known(connected) == 0)
    for device in devices:
        device.synchronize()
