"""Edge cases of collectives: their memory, many concurrent ones, in every order, concurrently with other work."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.collectives.ranks import FLOATS, A, B, Ranks, collective, operation, refusal_of
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import common, gated
from tests.support.timing import LATE

# ---- memory ----


def test_in_place_operations_as_in_nccl(ranks: Ranks) -> None:
    """The rank's smaller buffer is a part of its larger buffer."""
    kinds = {
        "all_gather": lambda rank: operation("all_gather", A, A, count=8, source_offset=32 * rank),
        "reduce_scatter": lambda rank: operation("reduce_scatter", A, A, count=8, destination_offset=32 * rank),
        "gather": lambda rank: operation("gather", A, A if rank == 1 else 0, count=8, root=1, source_offset=32 * rank),
        "scatter": lambda rank: operation(
            "scatter", A if rank == 1 else 0, A, count=8, root=1, destination_offset=32 * rank
        ),
        "broadcast": lambda rank: operation("broadcast", A, A, count=8, root=2),
        "reduce": lambda rank: operation("reduce", A, A, count=8, root=2),
        "all_reduce": lambda rank: operation("all_reduce", A, A, count=8),
    }
    own = [[float(rank + 1)] * 8 for rank in range(3)]
    row = own[0] + own[1] + own[2]
    expected = {
        "all_gather": [row] * 3,
        "reduce_scatter": [[*own[r] * r, *[6.0] * 8, *own[r] * (2 - r)] for r in range(3)],
        "gather": [own[0] * 3, row, own[2] * 3],
        "scatter": [own[1] + own[0] * 2, own[1] * 3, own[2] * 2 + own[1]],
        "broadcast": [own[2] + own[0] * 2, own[2] + own[1] * 2, own[2] * 3],
        "reduce": [own[0] * 3, own[1] * 3, [6.0] * 8 + own[2] * 2],
        "all_reduce": [[6.0] * 8 + own[r] * 2 for r in range(3)],
    }
    for kind, build in kinds.items():
        number = ranks.next()
        for rank, stream in enumerate(ranks.streams):
            stream.batch(*ranks.filled(rank), collective((0, 1, 2), number, build(rank)))
        for rank in range(3):
            assert ranks.data(rank, A, 24) == expected[kind][rank], (kind, rank)
            assert ranks.data(rank, A)[24:] == [rank + 1.0] * (FLOATS - 24), (kind, rank)


def test_empty_operations_still_count(ranks: Ranks) -> None:
    for kind in (
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "gather",
        "scatter",
    ):
        number = ranks.next()
        for stream in ranks.streams:
            stream.batch(collective((0, 1, 2), number, operation(kind, A, B, count=0)))
    number = ranks.next()
    for stream, more in zip(ranks.streams, ([("send", 1)], [("recv", 0)], []), strict=True):
        parts = [operation(kind, A, B, count=0, peer=peer) for kind, peer in more]
        stream.batch(collective((0, 1, 2), number, *parts))
    number = ranks.next()  # an empty list against a non-empty one is a mismatch
    for rank, stream in enumerate(ranks.streams):
        assert stream.failures() == []
        stream.batch(collective((0, 1, 2), number, operation("all_reduce", A, B, count=5 * (rank == 1))))
    for rank in range(3):
        assert ranks.failure(rank).details["odd_rank"] == "1"
    ranks.work()


def test_freed_memory_is_kept_until_the_operation_ends(ranks: Ranks) -> None:
    """The next owner of the memory gets it after the end of the collective. Rank 2 presents its part late."""
    number = ranks.next()
    part = operation("all_gather", 7, B, count=16)
    for rank, stream in enumerate(ranks.streams):
        pattern = np.float32(rank + 10).tobytes()
        commands = [
            c.Command(allocate=c.Allocate(buffer=7, size=64)),
            c.Command(fill=c.Fill(buffer=7, size=64, pattern=pattern)),
            collective((0, 1, 2), number, part),
            c.Command(free=c.Free(buffers=[7])),
            c.Command(allocate=c.Allocate(buffer=8, size=64)),
            c.Command(fill=c.Fill(buffer=8, size=64, pattern=b"\xff")),
        ]
        if rank == 2:
            assert refusal_of(ranks.streams[0], c.Command(read=c.Read(buffer=7, size=4))).reason == (
                Reason.INVALID_HANDLE
            )
        stream.batch(*commands)
    for rank in range(3):
        assert ranks.data(rank, B, 48) == [10.0] * 16 + [11.0] * 16 + [12.0] * 16
        assert ranks.streams[rank].failures() == []
        ranks.streams[rank].batch(c.Command(free=c.Free(buffers=[8])))


def test_dropped_arrays(three: DaemonProcess) -> None:
    """The memory of arrays that the client drops is freed after the last reference is dropped."""
    with three.connect() as node:
        group = hearth.Group(node.devices[:3])
        for turn in range(10):
            outs = [gpu.empty((3, 1000), np.int32) for gpu in node.devices[:3]]
            group.all_gather(
                [gpu.full(1000, 3 * turn + rank, np.int32) for rank, gpu in enumerate(group.devices)], outs
            )
            group.all_reduce([gpu.full(1 << 15, turn, np.int32) for gpu in group.devices])
            expected = np.repeat(np.arange(3 * turn, 3 * turn + 3), 1000).reshape(3, 1000)
            for out in outs:
                np.testing.assert_array_equal(out.get(), expected)


LATER = """
__device__ volatile int gate;
extern "C" __global__ void later(const int* x, int* out, int n) {
    while (!gate) {}
    for (int i = 0; i < n; ++i) out[i] = x[i];
}
"""


def test_receive_into_freed_memory_that_is_still_read(three: DaemonProcess) -> None:
    """A kernel reads an array that its client has dropped; data received in the meantime must not overwrite the
    array."""
    n = 5000
    with three.connect() as node:
        sender, receiver = node.devices[:2]
        module = receiver.RawModule(code=LATER)
        later, gate, side = module.get_function("later"), module.get_global("gate", np.int32), receiver.stream()
        gate.set(np.zeros(1, np.int32), stream=side)
        receiver.synchronize()
        out = receiver.zeros(n, np.int32)
        x = receiver.full(n, 5, np.int32)
        later((1,), (1,), (x, out, np.int32(n)), timeout=60)
        del x
        group = hearth.Group([sender, receiver])
        with side:
            y = receiver.empty(n, np.int32)  # probably the memory of x, but on another stream
            group.recv(y, 0)
        group.send(sender.full(n, 9, np.int32), 1)
        sender.synchronize()
        gate.set(np.ones(1, np.int32), stream=receiver.stream())
        assert set(out.get()) == {5} and set(y.get()) == {9}


# ---- many operations ----


MANY = 10_000


@pytest.mark.parametrize("many", [MANY, 0], ids=["ten thousand", "as many as are allowed"])
def test_large_batches(ranks: Ranks, many: int) -> None:
    """More operations than allowed are refused immediately, with the allowed number; that number works, and quickly."""

    def present(many: int) -> list[list[Refusal]]:
        number = ranks.next()
        parts = [
            operation("all_reduce", 7, 8, count=1, source_offset=4 * i, destination_offset=4 * i) for i in range(many)
        ]
        for stream in ranks.streams:
            stream.batch(collective((0, 1, 2), number, *parts))
        return [[from_status(entry.status) for entry in stream.failures()] for stream in ranks.streams]

    for stream in ranks.streams:
        stream.batch(
            c.Command(allocate=c.Allocate(buffer=7, size=4 * MANY)),
            c.Command(allocate=c.Allocate(buffer=8, size=4 * MANY)),
            c.Command(fill=c.Fill(buffer=7, size=4 * MANY, pattern=np.float32(2).tobytes())),
        )
    began = time.monotonic()
    refusals = present(MANY)
    for (refusal,) in refusals:
        assert refusal.reason == Reason.INVALID_ARGUMENT and str(MANY) in refusal.message, refusal
    allowed = int(refusals[0][0].details["allowed"])
    assert allowed >= 64
    if not many:
        assert present(allowed) == [[]] * 3
        assert ranks.data(0, 8, allowed) == [6.0] * allowed
    assert time.monotonic() - began < 20 + LATE
    assert all(len(each.what) < 4096 for group in ranks.groups() for each in group.operations)
    ranks.work()


def test_the_recorder_keeps_the_last_of_each_group(ranks: Ranks) -> None:
    for _ in range(80):
        number = ranks.next()
        for stream in ranks.streams:
            stream.batch(collective((0, 1, 2), number, operation("all_reduce", A, B, count=3)))
    ranks.work((2, 0))
    ranks.work((0, 2))
    for stream in ranks.streams:
        assert stream.failures() == []
    groups = {tuple(member.device for member in group.members): group for group in ranks.groups()}
    assert set(groups) == {(0, 1, 2), (2, 0), (0, 2)}
    kept = groups[0, 1, 2].operations
    assert [each.sequence for each in kept] == list(range(number - 63, number + 1))
    assert all("all_reduce" in each.what and "3" in each.what and "float32" in each.what for each in kept)
    assert all(each.presented_unix_ns <= each.launched_unix_ns for each in kept)
    assert groups[0, 1, 2].state == "ready" and groups[0, 1, 2].group == b""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:  # completions are recorded with a delay of up to 50 ms
        states = {each.state for each in ranks.groups()[0].operations}
        if states == {"done"}:
            break
        threading.Event().wait(0.02)
    assert states == {"done"}


GROUPS = [(0, 1), (1, 2), (0, 2), (0, 1, 2), (2, 1, 0), (1, 0)]


def test_overlapping_groups_in_every_order(three: DaemonProcess) -> None:
    """Four concurrent clients, each with two threads and with groups that share devices: no deadlock, no wrong
    result."""
    over = threading.Event()

    def work(node: hearth.Node, seed: int) -> int:
        rng = random.Random(seed)
        groups = {ordinals: hearth.Group([node.device(i) for i in ordinals]) for ordinals in GROUPS}
        for turn in range(12):
            if over.is_set():
                break
            waiting = []
            for ordinals in rng.sample(GROUPS, len(GROUPS)):
                group, value = groups[ordinals], seed * 100 + turn
                arrays = [gpu.full(500 + turn, value + rank, np.int64) for rank, gpu in enumerate(group.devices)]
                n = len(ordinals)
                if rng.random() < 0.5:
                    group.all_reduce(arrays)
                    waiting += [(array, np.full(500 + turn, n * value + n * (n - 1) // 2)) for array in arrays]
                else:
                    outs = [gpu.empty((n, 500 + turn), np.int64) for gpu in group.devices]
                    group.all_gather(arrays, outs)
                    gathered = np.repeat(np.arange(value, value + n), 500 + turn).reshape(n, -1)
                    waiting += [(out, gathered) for out in outs]
            for array, expected in waiting:
                np.testing.assert_array_equal(array.get(), expected)
        return turn

    nodes = [three.connect() for _ in range(4)]
    try:
        with ThreadPoolExecutor(8) as pool:
            try:
                futures = [pool.submit(work, node, 2 * i + j) for i, node in enumerate(nodes) for j in range(2)]
                assert [future.result(timeout=60) for future in futures] == [11] * 8
            finally:
                over.set()
    finally:
        for node in nodes:
            node.close()


def test_commands_after_a_late_group_delay_no_other(three: DaemonProcess) -> None:
    """Rank 1 has two consecutive operations on one stream, the first with a device that has not presented its
    part. If the second were launched first, an operation of another session would be launched before it on one device
    and after it on the other."""
    with Ranks(three, 3) as ranks, Ranks(three, 3) as others:
        late, held, crossing = ranks.next((1, 2)), ranks.next((0, 1)), others.next((1, 0))
        ranks.streams[1].batch(
            collective((1, 2), late, operation("all_reduce", A, B)),
            collective((0, 1), held, operation("all_reduce", B, B)),
        )
        ranks.streams[0].batch(collective((0, 1), held, operation("all_reduce", A, B)))
        wait_until(lambda: sum(len(each.presented) for group in ranks.groups() for each in group.operations) == 3)
        for rank in (0, 1):
            others.streams[rank].batch(collective((1, 0), crossing, operation("all_reduce", A, B), timeout=5))
        for rank in (0, 1):
            assert others.data(rank, B) == [3.0] * FLOATS
        assert ranks.recorded((0, 1), held).state == "presented"
        ranks.streams[2].batch(collective((1, 2), late, operation("all_reduce", A, B)))
        assert ranks.data(2, B) == [5.0] * FLOATS
        for rank in (0, 1):
            assert ranks.data(rank, B) == [6.0] * FLOATS


def test_queues_in_different_orders_on_the_ranks_are_refused_immediately(three: DaemonProcess) -> None:
    with Ranks(three, 2) as ranks:
        first, second = ranks.next((0, 1)), ranks.next((0, 1))
        row = [collective((0, 1), number, operation("all_reduce", A, A)) for number in (first, second)]
        ranks.streams[0].batch(*row)
        ranks.streams[1].batch(*reversed(row))
        for rank in (0, 1):
            refusals = [from_status(entry.status) for entry in ranks.streams[rank].failures()]
            assert [refusal.reason for refusal in refusals] == [Reason.COLLECTIVE_MISMATCH] * 2, refusals
            assert {refusal.details["field"] for refusal in refusals} == {"order"}
        ranks.work()


def test_refused_rank_fails_the_others_immediately(ranks: Ranks) -> None:
    number = ranks.next()
    for rank in (0, 2):
        ranks.streams[rank].batch(collective((0, 1, 2), number, operation("all_reduce", A, B), timeout=60))
    ranks.streams[1].batch(collective((0, 1, 2), number, operation("all_reduce", A, 77), timeout=60))
    began = time.monotonic()
    assert ranks.failure(1).reason == Reason.INVALID_HANDLE
    for rank in (0, 2):
        refusal = ranks.failure(rank)
        assert refusal.reason == Reason.COMMUNICATOR_FAILED, refusal
        assert refusal.details["failed"] == "1" and refusal.details["cause"] == "INVALID_HANDLE"
        assert ranks.data(rank, A) == [rank + 1.0] * FLOATS
    assert time.monotonic() - began < LATE
    ranks.work()


def test_queues_longer_than_the_limit_of_presented_operations(three: DaemonProcess) -> None:
    """Two sessions, each with more operations than the device process presents together, in opposite orders."""
    with three.connect() as one, three.connect() as other, ThreadPoolExecutor(2) as pool:

        def work(node: hearth.Node, order: int) -> list[int]:
            group = hearth.Group(node.devices[:2][::order])
            streams = [gpu.stream() for gpu in group.devices]
            rows = [[gpu.ones(1, np.int64) for gpu in group.devices] for _ in range(2)]
            for turn in range(700):
                with contextlib.ExitStack() as stack:
                    if turn % 3 == 0:
                        for stream in streams:
                            stack.enter_context(stream)
                    group.all_reduce(rows[turn % 3 == 0], op="max")
            node.synchronize()
            return [int(array.get()[0]) for row in rows for array in row]

        assert [each.result(timeout=60) for each in (pool.submit(work, one, 1), pool.submit(work, other, -1))] == [
            [1] * 4, [1] * 4,
        ]  # fmt: skip


def test_other_work_runs_while_a_kernel_delays_a_rank(three: DaemonProcess) -> None:
    """A kernel of one session blocks its rank on a device; groups of another session over the same devices are not
    blocked."""
    with three.connect() as slow, three.connect() as quick:
        group = hearth.Group(slow.devices[:3])
        arrays = [gpu.ones(100, np.float32) for gpu in group.devices]
        # CUDA loads no code while a kernel runs, including the kernel of a rank that waits for another rank.
        adds = [common(gpu, "add_one") for gpu in quick.devices[1:3]]
        totals = [gpu.zeros(4, np.int32) for gpu in quick.devices[1:3]]
        for add, total in zip(adds, totals, strict=True):
            add((1,), (32,), (total, np.int32(4)))
        quick.synchronize()
        with gated(slow.device(0)) as gate:
            gate.hold()
            group.all_reduce(arrays)
            others = hearth.Group(quick.devices[:3])
            mine = [gpu.ones(100, np.float32) for gpu in others.devices]
            others.all_reduce(mine)
            for add, total in zip(adds, totals, strict=True):
                add((1,), (32,), (total, np.int32(4)))
                assert (total.get() == 2).all()
            gate.open()
        for array in (*arrays, *mine):
            assert (array.get() == 3).all()


def test_a_graph_records_no_collective(three: DaemonProcess) -> None:
    with three.connect() as node:
        group = hearth.Group(node.devices[:2])
        arrays = [gpu.ones(8, np.float32) for gpu in group.devices]
        with pytest.raises(hearth.HearthError), node.device(0).graph():
            group.all_reduce(arrays, timeout=0.5)
        for gpu in group.devices:
            try:
                gpu.synchronize()
            except hearth.HearthError as error:
                assert error.reason in ("COLLECTIVE_TIMEOUT", "CAPTURE_INVALID", "COMMUNICATOR_FAILED"), error
        fresh = [gpu.ones(8, np.float32) for gpu in group.devices]
        group.all_reduce(fresh)
        assert [set(array.get()) for array in fresh] == [{2.0}] * 2
