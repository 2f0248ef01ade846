"""`gpu.get([x, y, z])`: several reads with one wait, the same contents as single reads, and an error for each array."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.arrays.many_reads import AHEAD_BYTES
from tests.support.daemon.aio_ways import WAYS, connect
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import gated
from tests.support.daemon.loops import run
from tests.support.timing import LATE


def hosts() -> list[np.ndarray]:
    """Arrays of every route: empty, in the answer, through shared memory, over separate streams; several dtypes."""
    random = np.random.default_rng(1)
    return [
        np.float32(3).reshape(()),
        np.zeros((0, 3), np.int8),
        random.integers(0, 99, (3, 5)),
        random.random(AHEAD_BYTES // 8),
        random.random(AHEAD_BYTES // 8 + 1),
        random.integers(0, 255, 3 << 20, np.uint8),
        np.frombuffer(b"abcdef", "S3"),
    ]


def test_several_arrays_have_the_contents_of_single_reads(gpu: hearth.Device) -> None:
    given = hosts()
    arrays = [gpu.asarray(host) for host in given]
    for host, got in zip(given, gpu.get(arrays), strict=True):
        assert got.dtype == host.dtype and got.shape == host.shape
        np.testing.assert_array_equal(got, host)
    assert gpu.get([]) == [] and gpu.get((arrays[0],))[0] == 3


def test_views_and_the_same_array_twice(gpu: hearth.Device) -> None:
    host = np.arange(600.0).reshape(20, 30)
    x = gpu.asarray(host)
    views = [x[3], x[:, 4:9], x[::2], x, x, x[:, 7]]
    expected = [host[3], host[:, 4:9], host[::2], host, host, host[:, 7]]
    for got, wanted in zip(gpu.get(views), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_out_is_filled(gpu: hearth.Device) -> None:
    x, y = gpu.asarray(np.arange(6.0).reshape(2, 3)), gpu.asarray(np.arange(4, dtype=np.int32))
    out, wide = np.zeros((2, 3), order="F"), np.zeros(4, ">i4")
    got = gpu.get([x, y, x], out=[out, None, None])
    assert got[0] is out and got[1] is not wide and out[1, 2] == 5 and got[2][1, 2] == 5
    for bad in ([out], out, [out, np.zeros(5, np.int32), None]):
        with pytest.raises(hearth.ArgumentError):
            gpu.get([x, y, x], out=bad)  # type: ignore[arg-type]


def test_more_reads_than_may_be_in_flight(gpu: hearth.Device) -> None:
    host = np.arange(3000, dtype=np.int64)
    x = gpu.asarray(host)
    for index, got in enumerate(gpu.get([x[at : at + 2] for at in range(2999)])):
        assert got.tolist() == [index, index + 1]
    big = gpu.asarray(np.arange(1 << 20, dtype=np.int64))
    parts = [big[at << 13 : (at + 1) << 13] for at in range(128)] * 3
    for index, got in enumerate(gpu.get(parts)):
        assert got[0] == (index % 128) << 13 and got[-1] == got[0] + 8191


def test_reads_are_ordered_on_their_stream(gpu: hearth.Device) -> None:
    x, y = gpu.zeros(10, np.int32), gpu.zeros(1 << 20, np.int32)
    with gpu.stream() as stream:
        for value in range(1, 20):
            x.fill(value)
            y.fill(-value)
            small, large = gpu.get([x, y])
            assert (small == value).all() and (large == -value).all()
            x.fill(0)
    small, large = gpu.get([x, y], stream)
    assert not small.any() and (large == -19).all()


def test_an_array_that_cannot_be_read_is_named(gpu: hearth.Device) -> None:
    x, y, freed = gpu.zeros(3), gpu.zeros(4), gpu.zeros(5)
    freed.free()
    with pytest.raises(hearth.InvalidHandleError) as caught:
        gpu.get([x, freed, y])
    assert any("arrays[1]" in note and "(5,)" in note for note in caught.value.__notes__)
    with pytest.raises(hearth.DtypeError, match=r"arrays\[1\] is a ndarray"):
        gpu.get([x, np.zeros(3)])  # type: ignore[list-item]
    with pytest.raises(hearth.ArgumentError, match=r"x\.get\(\)"):
        gpu.get(x)  # type: ignore[arg-type]
    with pytest.raises(hearth.DtypeError, match="list of arrays"):
        gpu.get(each for each in (x, y))  # type: ignore[arg-type]
    assert [got.size for got in gpu.get([x, y])] == [3, 4]


def test_the_failures_of_earlier_work_are_raised_once(gpu: hearth.Device) -> None:
    x, y = gpu.zeros(3), gpu.zeros(4)
    missing = gpu.empty(1 << 50, np.uint8)
    with pytest.raises(hearth.OutOfMemoryError) as caught:
        gpu.get([x, missing[:10], y])
    assert len(caught.value.failures) >= 1
    notes = caught.value.__notes__
    assert any("arrays[1]" in note for note in notes) and not any("arrays[2]" in note for note in notes)
    assert [got.size for got in gpu.get([x, y])] == [3, 4]


def test_arrays_of_another_device_are_refused_by_name(pair: list[hearth.Device]) -> None:
    here, there = pair
    with pytest.raises(hearth.ArgumentError, match=r"arrays\[1\].*another device") as caught:
        here.get([here.zeros(2), there.zeros(2)])
    assert "each device" in caught.value.fix


def test_a_timeout_leaves_the_session_whole(gpu: hearth.Device) -> None:
    x, y = gpu.zeros(3), gpu.full(4, 2.0)
    stream = gpu.stream()
    with gated(gpu) as gate:
        gate.hold(stream=stream)
        begun = time.monotonic()
        with pytest.raises(hearth.TimeoutError):
            gpu.get([x, y], stream, timeout=0.3)
        assert time.monotonic() - begun < LATE
    assert (gpu.get([x, y], stream)[1] == 2).all()


@pytest.mark.parametrize("way", WAYS)
def test_asyncio(daemon: DaemonProcess, way: str) -> None:
    async def main() -> None:
        async with connect(daemon, way) as node:
            gpu = node.device(0)
            given = hosts()
            arrays: list[Any] = [gpu.asarray(host) for host in given]
            for host, got in zip(given, await gpu.get(arrays), strict=True):
                np.testing.assert_array_equal(got, host)
            out = np.zeros(3 << 20, np.uint8)
            several, other = await asyncio.gather(gpu.get([arrays[5], arrays[2]], out=[out, None]), gpu.get(arrays[:3]))
            assert several[0] is out and (out == given[5]).all() and (other[2] == given[2]).all()
            freed = gpu.zeros(5)
            freed.free()
            with pytest.raises(hearth.InvalidHandleError) as caught:
                await gpu.get([arrays[0], freed])
            assert any("arrays[1]" in note for note in caught.value.__notes__)
            missing = gpu.empty(1 << 50, np.uint8)
            with pytest.raises(hearth.OutOfMemoryError):
                await gpu.get([arrays[0], missing[:10]])
            assert await gpu.get([]) == [] and len(await gpu.get([arrays[2]] * 2000)) == 2000

    run(main)
