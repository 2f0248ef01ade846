"""all_reduce over two devices: correct sums, in order, and a clear error if a rank does not take part."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import common, gated

pytestmark = pytest.mark.usefixtures("pair")
DTYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
REFERENCE = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def values(dtype: str, size: int, rank: int) -> np.ndarray:
    return np.random.default_rng([size, rank]).integers(1, 7, size).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", REFERENCE)
def test_every_type_and_operation(pair: list[hearth.Device], dtype: str, op: str) -> None:
    hosts = [values(dtype, 1001, rank) for rank in range(2)]
    arrays = [device.asarray(host) for device, host in zip(pair, hosts, strict=True)]
    hearth.Group(pair).all_reduce(arrays, op=op)
    for array in arrays:
        np.testing.assert_array_equal(array.get(), REFERENCE[op](*hosts))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_mean(pair: list[hearth.Device], dtype: str) -> None:
    hosts = [values(dtype, 513, rank) for rank in range(2)]
    arrays = [device.asarray(host) for device, host in zip(pair, hosts, strict=True)]
    hearth.Group(pair).all_reduce(arrays, op="mean")
    for array in arrays:
        np.testing.assert_allclose(array.get(), (hosts[0] + hosts[1]) / 2, rtol=1e-3)


def test_mean_of_integers_is_their_sum_which_wraps_divided(pair: list[hearth.Device]) -> None:
    """As NCCL computes it (FuncSumPostDiv): the quotient is truncated towards zero."""
    for dtype, numbers, means in (
        ("uint8", ([200, 200, 3, 255], [200, 0, 4, 255]), [72, 100, 3, 127]),
        ("int8", ([100, -100, -3, -128], [100, -100, 0, 0]), [-28, 28, -1, -64]),
        ("int32", ([2**31 - 1, -3], [1, 0]), [-(2**30), -1]),
        ("int64", ([2**63 - 1, -3], [1, 0]), [-(2**62), -1]),
        ("uint64", ([2**64 - 1, 2**63], [2, 3]), [0, 2**62 + 1]),
    ):
        arrays = [device.asarray(np.array(each, dtype)) for device, each in zip(pair, numbers, strict=True)]
        for array in hearth.Group(pair).all_reduce(arrays, op="mean"):
            np.testing.assert_array_equal(array.get(), np.array(means, dtype), err_msg=dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 63, 64, 65, 1000, 4097, (1 << 20) + 1])
def test_odd_sizes_in_place_and_out(pair: list[hearth.Device], size: int) -> None:
    hosts = [values("float32", size, rank) for rank in range(2)]
    arrays = [device.asarray(host) for device, host in zip(pair, hosts, strict=True)]
    outs = [device.full(size + 2, -1, np.float32) for device in pair]
    group = hearth.Group(pair)
    group.all_reduce(arrays, outs=[out[1:-1] for out in outs])
    for array, host, out in zip(arrays, hosts, outs, strict=True):
        np.testing.assert_array_equal(array.get(), host)
        np.testing.assert_array_equal(out.get(), np.pad(hosts[0] + hosts[1], 1, constant_values=-1))
    group.all_reduce(arrays)
    for array in arrays:
        np.testing.assert_array_equal(array.get(), hosts[0] + hosts[1])


def test_nothing_to_reduce(pair: list[hearth.Device]) -> None:
    arrays = [device.zeros(0, np.float32) for device in pair]
    hearth.Group(pair).all_reduce(arrays)
    for device in pair:
        device.synchronize()


def test_a_group_of_one(gpu: hearth.Device) -> None:
    x, out = gpu.asarray(np.arange(5.0)), gpu.zeros(5)
    hearth.Group([gpu]).all_reduce([x], op="mean", outs=[out])
    np.testing.assert_array_equal(out.get(), np.arange(5.0))


def test_many_queued(pair: list[hearth.Device]) -> None:
    arrays = [device.ones(100, np.float64) for device in pair]
    group = hearth.Group(pair)
    for _ in range(40):
        group.all_reduce(arrays)
    for array in arrays:
        assert (array.get() == 2.0**40).all()


def test_collectives_are_ordered_with_kernels_and_copies(pair: list[hearth.Device]) -> None:
    group = hearth.Group(pair)
    add_one = [common(device, "add_one") for device in pair]
    arrays = [device.zeros(64, np.int32) for device in pair]
    expected = 0
    for _ in range(10):
        for kernel, array in zip(add_one, arrays, strict=True):
            kernel((1,), (64,), (array, np.int32(64)))
        group.all_reduce(arrays)
        expected = 2 * (expected + 1)
    group.synchronize()
    for array in arrays:
        assert (array.get() == expected).all()


def test_one_rank_is_late_on_its_device(pair: list[hearth.Device]) -> None:
    arrays = [device.ones(64, np.float32) for device in pair]
    with gated(pair[0]) as gate:
        gate.hold()
        hearth.Group(pair).all_reduce(arrays)
        gate.open()
    for array in arrays:
        assert (array.get() == 2).all()


def test_the_order_of_the_devices_does_not_matter(pair: list[hearth.Device]) -> None:
    turned = pair[::-1]
    arrays = [device.full(8, device.ordinal + 1, np.int32) for device in turned]
    hearth.Group(turned).all_reduce(arrays)
    hearth.Group(pair).all_reduce(arrays[::-1])
    assert [array.get().tolist() for array in arrays] == [[6] * 8] * 2


def test_sessions_and_threads_do_not_mix(daemon: DaemonProcess) -> None:
    def work(seed: int) -> bool:
        with daemon.connect() as node:
            devices = node.devices[:2]
            group = hearth.Group(devices)
            for turn in range(5):
                arrays = [device.full(999, seed + turn, np.int64) for device in devices]
                group.all_reduce(arrays)
                if any((array.get() != 2 * (seed + turn)).any() for array in arrays):
                    return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, (1, 100, 10_000, 1_000_000)))


def test_mismatched_arrays_are_refused_by_the_client(pair: list[hearth.Device]) -> None:
    group = hearth.Group(pair)
    good = [device.zeros(4, np.float32) for device in pair]
    for arrays, error in (
        (good[:1], hearth.ArgumentError),
        (good[::-1], hearth.ArgumentError),
        ([good[0], pair[1].zeros(5, np.float32)], hearth.ArgumentError),
        ([good[0], pair[1].zeros(4, np.float64)], hearth.ArgumentError),
        ([good[0], np.zeros(4, np.float32)], hearth.DtypeError),
    ):
        with pytest.raises(error):
            group.all_reduce(arrays)
    with pytest.raises(hearth.ArgumentError, match="median"):
        group.all_reduce(good, op="median")
    with pytest.raises(hearth.ArgumentError):
        hearth.Group([pair[0], pair[0]])
    with pytest.raises(hearth.ArgumentError):
        hearth.Group([])
    group.all_reduce(good)
    assert not good[0].get().any()


def test_a_type_that_cannot_be_reduced_is_named(pair: list[hearth.Device]) -> None:
    arrays = [device.zeros(4, np.bool_) for device in pair]
    with pytest.raises(hearth.DtypeError, match="bool") as caught:
        hearth.Group(pair).all_reduce(arrays)
    assert "x.view(np.uint8)" in caught.value.fix
    for device in pair:
        device.synchronize()


def test_published_and_attached_arrays_are_broadcast(pair: list[hearth.Device], daemon: DaemonProcess) -> None:
    """The root's array is only read, alone and in a list, by its publisher and by a session that has attached it."""
    with daemon.connect() as publisher:
        devices = [publisher.device(gpu.ordinal) for gpu in pair]
        host = np.arange(70_001.0)
        own = devices[1].asarray(host)
        own.publish("broadcast")
        for x, gpus in ((own, devices), (pair[1].attach("broadcast"), pair)):
            group = hearth.Group(gpus)
            listed = gpus[0].zeros_like(x)
            alone = group.broadcast(x, root=1)
            assert alone[1] is x
            assert group.broadcast([listed, x], root=1) == [listed, x]
            for array in (*alone, listed):
                np.testing.assert_array_equal(array.get(), host)
        with pytest.raises(hearth.ArgumentError, match="read-only"):
            group.broadcast([listed, x], root=0)
