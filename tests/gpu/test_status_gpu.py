"""GPUs in the status document: NVML's readings, memory by tenant, throughput. Requires HEARTH_TEST_BACKEND=cuda."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.daemon.harness import BACKEND, DaemonProcess, wait_until
from tests.support.daemon.kernels import common

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(BACKEND != "cuda", reason="set HEARTH_TEST_BACKEND=cuda")]

SIZE = 1 << 30
CYCLES = 100_000_000


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    process = DaemonProcess(tmp_path)
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


def test_a_gpu_at_work(daemon: DaemonProcess) -> None:
    with daemon.connect() as node:
        gpu = node.device(0)
        x = gpu.empty(SIZE, np.uint8)
        spin = common(gpu, "spin")

        def rates() -> dict[str, float]:
            return daemon.status()["devices"][0]["throughput"]

        def busy() -> bool:
            spin((1,), (1,), (np.int64(CYCLES),))
            gpu.synchronize()
            x.set(np.zeros(SIZE, np.uint8))
            gpu.synchronize()
            return (rates()["busy_ratio"] or 0) > 0.05

        wait_until(busy, "a device that is busy", 30)
        device = daemon.status()["devices"][0]
        assert device["memory_by_tenant"] == [{"tenant": "default", "bytes": SIZE}]
        assert device["memory"]["used_bytes"] >= SIZE and device["memory"]["total_bytes"] > SIZE
        assert device["memory"]["total_bytes"] == pytest.approx(gpu.properties.total_memory, rel=0.2)
        pynvml = pytest.importorskip("pynvml")
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.properties.uuid)
            degrees = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
            fastest = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        finally:
            pynvml.nvmlShutdown()
        assert abs(device["gpu"]["temperature"] - degrees) <= 15 and 1e8 < device["gpu"]["sm_clock"] <= 1.01e6 * fastest
        assert 0.02 < device["throughput"]["busy_ratio"] <= 1
        assert rates()["received_bytes_per_second"] > SIZE / 100
        begin, asked = time.monotonic(), 0
        while time.monotonic() < begin + 12:  # longer than the time that rates are taken over
            spin((1,), (1,), (np.int64(1000),))
            gpu.synchronize()
            asked += 1
            time.sleep(0.02)
        per_second = asked / (time.monotonic() - begin)
        assert 0.5 * per_second < rates()["launches_per_second"] < 2 * per_second
