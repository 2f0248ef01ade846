"""GPU watch: reads NVML periodically, and fences GPUs with a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import structlog

from hearthd.front.gpu import health
from hearthd.front.gpu.reading import GpuReading

log = structlog.get_logger("hearthd.gpu")

INTERVAL = 10.0
"""Interval between readings, in seconds. A reading takes a thread some milliseconds, and does not affect the GPU."""


class WatchedDevice(Protocol):
    """A device, as the watch uses it."""

    ordinal: int
    sick: str

    def fence(self, fault: str) -> None:
        """Sets `sick` to `fault`. No new session is accepted until an operator restarts the device."""
        ...


class GpuWatch:
    """Watches the GPUs of the node. Belongs to the event loop."""

    def __init__(
        self, devices: Iterable[WatchedDevice], read: Callable[[], Awaitable[Mapping[int, GpuReading]]]
    ) -> None:
        self._devices = devices
        self._read = read
        self._fenced: set[int] = set()
        self._ignored: dict[int, dict[int, int]] = {}
        self._problems: dict[int, list[str]] = {}

    async def run(self) -> None:
        """Reads the GPUs periodically, until it is cancelled."""
        while True:
            try:
                self.check(await self._read())
            except Exception:  # the watch continues after any error of the driver
                log.exception("gpu_watch")
            await asyncio.sleep(INTERVAL)

    def check(self, readings: Mapping[int, GpuReading]) -> None:
        """Fences the devices whose readings show a fault, and logs changed problems of the others."""
        for device in self._devices:
            reading = readings.get(device.ordinal)
            if reading is None:
                continue
            if device.ordinal in self._fenced and not device.sick:  # an operator has restarted the device since
                self._fenced.discard(device.ordinal)
                self._ignored[device.ordinal] = dict(reading.xids)
            fault = health.hardware_fault(reading, self._ignored.get(device.ordinal, {}))
            if fault and not device.sick:
                self._fenced.add(device.ordinal)
                device.fence(fault)
            problems = health.problems(reading)
            if problems != self._problems.get(device.ordinal, []):
                self._problems[device.ordinal] = problems
                log.warning("gpu_complaints", device=device.ordinal, problems=problems)
