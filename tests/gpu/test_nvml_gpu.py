"""NVML's readings of a real GPU: complete, in base units, and quickly available."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from hearthd.front.gpu import health
from hearthd.front.gpu.nvml import Nvml
from hearthd.front.gpu.reading import THROTTLING, GpuReading
from hearthd.front.gpu.watch import GpuWatch
from hearthd.front.metrics import gpu
from hearthd.front.metrics.collector import Metrics

if TYPE_CHECKING:
    from hearthd.device.cuda.server import CudaServer

pytestmark = pytest.mark.gpu

SOON_S = 0.25
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
    assert 0 < reading.memory_used < reading.memory_total and reading.memory_total > 1 << 30
    assert 0 <= (reading.utilization or 0) <= 1 and 5 < (reading.temperature or 0) < 110
    assert 1 < (reading.power or 0) <= 2 * (reading.power_limit or 2000) and 1e8 < (reading.sm_clock or 0) < 1e10
    assert not reading.lost and reading.throttling.keys() == THROTTLING.keys()
    print(reading)


def test_a_gpu_that_runs_tests_is_well(nvml: Nvml, server: CudaServer) -> None:
    reading = read(nvml, server)
    assert health.sickness(reading) == ""
    fenced: list[str] = []

    class Device:
        ordinal, sick = 0, ""

        def fence(self, why: str) -> None:
            fenced.append(why)

    async def readings() -> dict[int, GpuReading]:
        return {0: reading}

    GpuWatch([Device()], readings).look({0: reading})
    assert not fenced


def test_energy_and_times(nvml: Nvml, server: CudaServer) -> None:
    first = read(nvml, server)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        last = read(nvml, server)
        times.append(time.perf_counter() - begin)
    assert min(times) < SOON_S, times
    if first.energy is not None and last.energy is not None:
        assert last.energy >= first.energy > 0


def test_the_page_has_them(nvml: Nvml, server: CudaServer) -> None:
    page, _ = Metrics.render(gpu.families({0: read(nvml, server)}))
    text = page.decode()
    for name in (
        "hearth_gpu_memory_used_bytes",
        "hearth_gpu_power_watts",
        "hearth_gpu_healthy",
        "hearth_gpu_throttled",
    ):
        assert f"\n{name}{{" in text, name
