"""Durable arrays on a GPU: a fault, a hang and a kill; consistent copies of two arrays; and durations of large
copies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from tests.support.daemon.durables import FAR, FAULTS, MIB, QUICK, durable_files, lose, noise, wait_serving
from tests.support.daemon.harness import BACKEND, DaemonProcess
from tests.support.daemon.kernels import gated

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(BACKEND != "cuda", reason="set HEARTH_TEST_BACKEND=cuda")]


@pytest.fixture
def lossy(tmp_path: Path) -> Iterator[DaemonProcess]:
    process = DaemonProcess(tmp_path, {"devices": QUICK})
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


def test_restore_after_a_sticky_error_and_a_hang(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        host, matrix = noise(33 * MIB + 3), noise(1000 * 37).reshape(1000, 37)
        x, pitched = gpu.durable(gpu.asarray(host), gpu.empty_pitched(matrix.shape, np.uint8))
        pitched.set(matrix)
        gpu.checkpoint()
        gpu.synchronize()
        kernels = gpu.RawModule(code=FAULTS)
        kernels.get_function("wild")((1,), (1,), (gpu.zeros(8, np.int32), FAR))
        with pytest.raises(hearth.DeviceLostError):
            gpu.synchronize()
        np.testing.assert_array_equal(x.get(), host)
        kernels.get_function("endless")((1,), (1,), (gpu.zeros(8, np.int32),), timeout=0.2)
        with pytest.raises(hearth.DeviceLostError):
            gpu.synchronize()
        np.testing.assert_array_equal(x.get(), host)
        np.testing.assert_array_equal(pitched.get(), matrix)
        assert gpu.generation == 3


def test_a_copy_has_the_contents_at_its_point_of_the_stream(lossy: DaemonProcess) -> None:
    """Writers follow directly after the copy, on its stream and on another one; a long kernel delays neither."""
    with lossy.connect() as node:
        gpu = node.device(0)
        set_all = gpu.RawModule(code=FAULTS).get_function("set_all")
        n = 128 * MIB // 4  # more than may be copied as one
        x, y = gpu.durable(gpu.zeros(n, np.int32), gpu.zeros(3, np.int32))
        side = gpu.stream()
        for value in range(1, 6):
            for array in (x, y):
                set_all((256,), (256,), (array, np.int32(array.size), np.int32(value)))
            gpu.checkpoint(x, y)
            set_all((256,), (256,), (x, np.int32(n), np.int32(-1)), stream=side)
            y.fill(-1)
            gpu.synchronize()
            lose(lossy, gpu)
            assert (x.get() == value).all() and (y.get() == value).all()
        done = lossy.counter("checkpoints")
        with gated(gpu) as gate:
            y.fill(7)
            y.checkpoint()
            gate.hold()
            gpu.flush()
            deadline = time.monotonic() + 20
            while lossy.counter("checkpoints") == done:
                assert time.monotonic() < deadline, "the copy waits for later work"
            os.kill(lossy.device_pid(), signal.SIGKILL)
            wait_serving(gpu)
            assert (y.get() == 7).all()


def test_large_copies(lossy: DaemonProcess, record_property: Callable[[str, object], None]) -> None:
    """Reports durations, which -rA or the junit report shows."""
    with lossy.connect() as node:
        gpu = node.device(0)
        x = gpu.zeros(1 << 30, np.uint8)
        gpu.synchronize()
        figures = {}
        for name in ("first", "second", "third", "fourth"):
            begin = time.perf_counter()
            if name == "first":
                gpu.durable(x)
            else:
                x.checkpoint()
            gpu.synchronize()
            figures[f"{name} copy of 1 GiB, s"] = round(time.perf_counter() - begin, 4)
        x.fill(5)
        x.checkpoint()
        gpu.synchronize()
        begin = time.perf_counter()
        lose(lossy, gpu)
        assert int(x[-3:].get().sum()) == 15
        figures["killed to 1 GiB back, s"] = round(time.perf_counter() - begin, 4)
        for name, value in figures.items():
            record_property(name, value)
            print(f"{name}: {value}")
        assert durable_files(lossy.process.pid).bytes == 2 << 30
