"""Copies between devices by peer access and through host memory, without NCCL: two processes, on one GPU or on two."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hearth_proto.rights import Right
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.shared.device_spec import DeviceSpec
from tests.support.daemon.harness import DaemonProcess, on_gpu
from tests.support.daemon.tenants import tenant, tenants
from tests.support.gpu.server_calls import finish, get

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer
    from hearthd.device.cuda.sharing.copy_communicators import CopyCommunicator
    from hearthd.device.cuda.streams import Stream

pytestmark = pytest.mark.gpu

SIZES = (1, 3, (1 << 20) + 5, (16 << 20), (40 << 20) + 7)
"""Sizes of copies in bytes: less than a piece, one piece, several."""

WAIT_S = 120.0


class Rank:
    """One of two ranks, in its process."""

    def __init__(self, rank: int, index: int, pipe: Connection, through_host: bool) -> None:
        from hearthd.device.cuda.server import CudaServer
        from hearthd.device.cuda.sharing import virtual_memory

        if through_host:
            virtual_memory.missing_attribute = lambda index: "PEER_ACCESS"
        self.rank, self.pipe = rank, pipe
        self.server: CudaServer = CudaServer(DeviceSpec(ordinal=rank, backend="cuda", index=index))
        if rank == 0:
            pipe.send(self.server.copy_communicators.unique_id(2))
        self.communicator: CopyCommunicator = self.server.copy_communicators.join(pipe.recv(), rank, 2)
        self.stream: Stream = self.server.create_stream()

    def send(self, source: int, size: int) -> None:
        exchange = CollectiveExchange("send", source, 0, size, peer=1 - self.rank)
        self.communicator.enqueue([exchange], self.stream)

    def receive(self, destination: int, size: int) -> None:
        exchange = CollectiveExchange("recv", 0, destination, size, peer=1 - self.rank)
        self.communicator.enqueue([exchange], self.stream)


def contents(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


def copy_both_ways(rank: int, index: int, pipe: Connection, through_host: bool) -> None:
    """Rank 0 sends a pattern of each size to rank 1, which sends it back; all are enqueued before any is waited for."""
    one = Rank(rank, index, pipe, through_host)
    server, stream = one.server, one.stream
    memory = [server.allocate(size, stream) for size in SIZES]
    finish(server, stream)
    if rank == 0:
        for size, block in zip(SIZES, memory, strict=True):
            server.write_now(block.address, size, memoryview(contents(size)), size, 1)
    began = time.monotonic()
    for size, block in zip(SIZES, memory, strict=True):
        if rank == 0:
            one.send(block.address, size)
            server.fill(block.address, b"\0", size, stream)
            one.receive(block.address, size)
        else:
            one.receive(block.address, size)
            one.send(block.address, size)
    enqueued = time.monotonic() - began
    finish(server, stream)
    right = []
    for size, block in zip(SIZES, memory, strict=True):
        found = bytearray(size)
        server.read_now(memoryview(found), block.address, size, size, 1)
        right.append(found == contents(size))
    pipe.send((one.communicator.through_host, right, enqueued))
    pipe.recv()
    one.communicator.abort()
    one.communicator.abort()
    server.close()


def lose_the_peer(rank: int, index: int, pipe: Connection, through_host: bool) -> None:
    """Rank 1 ends; rank 0 has enqueued a copy to it and one from it, which `stop` ends."""
    one = Rank(rank, index, pipe, through_host)
    server, stream = one.server, one.stream
    if rank == 1:
        os._exit(1)
    pipe.recv()  # the peer has ended
    size = 100 << 20
    block = server.allocate(size, stream)
    began = time.monotonic()
    one.send(block.address, size)
    one.receive(block.address, size)
    enqueued = time.monotonic() - began
    event = server.record(stream)
    time.sleep(0.3)
    stuck = not server.done(event)
    one.communicator.stop()
    drained = server.done(event)
    one.communicator.abort()
    server.fill(block.address, b"\x01", size, stream)
    works = get(server, block.address, 4, stream) == b"\x01" * 4
    pipe.send((enqueued, stuck, drained, works, one.communicator.failure_reason()))
    server.close()


def pair(work: Any, indices: tuple[int, int], through_host: bool) -> tuple[list[Any], list[Connection]]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=work, args=(rank, indices[rank], pipes[rank][1], through_host), daemon=True)
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    ours = [pipe[0] for pipe in pipes]
    assert ours[0].poll(WAIT_S), "rank 0 sent no unique id"
    unique = ours[0].recv()
    for pipe in ours:
        pipe.send(unique)
    return processes, ours


PAIRS = [
    pytest.param((0, 0), id="one_gpu"),
    pytest.param((0, 1), id="two_gpus", marks=pytest.mark.multi_gpu),
]


@pytest.mark.parametrize("through_host", [False, True])
@pytest.mark.parametrize("indices", PAIRS)
def test_copies_of_all_sizes_in_both_directions(indices: tuple[int, int], through_host: bool) -> None:
    processes, pipes = pair(copy_both_ways, indices, through_host)
    for pipe in pipes:
        assert pipe.poll(WAIT_S), "a rank sent no result"
        used_host, right, enqueued = pipe.recv()
        assert used_host or not through_host
        assert used_host == through_host or indices[0] != indices[1], "a process can map memory of the GPU that it uses"
        assert all(right), right
        assert enqueued < 1.0
    for pipe in pipes:
        pipe.send("end")
    for process in processes:
        process.join(30)
        assert process.exitcode == 0


@pytest.mark.parametrize("through_host", [False, True])
def test_stop_ends_copies_whose_peer_has_ended(through_host: bool) -> None:
    processes, pipes = pair(lose_the_peer, (0, 0), through_host)
    processes[1].join(60)
    assert processes[1].exitcode == 1
    pipes[0].send("gone")
    assert pipes[0].poll(WAIT_S), "the surviving rank hangs"
    enqueued, stuck, drained, works, failure = pipes[0].recv()
    assert enqueued < 1.0, "a copy does not wait for the peer on the calling thread"
    assert stuck, "the operation cannot end without the peer"
    assert drained and works and failure
    processes[0].join(30)


@on_gpu
@pytest.mark.multi_gpu
def test_copies_of_a_tenant_without_collectives(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The daemon's device processes copy, as confined processes with a broker."""
    rights = [str(Right.ALLOCATE), str(Right.READ), str(Right.WRITE)]
    config, tokens = tenants(tenant("copier", rights=rights))
    daemon = DaemonProcess(tmp_path_factory.mktemp("compiled"), config, 2)
    try:
        with daemon.connect(token=tokens["copier"]) as node:
            one, two = node.devices[:2]
            host = np.arange(30 << 20, dtype=np.int32)
            x, y = one.asarray(host), two.zeros(host.shape, host.dtype)
            for _ in range(3):
                y.copy_from(x)
                x.fill(-1)
                x.copy_from(y)
            two.synchronize()
            np.testing.assert_array_equal(x.get(), host)
            assert "NCCL" not in daemon.log()
    finally:
        daemon.stop()
        daemon.remove()


def test_work_of_other_streams_runs_while_a_copy_waits(server: CudaServer, stream: Stream) -> None:
    """A waiting copy occupies one stream only."""
    block = server.allocate(1 << 20, stream)
    finish(server, stream)
    processes, pipes = pair(lose_the_peer, (0, 0), False)
    processes[1].join(60)
    pipes[0].send("gone")
    for turn in range(20):
        server.fill(block.address, bytes([turn]), 1 << 20, stream)
        assert get(server, block.address, 1, stream) == bytes([turn])
    assert pipes[0].poll(WAIT_S)
    processes[0].join(30)
    server.free(block, stream)
