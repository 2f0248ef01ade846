"""Every method of a group compared with NumPy, on two, three and four devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.collectives.ranks import several
from tests.support.daemon.harness import DaemonProcess

DTYPES = ("float32", "float64", "float16", "int8", "uint64")


@pytest.fixture(scope="module")
def four(cache: Path) -> Iterator[DaemonProcess]:
    with several(cache, 4) as process:
        yield process


@pytest.fixture
def devices(four: DaemonProcess) -> Iterator[list[hearth.Device]]:
    with four.connect() as node:
        yield node.devices[:4]


@pytest.fixture(params=[(0, 1), (2, 0, 1), (3, 1, 0, 2)], ids=lambda order: f"{len(order)} devices")
def group(devices: list[hearth.Device], request: pytest.FixtureRequest) -> hearth.Group:
    """Returns a group of devices, not in the order of their numbers."""
    return hearth.Group([devices[ordinal] for ordinal in request.param])


def hosts(group: hearth.Group, shape: Sequence[int], dtype: str = "float32") -> list[np.ndarray[Any, Any]]:
    """Returns each rank's initial data, which differs between ranks."""
    random = np.random.default_rng([len(group), *shape])
    return [random.integers(1, 6, shape).astype(dtype) for _ in group.devices]


def on_devices(group: hearth.Group, arrays: Sequence[np.ndarray[Any, Any]]) -> list[hearth.DeviceArray]:
    return [device.asarray(array) for device, array in zip(group.devices, arrays, strict=True)]


def same(arrays: Sequence[hearth.DeviceArray], expected: Sequence[np.ndarray[Any, Any]]) -> None:
    assert len(arrays) == len(expected)
    for rank, (array, host) in enumerate(zip(arrays, expected, strict=True)):
        np.testing.assert_array_equal(array.get(), host, err_msg=f"rank {rank}")


# ---- each operation ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "reduced"), [("sum", np.add), ("max", np.maximum), ("min", np.minimum)])
def test_reductions(group: hearth.Group, dtype: str, op: str, reduced: np.ufunc) -> None:
    n, size = len(group), 12 * 7
    given = hosts(group, (size, 3), dtype)
    total = reduced.reduce(given, dtype=dtype) if op == "sum" else reduced.reduce(given)
    arrays = on_devices(group, given)
    last = n - 1
    out = group.reduce(arrays, root=last, op=op)
    assert out.device is group.devices[last]
    same([out], [total])
    share = size // n
    same(group.reduce_scatter(arrays, op=op), [total[rank * share : (rank + 1) * share] for rank in range(n)])
    same(arrays, given)
    same(group.all_reduce(arrays, op=op), [total] * n)
    same(arrays, [total] * n)


def test_products_and_means(group: hearth.Group) -> None:
    given = hosts(group, (33,), "float64")
    arrays = on_devices(group, given)
    outs = group.all_reduce(arrays, op="prod", outs=[device.empty(33) for device in group.devices])
    same(outs, [np.multiply.reduce(given)] * len(group))
    mean = group.reduce(arrays, op="mean").get()
    np.testing.assert_allclose(mean, np.mean(given, axis=0), rtol=1e-12)


@pytest.mark.parametrize("dtype", [*DTYPES, "bool", "complex64", "S5", "M8[us]"])
def test_operations_that_only_move_data(group: hearth.Group, dtype: str) -> None:
    n = len(group)
    given = hosts(group, (12, 5), "int64" if dtype.startswith(("S", "M")) else dtype)
    given = [host.astype(dtype) for host in given]
    arrays = on_devices(group, given)
    stacked = np.stack(given)
    same(group.all_gather(arrays), [stacked] * n)
    same([group.gather(arrays, root=n - 1)], [stacked])
    shares = np.stack([np.split(host, n) for host in given])  # indices: sender, receiver, ...
    same(group.all_to_all(arrays), [np.concatenate(shares[:, rank]) for rank in range(n)])
    same(group.scatter(arrays[n - 1], root=n - 1), np.split(given[n - 1], n))
    same(group.broadcast(arrays[n - 1], root=n - 1), [given[n - 1]] * n)
    same(arrays, given)
    same(group.broadcast(arrays, root=1), [given[1]] * n)


def test_half_precision_of_ml_dtypes(group: hearth.Group) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    given = [host.astype(ml_dtypes.bfloat16) for host in hosts(group, (64,))]
    arrays = on_devices(group, given)
    same(group.all_gather(arrays), [np.stack(given)] * len(group))
    expected = np.sum([host.astype(np.float32) for host in given], axis=0).astype(ml_dtypes.bfloat16)
    same(group.all_reduce(arrays), [expected] * len(group))


def test_structures(group: hearth.Group) -> None:
    dtype = np.dtype([("a", "<i4"), ("b", "u1")])
    given = [np.array([(rank, 1), (2, rank)], dtype) for rank in range(len(group))]
    same(group.all_gather(on_devices(group, given)), [np.stack(given)] * len(group))


def test_in_place(group: hearth.Group) -> None:
    n = len(group)
    given = hosts(group, (n, 65))
    whole = on_devices(group, given)
    group.all_gather([array[rank] for rank, array in enumerate(whole)], outs=whole)
    diagonal = np.stack([host[rank] for rank, host in enumerate(given)])
    same(whole, [diagonal] * n)
    given = hosts(group, (2 * n, 33))
    whole = on_devices(group, given)
    group.reduce_scatter(whole, outs=[array[2 * rank : 2 * rank + 2] for rank, array in enumerate(whole)])
    same(
        [array[2 * rank : 2 * rank + 2] for rank, array in enumerate(whole)],
        [np.sum(given, axis=0)[2 * rank : 2 * rank + 2] for rank in range(n)],
    )
    given = hosts(group, (9,))
    arrays = on_devices(group, given)
    out = group.reduce(arrays, root=1, out=arrays[1])
    assert out is arrays[1]
    same([out, arrays[0]], [np.sum(given, axis=0), given[0]])


def test_scatter_reverses_gather(group: hearth.Group) -> None:
    given = hosts(group, (4, 3))
    gathered = group.gather(on_devices(group, given), root=1)
    outs = [device.empty((4, 3), np.float32) for device in group.devices]
    same(group.scatter(gathered, root=1, outs=outs), given)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 63, 1001])
def test_odd_sizes(group: hearth.Group, size: int) -> None:
    n = len(group)
    given = hosts(group, (n * size,), "uint8")
    arrays = on_devices(group, given)
    same(group.all_gather(arrays), [np.stack(given)] * n)
    shares = np.stack([np.split(host, n) for host in given])
    same(group.all_to_all(arrays), [np.concatenate(shares[:, rank]) for rank in range(n)])
    same(group.reduce_scatter(arrays), list(shares.sum(axis=0, dtype=np.uint8)))


def test_scalars(group: hearth.Group) -> None:
    arrays = [device.full((), rank, np.int32) for rank, device in enumerate(group.devices)]
    same(group.all_gather(arrays), [np.arange(len(group), dtype=np.int32)] * len(group))
    same(group.all_reduce(arrays), [np.array(sum(range(len(group))), np.int32)] * len(group))


# ---- sends and receives, batches ----


def test_send_and_receive_in_either_order(group: hearth.Group) -> None:
    given = hosts(group, (100,))
    arrays = on_devices(group, given)
    target = group.devices[1].zeros(100, np.float32)
    group.send(arrays[0], to=1)
    assert group.recv(target, source=0) is target
    same([target], [given[0]])
    group.recv(target, source=0)
    group.send(group.devices[0].full(100, 7, np.float32), to=1)
    same([target], [np.full(100, 7, np.float32)])
    group.recv(arrays[0], source=1)
    group.send(target, to=0)
    same([arrays[0]], [np.full(100, 7, np.float32)])


def test_rings_are_batches(group: hearth.Group) -> None:
    n = len(group)
    given = hosts(group, (1000,))
    arrays = on_devices(group, given)
    outs = [device.empty(1000, np.float32) for device in group.devices]
    with group.batch():
        for rank in range(n):
            group.send(arrays[rank], to=(rank + 1) % n)
            group.recv(outs[rank], source=(rank - 1) % n)
    same(outs, given[-1:] + given[:-1])


def test_a_batch_of_many(group: hearth.Group) -> None:
    n = len(group)
    given = [hosts(group, (12, size)) for size in range(1, 6)]
    arrays = [on_devices(group, each) for each in given]
    with group.batch():
        group.all_reduce(arrays[0])
        group.broadcast(arrays[1], root=n - 1)
        gathered = group.all_gather(arrays[2])
        scattered = group.scatter(arrays[3][0])
        group.send(arrays[4][n - 1], to=0)
        group.recv(arrays[4][0], source=n - 1)
        group.barrier()
    same(arrays[0], [np.sum(given[0], axis=0)] * n)
    same(arrays[1], [given[1][n - 1]] * n)
    same(gathered, [np.stack(given[2])] * n)
    same(scattered, np.split(given[3][0], n))
    same(arrays[4][:1], given[4][n - 1 :])


def test_all_to_all_by_sends_and_receives(group: hearth.Group) -> None:
    n = len(group)
    given = hosts(group, (n, 17), "int32")
    arrays = on_devices(group, given)
    outs = [device.empty((n, 17), np.int32) for device in group.devices]
    with group.batch():
        for rank in range(n):
            for other in range(n):
                if other != rank:
                    group.send(arrays[rank][other], to=other)
                    group.recv(outs[rank][other], source=other)
                else:
                    outs[rank][rank].copy_from(arrays[rank][rank])
    same(outs, [np.stack([host[rank] for host in given]) for rank in range(n)])


def test_a_barrier_waits_for_the_work_of_all(group: hearth.Group) -> None:
    arrays = [device.zeros(1 << 16, np.int32) for device in group.devices]
    for turn in range(1, 4):
        for array in arrays:
            array.fill(turn)
        group.barrier(timeout=20)
        for array in arrays:
            array.copy()
    for device in group.devices:
        device.synchronize()
    same(arrays, [np.full(1 << 16, 3, np.int32)] * len(group))


def test_order_with_other_work_and_streams(group: hearth.Group) -> None:
    n = len(group)
    arrays = [device.full(500, 1, np.int64) for device in group.devices]
    side = group.devices[0].stream()
    expected = 1
    for turn in range(6):
        with side if turn % 2 else group.devices[1].stream():
            group.all_reduce(arrays)
            gathered = group.all_gather(arrays)
        expected *= n
        for array, whole in zip(arrays, gathered, strict=True):
            array.copy_from(whole[n - 1])
    same(arrays, [np.full(500, expected, np.int64)] * n)


# ---- copies between devices ----


def test_copies_between_devices(devices: list[hearth.Device]) -> None:
    host = np.arange(60, dtype=np.float64).reshape(6, 10)
    x = devices[0].asarray(host)
    y = devices[2].zeros((6, 10))
    y.copy_from(x)
    same([y], [host])
    z = devices[3].asarray(y)
    assert z.device is devices[3]
    same([z], [host])
    same([devices[1].array(z)], [host])
    w = devices[1].zeros((6, 4))
    w[:, 1:3].copy_from(z[:, 4:6])
    expected = np.zeros((6, 4))
    expected[:, 1:3] = host[:, 4:6]
    same([w], [expected])
    same([devices[0].asarray(y, np.int32)], [host.astype(np.int32)])
    empty = devices[1].asarray(devices[0].zeros((0, 3)))
    assert empty.get().shape == (0, 3)


def test_copies_are_ordered_with_the_work_of_both_devices(devices: list[hearth.Device]) -> None:
    x, y = devices[0].zeros(1000, np.int32), devices[1].zeros(1000, np.int32)
    side = devices[1].stream()
    for turn in range(20):
        x.fill(turn)
        y.copy_from(x, stream=side if turn % 3 else None)
        x.fill(-1)
        x.copy_from(y)
    same([x, y], [np.full(1000, 19, np.int32)] * 2)


def test_copy_larger_than_one_operation(devices: list[hearth.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hearth.arrays.device_copy.MAX_COPY", 1000)
    host = np.arange(1003, dtype=np.int64)
    x, y = devices[0].asarray(host), devices[1].zeros(1003, np.int64)
    y.copy_from(x)
    same([y], [host])
    record = np.dtype([("a", "u1"), ("b", "<f4")], align=False)
    z = devices[1].zeros(300, record)
    z.copy_from(devices[0].asarray(np.ones(300, record)))
    same([z], [np.ones(300, record)])
