"""Collectives over 2, 4 and 8 GPUs, as far as available: compared with NumPy, and with NCCL called directly.

They require HEARTH_TEST_BACKEND=cuda, which determines the backend of the tests' daemons. The conformance tests of
tests/daemon run here, too, with these groups.
"""

from __future__ import annotations

import contextlib
import random as chance
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hearth
from tests.daemon.collectives import test_conformance as conformance
from tests.daemon.collectives import test_reductions as reductions
from tests.support.collectives.ranks import several
from tests.support.collectives.values import up, values
from tests.support.daemon.harness import DaemonProcess, environment, on_gpu
from tests.support.folders import ROOT
from tests.support.gpu import nccl_direct

pytestmark = [pytest.mark.gpu, pytest.mark.multi_gpu, on_gpu]

DIRECT_S = 100.0

test_all_reduce = conformance.test_all_reduce
test_reduce = conformance.test_reduce
test_reduce_scatter = conformance.test_reduce_scatter
test_nan_and_infinity = conformance.test_nan_and_infinity
test_sums_that_are_rounded = conformance.test_sums_that_are_rounded
test_broadcast = conformance.test_broadcast
test_all_gather = conformance.test_all_gather
test_all_to_all = conformance.test_all_to_all
test_gather = conformance.test_gather
test_scatter = conformance.test_scatter
test_complex_numbers_are_added = reductions.test_complex_numbers_are_added
test_elements_are_multiplied_before_they_are_added = reductions.test_elements_are_multiplied_before_they_are_added
test_factors_of_a_batch = reductions.test_factors_of_a_batch
test_invalid_factors_are_refused_by_the_client = reductions.test_invalid_factors_are_refused_by_the_client


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with several(tmp_path_factory.mktemp("compiled"), 2) as process:
        yield process


@pytest.fixture(scope="module")
def node(daemon: DaemonProcess) -> Iterator[hearth.Node]:
    with daemon.connect() as connected:
        yield connected


@pytest.fixture(scope="module", params=[2, 4, 8], ids="{}_gpus".format)
def group(request: pytest.FixtureRequest, node: hearth.Node) -> hearth.Group:
    if len(node.devices) < request.param:
        pytest.skip(f"needs {request.param} GPUs; there are {len(node.devices)}")
    return hearth.Group(node.devices[: request.param])


@pytest.fixture(scope="module")
def direct(group: hearth.Group, tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, np.ndarray]]:
    """Returns the results of each rank from NCCL, called directly by one process for each GPU."""
    folder, n = tmp_path_factory.mktemp("nccl"), len(group)
    command = [sys.executable, "-m", "tests.support.gpu.nccl_direct"]
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in range(n):
            log = stack.enter_context((folder / f"{rank}.log").open("w"))
            arguments = [*command, str(rank), str(n), str(folder)]
            started = subprocess.Popen(arguments, cwd=ROOT, env=environment(), stdout=log, stderr=log)
            stack.callback(started.wait)
            stack.callback(started.kill)
            processes.append(started)
        codes = [process.wait(DIRECT_S) for process in processes]
    assert not any(codes), [(folder / f"{rank}.log").read_text()[-2000:] for rank in range(n)]
    return [np.load(folder / f"{rank}.npz") for rank in range(n)]


def test_results_equal_those_of_nccl(group: hearth.Group, direct: list[Mapping[str, np.ndarray]]) -> None:
    """Bit for bit, for every dtype that NCCL reduces here."""
    n = len(group)
    narrow = any("float8" in name for name in direct[0])
    found: list[tuple[str, int, hearth.DeviceArray]] = []
    for name, kind, op, dtype, shape in nccl_direct.cases(n, narrow):
        arrays = up(group, [values(dtype, shape, rank, op) for rank in range(n)])
        if kind == "reduce":
            found.append((name, nccl_direct.ROOT, group.reduce(arrays, root=nccl_direct.ROOT, op=op)))
        else:
            results = (group.all_reduce if kind == "all_reduce" else group.reduce_scatter)(arrays, op=op)
            found += [(name, rank, result) for rank, result in enumerate(results)]
    assert len(found) >= 10 * 5 * (2 * n + 1)
    for name, rank, array in found:
        assert array.get().tobytes() == direct[rank][name].tobytes(), (name, rank)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_are_rounded_as_by_nccl(group: hearth.Group, direct: list[Mapping[str, np.ndarray]], dtype: str) -> None:
    kind = next(each for each in nccl_direct.DTYPES if each.name == dtype)
    arrays = up(group, [nccl_direct.random(kind, rank) for rank in range(len(group))])
    group.all_reduce(arrays)
    for rank, array in enumerate(arrays):
        assert array.get().tobytes() == direct[rank][f"random {dtype}"].tobytes(), rank


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_dtypes_that_nccl_cannot_reduce_are_refused_by_name(group: hearth.Group, dtype: str) -> None:
    """Operations that only move the dtype work. Dtypes that no backend reduces (bool) are refused by the
    client."""
    for reduce in (group.all_reduce, group.reduce_scatter, group.reduce):
        reduce([gpu.zeros(8, dtype) for gpu in group.devices])
        for gpu in group.devices:
            with pytest.raises(hearth.UnsupportedError, match=dtype):
                gpu.synchronize()
    rows = group.all_gather([gpu.full(3, rank, dtype) for rank, gpu in enumerate(group.devices)])
    for row in rows:
        assert row.get()[:, 0].tolist() == list(range(len(group)))


@pytest.mark.parametrize("size", [0, 1, 3, 31, 1023, 4097, 65_537, (1 << 18) + 1, (1 << 22) + 5])
def test_sizes(group: hearth.Group, size: int) -> None:
    n = len(group)
    hosts = [np.random.default_rng([size, rank]).integers(0, 99, n * size, np.int32) for rank in range(n)]
    arrays = up(group, hosts)
    scattered, swapped = group.reduce_scatter(arrays), group.all_to_all(arrays)
    gathered = group.all_gather([array[:size] for array in arrays])
    group.all_reduce(arrays)
    total = np.add.reduce(hosts)
    for rank in range(n):
        own = slice(rank * size, (rank + 1) * size)
        np.testing.assert_array_equal(arrays[rank].get(), total)
        np.testing.assert_array_equal(scattered[rank].get(), total[own])
        np.testing.assert_array_equal(swapped[rank].get(), np.concatenate([host[own] for host in hosts]))
        np.testing.assert_array_equal(gathered[rank].get().ravel(), np.concatenate([host[:size] for host in hosts]))


def test_a_ring_and_collectives_in_one_batch(group: hearth.Group) -> None:
    """Rank 0 sends before the all_to_all and receives after it, and so on: NCCL must match the right messages."""
    n = len(group)
    for size in (1, 5, 70_001):
        ring = [gpu.full(size, 100 + rank, np.int64) for rank, gpu in enumerate(group.devices)]
        got = [gpu.zeros(size, np.int64) for gpu in group.devices]
        swap = [gpu.full((n, 2 * size), rank, np.int64) for rank, gpu in enumerate(group.devices)]
        add = [gpu.full(3, rank, np.float64) for rank, gpu in enumerate(group.devices)]
        with group.batch():
            for rank in range(n):
                if rank % 2 == 0:
                    group.send(ring[rank], (rank + 1) % n)
                else:
                    group.recv(got[rank], (rank - 1) % n)
            swapped = group.all_to_all(swap)
            group.all_reduce(add)
            for rank in range(n):
                if rank % 2 == 0:
                    group.recv(got[rank], (rank - 1) % n)
                else:
                    group.send(ring[rank], (rank + 1) % n)
            rows = group.gather([array[:1] for array in ring], root=1)
        for rank in range(n):
            assert set(got[rank].get()) == {100 + (rank - 1) % n}
            np.testing.assert_array_equal(swapped[rank].get(), np.repeat(np.arange(n), 2 * size).reshape(n, -1))
            assert add[rank].get().tolist() == [n * (n - 1) / 2] * 3
        assert rows.get().ravel().tolist() == [100 + rank for rank in range(n)]


def test_many_in_one_batch(group: hearth.Group) -> None:
    arrays = [[gpu.full(257, rank + i, np.int32) for rank, gpu in enumerate(group.devices)] for i in range(40)]
    with group.batch():
        for each in arrays:
            group.all_reduce(each)
    n = len(group)
    for i, each in enumerate(arrays):
        for array in each:
            assert set(array.get()) == {n * i + n * (n - 1) // 2}


def test_send_and_receive_between_two_devices(group: hearth.Group) -> None:
    first, last = group.devices[0], group.devices[-1]
    for size in (1, 1000, (1 << 22) + 3):
        host = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        x, y, back = first.asarray(host), last.zeros(size, np.uint8), first.zeros(size, np.uint8)
        group.recv(y, 0)  # send and receive in either order
        group.send(x, len(group) - 1)
        back.copy_from(y)
        np.testing.assert_array_equal(back.get(), host)
        np.testing.assert_array_equal(y.get(), host)


def test_barriers(group: hearth.Group) -> None:
    for _ in range(20):
        group.barrier()
    for gpu in group.devices:
        gpu.synchronize(timeout=30)


def test_groups_overlap_in_different_orders(daemon: DaemonProcess) -> None:
    """Several clients, each with several groups in a different order: no deadlock occurs."""

    def client(seed: int) -> bool:
        rng = chance.Random(seed)
        with daemon.connect() as node:
            gpus = node.devices[:4]
            groups = [hearth.Group(gpus), hearth.Group(gpus[::-1]), hearth.Group(gpus[:2]), hearth.Group(gpus[-2:])]
            waiting = []
            for turn in range(25):
                group = rng.choice(groups)
                arrays = [gpu.full(999, seed + turn + rank, np.int64) for rank, gpu in enumerate(group.devices)]
                waiting.append((group.all_gather(arrays), seed + turn))
            for gathered, value in waiting:
                n = len(gathered)
                expected = np.repeat(np.arange(value, value + n), 999).reshape(n, 999)
                if any((each.get() != expected).any() for each in gathered):
                    return False
        return True

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(client, (0, 1000, 1_000_000)))
