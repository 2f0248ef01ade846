"""CudaServer on a real GPU: NCCL communicators of one and of two processes."""

from __future__ import annotations

import multiprocessing
import os
import struct
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.shared.device_spec import DeviceSpec
from tests.support.gpu.server_calls import get, put

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer
    from hearthd.device.cuda.streams import Stream


pytestmark = pytest.mark.gpu


def test_operations_that_nccl_cannot_reduce_are_refused_by_name(server: CudaServer) -> None:
    if "nccl" not in server.properties.features:
        pytest.skip("no NCCL on this machine")
    server.communicators.check("all_reduce", "bfloat16", "mean")
    for dtype, op in (("complex64", "sum"), ("bool", "sum"), ("float32", "xor")):
        with pytest.raises(Refusal) as caught:
            server.communicators.check("all_reduce", dtype, op)
        assert caught.value.reason is Reason.UNSUPPORTED
        assert caught.value.details["allowed"].split(", ")[0] in ("int8", "sum")


def test_a_group_of_one(server: CudaServer, stream: Stream) -> None:
    if "nccl" not in server.properties.features:
        pytest.skip("no NCCL on this machine")
    unique = server.communicators.unique_id(1)
    assert len(unique) == 128
    alone = server.communicators.join(unique, 0, 1)
    memory = server.allocate(12, stream)
    put(server, memory.address, struct.pack("<3f", 1, 2, 3), stream)
    alone.enqueue([CollectiveExchange("all_reduce", memory.address, memory.address, 3, "float32", "mean")], stream)
    assert struct.unpack("<3f", get(server, memory.address, 12, stream)) == (1, 2, 3)
    assert alone.failure_reason() == ""
    alone.abort()
    alone.abort()
    assert alone.failure_reason()
    with pytest.raises(Refusal) as caught:
        alone.enqueue([CollectiveExchange("all_reduce", memory.address, memory.address, 3, "float32", "mean")], stream)
    assert caught.value.reason is Reason.COMMUNICATOR_FAILED
    server.free(memory, stream)


COUNT = 1001


def member(rank: int, pipe: Connection, vanish: bool) -> None:
    """Runs one rank of a pair in a separate process."""
    from hearthd.device.cuda.server import CudaServer

    server = CudaServer(DeviceSpec(ordinal=rank, backend="cuda", index=rank))
    if rank == 0:
        pipe.send(server.communicators.unique_id(2))
    unique = pipe.recv()
    communicator = server.communicators.join(unique, rank, 2)
    stream = server.create_stream()
    source, target = server.allocate(4 * COUNT, stream), server.allocate(4 * COUNT, stream)
    server.fill(source.address, struct.pack("<f", rank + 1.0), 4 * COUNT, stream)
    results = {}
    for op in ("sum", "mean", "min", "max", "prod"):
        communicator.enqueue(
            [CollectiveExchange("all_reduce", source.address, target.address, COUNT, "float32", op)], stream
        )
        results[op] = struct.unpack(f"<{COUNT}f", get(server, target.address, 4 * COUNT, stream))
    pipe.send({op: sorted(set(values)) for op, values in results.items()})
    if not vanish:
        pipe.recv()
        communicator.abort()
        server.close()
        return
    if rank == 1:
        os._exit(1)
    pipe.recv()  # the peer has ended
    began = time.monotonic()
    noticed = False
    try:
        communicator.enqueue(
            [CollectiveExchange("all_reduce", source.address, target.address, COUNT, "float32", "sum")], stream
        )
    except Refusal as refusal:  # NCCL itself detected that the peer has ended
        noticed = refusal.reason is Reason.COMMUNICATOR_FAILED
    enqueued = time.monotonic() - began
    event = server.record(stream)
    time.sleep(0.5)
    stuck = noticed or not server.done(event)
    aborting = threading.Thread(target=communicator.abort)
    aborting.start()
    while not server.done(event) and time.monotonic() - began < 30:
        time.sleep(0.01)
    drained = server.done(event)
    aborting.join(30)
    server.fill(target.address, b"\x01", 4 * COUNT, stream)
    works = get(server, target.address, 4, stream) == b"\x01" * 4
    pipe.send((enqueued, stuck, drained, works, communicator.failure_reason()))
    server.close()


def pair(vanish: bool) -> tuple[list[Any], list[Connection]]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    processes = [context.Process(target=member, args=(rank, pipes[rank][1], vanish), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    ours = [pipe[0] for pipe in pipes]
    assert ours[0].poll(60), "rank 0 sent no unique id"
    unique = ours[0].recv()
    for pipe in ours:
        pipe.send(unique)
    return processes, ours


@pytest.mark.multi_gpu
def test_all_reduce_of_two_processes() -> None:
    processes, pipes = pair(vanish=False)
    for pipe in pipes:
        assert pipe.poll(90), "a rank sent no result"
        assert pipe.recv() == {"sum": [3.0], "mean": [1.5], "min": [1.0], "max": [2.0], "prod": [2.0]}
    for pipe in pipes:
        pipe.send("end")
    for process in processes:
        process.join(30)
        assert process.exitcode == 0


@pytest.mark.multi_gpu
def test_abort_after_the_peer_has_ended() -> None:
    processes, pipes = pair(vanish=True)
    for pipe in pipes:
        assert pipe.poll(90), "a rank sent no result"
        pipe.recv()
    processes[1].join(30)
    assert processes[1].exitcode == 1
    pipes[0].send("gone")
    assert pipes[0].poll(60), "the surviving rank hangs"
    enqueued, stuck, drained, works, failure = pipes[0].recv()
    assert enqueued < 1.0, "all_reduce does not wait for the peer on the calling thread"
    assert stuck, "the operation cannot end without the peer"
    assert drained and works and failure
    processes[0].join(30)
