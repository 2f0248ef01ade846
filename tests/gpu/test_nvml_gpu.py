"""NVML's readings of a real GPU: complete, in base units, quickly available, and shown in the status document."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hearthd.front.gpu import health
from hearthd.front.gpu.nvml import Nvml
from hearthd.front.gpu.reading import THROTTLING, GpuReading
from hearthd.front.gpu.watch import GpuWatch
from hearthd.front.metrics import gpu
from hearthd.front.metrics.collector import Metrics
from tests.support.daemon.harness import BACKEND, DaemonProcess, wait_until
from tests.support.daemon.kernels import common
from tests.support.gpu.settling import finish

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer

pytestmark = pytest.mark.gpu

SOON_S = 0.25
SIZE = 1 << 30
CYCLES = 100_000_000
ALWAYS = ("memory_used", "memory_total", "utilization", "temperature", "power", "sm_clock", "memory_clock")
"""Readings that every GPU of the last ten years supports, except utilization under MIG."""


@pytest.fixture(scope="module")
def nvml() -> Iterator[Nvml]:
    made = Nvml()
    yield made
    made.close()


def read(nvml: Nvml, server: CudaServer) -> GpuReading:
    found = nvml.read(server.properties.uuid)
    assert found is not None
    return found


def test_readings_of_a_gpu(nvml: Nvml, server: CudaServer) -> None:
    reading = read(nvml, server)
    assert all(getattr(reading, name) is not None for name in ALWAYS), reading
    assert reading.memory_used is not None and reading.memory_total is not None
    total = server.memory_info().total
    assert total <= reading.memory_total <= 1.2 * total, "CUDA keeps some of it, ECC too"
    assert reading.memory_used < reading.memory_total
    assert 0 <= (reading.utilization or 0) <= 1 and 0 <= (reading.memory_utilization or 0) <= 1
    assert (reading.power or 0) > 1 and (reading.sm_clock or 0) >= 1e8 and (reading.memory_clock or 0) >= 1e8
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(server.properties.uuid)

    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, name)(handle, *arguments)
        except pynvml.NVMLError:
            return None

    degrees = ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
    milliwatts = ask("nvmlDeviceGetEnforcedPowerLimit")
    megahertz = [ask("nvmlDeviceGetMaxClockInfo", kind) for kind in (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)]
    pynvml.nvmlShutdown()
    assert abs((reading.temperature or 0) - degrees) <= 10
    assert reading.power_limit == (milliwatts and pytest.approx(milliwatts / 1000))
    assert milliwatts is None or (reading.power or 0) <= 1.5 * milliwatts / 1000
    for clock, most in zip((reading.sm_clock, reading.memory_clock), megahertz, strict=True):
        assert most is None or (clock or 0) <= 1.01e6 * most
    assert not reading.lost and reading.throttling.keys() == THROTTLING.keys()
    print(reading)


def test_gpu_under_test_is_healthy(nvml: Nvml, server: CudaServer) -> None:
    reading = read(nvml, server)
    assert health.hardware_fault(reading) == ""
    fenced: list[str] = []

    class Device:
        ordinal, sick = 0, ""

        def fence(self, why: str) -> None:
            fenced.append(why)

    async def readings() -> dict[int, GpuReading]:
        return {0: reading}

    GpuWatch([Device()], readings).check({0: reading})
    assert not fenced


def test_energy_and_times(nvml: Nvml, server: CudaServer) -> None:
    first = read(nvml, server)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        last = read(nvml, server)
        times.append(time.perf_counter() - begin)
    assert min(times) < SOON_S, times
    if first.energy is None:
        pytest.skip("this GPU does not count its energy")
    begin, start = time.perf_counter(), read(nvml, server)
    assert start.energy is not None and start.energy >= first.energy
    time.sleep(1.0)
    last = read(nvml, server)
    seconds = time.perf_counter() - begin
    assert last.energy is not None and start.power is not None and last.power is not None
    drawn = (last.energy - start.energy) / seconds
    assert min(start.power, last.power) / 4 < drawn < 4 * max(start.power, last.power), "joules agree with watts"


def test_memory_that_is_allocated_is_in_the_readings(nvml: Nvml, server: CudaServer, stream: Any) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("the readings count the memory of other tests as well")
    server.trim()
    before = read(nvml, server)
    memory = server.allocate(1 << 30, stream)
    during = read(nvml, server)
    server.free(memory, stream)
    finish(server, stream)
    server.trim()
    assert before.memory_used is not None and during.memory_used is not None
    assert during.memory_used - before.memory_used > 1 << 29


def test_metrics_page_has_the_readings(nvml: Nvml, server: CudaServer) -> None:
    reading = read(nvml, server)
    page, _ = Metrics.render(gpu.families({0: reading}))
    text = page.decode()
    for name, value in (
        ("hearth_gpu_memory_used_bytes", reading.memory_used),
        ("hearth_gpu_memory_total_bytes", reading.memory_total),
        ("hearth_gpu_power_watts", reading.power),
        ("hearth_gpu_temperature_celsius", reading.temperature),
        ("hearth_gpu_sm_clock_hertz", reading.sm_clock),
        ("hearth_gpu_healthy", 1),
    ):
        (line,) = (each for each in text.splitlines() if each.startswith(f'{name}{{device="0"}} '))
        assert float(line.split()[-1]) == value, line
    reasons = [each for each in text.splitlines() if each.startswith("hearth_gpu_throttled{")]
    assert len(reasons) == len(THROTTLING)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    process = DaemonProcess(tmp_path)
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


@pytest.mark.skipif(BACKEND != "cuda", reason="set HEARTH_TEST_BACKEND=cuda")
def test_status_of_a_gpu_at_work(daemon: DaemonProcess) -> None:
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
