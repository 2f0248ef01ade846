"""Gauges that the processes of a device report, added up by tenant and for the device."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from hearth_proto.reasons import Refusal
from hearthd.front.counters import EVERYBODY, Number, numbers
from hearthd.front.supervisor.device import SERVING, Device
from hearthd.front.supervisor.worker import Worker

Gauges = Mapping[str, Number]

TIMEOUT = 1.0
"""Seconds that a process has to answer; one that does not is left out."""
_OF_THE_DEVICE = {"memory_free_bytes": min, "memory_total_bytes": max, "load_wait_longest_ns": max}
"""Gauges of the device itself, which every process sees, and maxima: not to be added up."""


async def ask(devices: Iterable[Device]) -> dict[tuple[int, str], Gauges]:
    """The gauges of each device and tenant whose processes answer in time."""
    asked = [(device.ordinal, worker) for device in devices for worker in device.running if worker.condition == SERVING]
    answers = await asyncio.gather(*(_of(worker) for _, worker in asked))
    found: dict[tuple[int, str], list[Gauges]] = {}
    for (ordinal, worker), gauges in zip(asked, answers, strict=True):
        if gauges is not None:
            found.setdefault((ordinal, label(worker)), []).append(gauges)
    return {place: together(each) for place, each in found.items()}


def label(worker: Worker) -> str:
    """The tenant that a worker's figures are those of."""
    return (worker.key.tenant if worker.key is not None else "") or EVERYBODY


async def _of(worker: Worker) -> Gauges | None:
    if worker.link is None:
        return None
    try:
        return dict(numbers((await asyncio.wait_for(worker.link.stats(), TIMEOUT)).get("gauges")))
    except (TimeoutError, Refusal, ValueError):
        return None


def together(gauges: Iterable[Gauges]) -> Gauges:
    """Adds up the gauges of several processes of one device."""
    total: dict[str, Number] = {}
    for each in gauges:
        for name, value in each.items():
            known = total.get(name)
            if known is None:
                total[name] = value
            else:
                total[name] = _OF_THE_DEVICE[name](known, value) if name in _OF_THE_DEVICE else known + value
    return total
