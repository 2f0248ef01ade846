"""The present status of a node, for /readyz and /status over HTTP, and for GetStatus and health over gRPC."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections.abc import Callable
from typing import Any

from hearth_proto import VERSION
from hearthd.front.connections.descriptors import DescriptorBudget
from hearthd.front.counters import Counts
from hearthd.front.gpu.nvml import GpuReading, Nvml
from hearthd.front.rates import HISTORY_S
from hearthd.front.sessions.publications import Publication, PublicationRegistry
from hearthd.front.sessions.recent_traces import RecentTraces
from hearthd.front.sessions.session import Session
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor import fault_log, gauges
from hearthd.front.supervisor.supervisor import FENCED, SERVING, STATE_NAMES, Device, Supervisor
from hearthd.front.tenancy.tenants import Tenant, sees_tenant


def ready(supervisor: Supervisor, refuses_new: bool) -> bool:
    """Returns True if clients may send work here.

    At least one device, and every device that is not fenced, must serve. `refuses_new` is True if the daemon drains or
    is overloaded.
    """
    states = [device.state for device in supervisor]
    usable = [state for state in states if state != FENCED]
    return not refuses_new and bool(usable) and all(state == SERVING for state in usable)


def readiness(supervisor: Supervisor, sessions: SessionTable) -> dict[str, Any]:
    """Returns the document of `/readyz`: whether clients may send work here, and the reasons if not."""
    return {
        "ready": ready(supervisor, sessions.refuses_new),
        "draining": sessions.draining,
        "overloaded": sessions.overloaded(),
        "devices": [
            {"ordinal": device.ordinal, "state": STATE_NAMES[device.state], "detail": device.detail}
            for device in supervisor
        ],
    }


class NodeStatus:
    """The status of a daemon. Each request queries the device processes and NVML."""

    def __init__(
        self,
        supervisor: Supervisor,
        sessions: SessionTable,
        traces: RecentTraces,
        publications: PublicationRegistry,
        budget: Callable[[], DescriptorBudget | None] = lambda: None,
    ) -> None:
        """Creates the status. `budget` returns the division of the limit on open files."""
        self.traces = traces
        self._budget = budget
        self._supervisor = supervisor
        self._sessions = sessions
        self._publications = publications
        self._nvml: Nvml | None = None  # opened at the first request
        self._started = time.time()

    def close(self) -> None:
        """Shuts NVML down, if a request has opened it."""
        if self._nvml is not None:
            self._nvml.close()

    async def document(self, viewer: Tenant) -> dict[str, Any]:
        """Returns the status as a JSON document, restricted to what `viewer` may see.

        - `throughput`, for each device, covers the last ten seconds: commands received, kernels passed to the driver,
          bytes copied to and from the device, and the fraction of time in which sessions had work on the device.
        - `queue`: batches and calls that were accepted and not yet executed.
        - `memory_by_tenant`: bytes in buffers, as requested; tenants that the viewer may not see are left out.
        - `stuck`, for each process: sessions that were closed `seconds` ago and whose kernels have not ended.
        - `running`, for each device: kernels in flight, with the session of each, the seconds for which it has been
          running at least, and the launches known to be queued behind it.
        - `memory_bytes` and `device_share`, for each session: bytes in buffers on all devices, and device seconds per
          second over the last ten seconds.
        - `faults` and `traces`: the recent ones, newest first.
        - `published`: the published arrays, with the session that published each; `session`, `attached` and `grants`
          are None for arrays of tenants that the viewer may not see.
        - `descriptors`, for observers: the limit on open files, the limit that the configuration needs, and the number
          of connections left for each listener.

        Counters, gauges and queues cover the viewer's own share only, unless the viewer is an observer. Values that
        exist only for the device as a whole (throughput, losses, GPU readings) are then missing, so that the activity
        of other tenants cannot be computed as a difference.
        """
        stats, readings = await asyncio.gather(gauges.collect(self._supervisor), self.readings())
        visible, budget = self._supervisor.visible(viewer), self._budget()
        ordinals = {device.ordinal for device in visible}
        return {
            "node": socket.gethostname(),
            "version": VERSION,
            "started_unix": self._started,
            "uptime_seconds": round(time.time() - self._started, 3),
            "ready": ready(self._supervisor, self._sessions.refuses_new),
            "draining": self._sessions.draining,
            "overloaded": self._sessions.overloaded(),
            "descriptors": budget._asdict() if viewer.observes and budget is not None else None,
            "devices": [
                self._device(
                    device,
                    gauges.combine(
                        tenant_gauges
                        for (ordinal, tenant), tenant_gauges in stats.items()
                        if ordinal == device.ordinal and (viewer.observes or tenant == viewer.name)
                    ),
                    readings.get(device.ordinal) if viewer.observes else None,
                    viewer,
                )
                for device in visible
            ],
            "faults": fault_log.visible_to(viewer, (device.faults for device in visible)),
            "traces": self.traces.visible_to(viewer),
            "tenants": [
                {
                    "name": account.tenant.name,
                    "sessions": len(account.sessions),
                    "device_seconds": round(account.device_ns / 1e9, 6),
                    "device_seconds_allowed": account.tenant.quotas.gpu_seconds or None,
                    "queued_commands": account.queue.commands,
                    "queued_bytes": account.queue.bytes,
                }
                for account in self._sessions.accounts
                if sees_tenant(viewer, account.tenant.name)
            ],
            "sessions": [
                {
                    "id": session.id,
                    "client": session.client_name,
                    "process": session.client_process,
                    "client_version": session.client_version,
                    "opened_unix": session.opened_unix_ns / 1e9,
                    "connected": session.connections > 0,
                    "lease_left_seconds": round(self._sessions.lease_left(session), 3),
                    "devices": sorted(session.channels),
                    "tenant": session.tenant.name,
                    "dedicated": session.dedicated,
                    "device_seconds": round(session.device_ns / 1e9, 6),
                    "device_share": _device_share(session),
                    "memory_bytes": self._memory(session),
                }
                for session in self._sessions
                if sees_tenant(viewer, session.tenant.name)
            ],
            "published": [
                _published(publication, viewer)
                for publication in self._publications.visible_to(viewer)
                if publication.device in ordinals
            ],
        }

    def history(self, viewer: Tenant) -> dict[str, Any]:
        """Returns the throughput of each device over the last minutes as a JSON document.

        Each entry has its age in seconds, and the rates with the names of `throughput`. Without devices for a viewer
        that is no observer.
        """
        now = time.monotonic()
        devices = self._supervisor.visible(viewer) if viewer.observes else ()
        return {"seconds": HISTORY_S, "devices": [_history(device, now) for device in devices]}

    async def readings(self) -> dict[int, GpuReading]:
        """Returns NVML's readings, by device ordinal. They are read in a thread."""
        cuda_devices = [device for device in self._supervisor if device.properties.backend == "cuda"]
        gpus = {device.ordinal: device.properties.uuid for device in cuda_devices}
        if not gpus:
            return {}

        nvml = self._nvml = self._nvml or Nvml()

        def read() -> dict[int, GpuReading]:
            readings = {ordinal: nvml.read(uuid) for ordinal, uuid in gpus.items()}
            return {ordinal: reading for ordinal, reading in readings.items() if reading is not None}

        return await asyncio.to_thread(read)

    def _device(
        self, device: Device, stats: gauges.Gauges, reading: GpuReading | None, viewer: Tenant
    ) -> dict[str, Any]:
        properties, description, observes = device.properties, device.describe(viewer), viewer.observes
        totals = device.totals.counts() if observes else device.totals.by_tenant().get(viewer.name, Counts())
        return {
            "ordinal": device.ordinal,
            "name": properties.name,
            "backend": properties.backend,
            "confinement": properties.confinement,
            "uuid": properties.uuid,
            "state": STATE_NAMES[device.state],
            "detail": device.detail,
            "generation": device.generation if observes else description.generation,
            "pid": device.pid if observes else description.pid,
            "restarts": dict(device.restarts) if observes else {},
            "memory": {
                "total_bytes": properties.total_memory,
                "used_bytes": reading.memory_used if reading else None,
            },
            "memory_by_tenant": [
                {"tenant": name, "bytes": size}
                for name, size in device.tenant_memory.by_tenant().items()
                if sees_tenant(viewer, name)
            ],
            "throughput": _throughput(device) if observes else dict.fromkeys(_THROUGHPUT),
            "queue": self._queue(device, viewer),
            "running": self._running(device, viewer),
            "gpu": dataclasses.asdict(reading) if reading else None,
            "counters": totals.counters,
            "gauges": dict(stats),
            "processes": [
                {
                    "pid": worker.pid,
                    "generation": worker.generation,
                    "state": STATE_NAMES[worker.condition],
                    "detail": worker.reason,
                    "tenant": worker.key.tenant if worker.key is not None else None,
                    "session": worker.key.session if worker.key is not None else "",
                    "memory_granted_bytes": device.memory.granted(worker.generation),
                    "memory_held_bytes": device.memory.held(worker.generation),
                    "stuck": [
                        {
                            "session": lingering.session,
                            "tenant": lingering.tenant,
                            "kernels": list(lingering.kernels),
                            "seconds": round(seconds, 3),
                        }
                        for lingering, seconds in worker.overdue_sessions()
                        if sees_tenant(viewer, lingering.tenant)
                    ],
                }
                for worker in device.workers
                if worker.key is None or sees_tenant(viewer, worker.key.tenant)
            ],
        }

    def _running(self, device: Device, viewer: Tenant) -> list[dict[str, Any]]:
        """Returns the kernels in flight whose sessions the viewer may see, longest first."""
        names = {session.id: session.client_name for session in self._sessions}
        running: list[dict[str, Any]] = []
        for worker in device.running:
            if worker.link is None:
                continue
            tenants = {channel.session_id: channel.tenant for channel in worker.link.channels.values()}
            running += [
                {
                    "kernel": kernel.kernel,
                    "session": kernel.session,
                    "client": names.get(kernel.session, ""),
                    "tenant": tenants[kernel.session],
                    "seconds": kernel.seconds,
                    "queued": kernel.queued,
                }
                for kernel in device.reports.running(worker.generation, tenants)
                if tenants[kernel.session] == viewer.name or viewer.observes
            ]
        return sorted(running, key=lambda kernel: -kernel["seconds"])[:_MAX_RUNNING]

    def _memory(self, session: Session) -> int:
        """Returns the bytes in buffers of a session on all devices, by the last reports of their processes."""
        return sum(
            self._supervisor.find(ordinal).reports.memory(channel.link.generation, channel.number)
            for ordinal, channel in session.channels.items()
        )

    def _queue(self, device: Device, viewer: Tenant) -> dict[str, int]:
        channels = [
            session.channels[device.ordinal]
            for session in self._sessions
            if device.ordinal in session.channels and sees_tenant(viewer, session.tenant.name)
        ]
        return {
            "commands": sum(len(channel.batches) + channel.calls for channel in channels),
            "bytes": sum(channel.batches.bytes for channel in channels),
        }


_MAX_RUNNING = 32
"""Maximum number of kernels in flight that are listed for each device."""


def _published(publication: Publication, viewer: Tenant) -> dict[str, Any]:
    shape, dtype = publication.array or (None, None)
    is_visible = sees_tenant(viewer, publication.tenant)
    return {
        "name": publication.name,
        "tenant": publication.tenant,
        "device": publication.device,
        "bytes": publication.size,
        "shape": shape,
        "dtype": dtype,
        "session": publication.channel.session_id if is_visible else None,
        "attached": publication.sessions if is_visible else None,
        "grants": sorted(publication.grants) if is_visible else None,
        "since_unix": publication.since_unix,
    }


def _device_share(session: Session) -> float:
    """Returns the device seconds per second of a session, over the last seconds. It may exceed 1 on several devices."""
    now = time.monotonic()
    session.rates.sample(now, {"device_ns": session.device_ns})
    return round(session.rates.per_second(now).get("device_ns", 0.0) / 1e9, 4)


_RATES = {
    "commands_per_second": "commands",
    "launches_per_second": "kernel_launches",
    "received_bytes_per_second": "host_to_device_bytes",
    "sent_bytes_per_second": "device_to_host_bytes",
}
"""Names of rates in the document, with the names of their counters."""
_THROUGHPUT = (*_RATES, "busy_ratio")


def _throughput(device: Device) -> dict[str, float | None]:
    return _format_rates(device.rates.per_second(time.monotonic()))


def _format_rates(rates: dict[str, float]) -> dict[str, float | None]:
    busy = rates.get("device_busy_ns")
    return {
        **{name: round(rates.get(counter, 0.0), 3) for name, counter in _RATES.items()},
        "busy_ratio": None if busy is None else round(min(1.0, busy / 1e9), 4),
    }


def _history(device: Device, now: float) -> dict[str, Any]:
    """Returns a device's history, with a list for each quantity."""
    entries = device.history.since(now)
    formatted = [_format_rates(rates) for _, rates in entries]
    return {
        "ordinal": device.ordinal,
        "age_seconds": [round(age, 2) for age, _ in entries],
        **{name: [rates[name] for rates in formatted] for name in _THROUGHPUT},
    }
