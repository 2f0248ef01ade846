"""Gauges that the processes of a device report, summed by tenant and for the device."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from hearth_proto.reasons import Refusal
from hearthd.front.counters import SHARED_TENANT, Number, numbers
from hearthd.front.supervisor.device import SERVING, Device
from hearthd.front.supervisor.worker import Worker

Gauges = Mapping[str, Number]

TIMEOUT = 1.0
"""Time, in seconds, for a process to answer. A process that does not answer in time is left out."""
_COMBINERS = {"memory_free_bytes": min, "memory_total_bytes": max, "load_wait_longest_ns": max}
"""Gauges that must not be summed, with the function that combines them: values of the device that every process
reports, and maxima."""


async def collect(devices: Iterable[Device]) -> dict[tuple[int, str], Gauges]:
    """Returns the gauges by device and tenant, of all processes that answer in time."""
    queried = [
        (device.ordinal, worker) for device in devices for worker in device.running if worker.condition == SERVING
    ]
    answers = await asyncio.gather(*(_query(worker) for _, worker in queried))
    by_tenant: dict[tuple[int, str], list[Gauges]] = {}
    for (ordinal, worker), gauges in zip(queried, answers, strict=True):
        if gauges is not None:
            by_tenant.setdefault((ordinal, label(worker)), []).append(gauges)
    return {key: combine(gauges) for key, gauges in by_tenant.items()}


def label(worker: Worker) -> str:
    """Returns the tenant to which a worker's gauges are attributed."""
    return (worker.key.tenant if worker.key is not None else "") or SHARED_TENANT


async def _query(worker: Worker) -> Gauges | None:
    if worker.link is None:
        return None
    try:
        return dict(numbers((await asyncio.wait_for(worker.link.stats(), TIMEOUT)).get("gauges")))
    except (TimeoutError, Refusal, ValueError):
        return None


def combine(gauges: Iterable[Gauges]) -> Gauges:
    """Combines the gauges of several processes of one device."""
    total: dict[str, Number] = {}
    for process_gauges in gauges:
        for name, value in process_gauges.items():
            total_so_far = total.get(name)
            if total_so_far is None:
                total[name] = value
            else:
                total[name] = _COMBINERS[name](total_so_far, value) if name in _COMBINERS else total_so_far + value
    return total
