"""What there is to see of a node at one time: HTTP's /status, gRPC's GetStatus."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from typing import Any

from hearthd import version
from hearthd.front import gauges, health
from hearthd.front.nvml import Nvml, Reading
from hearthd.front.sessions import SessionTable
from hearthd.front.supervisor import STATE_NAMES, Device, Supervisor
from hearthd.front.tenants import Tenant, sees_tenant


class NodeStatus:
    """Of one daemon. Asks the device processes and NVML each time."""

    def __init__(self, supervisor: Supervisor, sessions: SessionTable) -> None:
        self._supervisor = supervisor
        self._sessions = sessions
        self._nvml: Nvml | None = None  # not before somebody asks
        self._started = time.time()

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()

    async def document(self, viewer: Tenant) -> dict[str, Any]:
        """As far as `viewer` may see; what JSON has."""
        stats, readings = await asyncio.gather(gauges.ask(self._supervisor), self.readings())
        return {
            "node": socket.gethostname(),
            "version": version(),
            "started_unix": self._started,
            "uptime_seconds": round(time.time() - self._started, 3),
            "ready": health.ready(self._supervisor, self._sessions.draining),
            "draining": self._sessions.draining,
            "devices": [
                self._device(
                    device,
                    gauges.together(each for (ordinal, _), each in stats.items() if ordinal == device.ordinal),
                    readings.get(device.ordinal),
                    viewer,
                )
                for device in self._supervisor.visible(viewer)
            ],
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
                    "client_version": session.client_version,
                    "opened_unix": session.opened_unix_ns / 1e9,
                    "connected": session.connections > 0,
                    "lease_left_seconds": round(self._sessions.lease_left(session), 3),
                    "devices": sorted(session.channels),
                    "tenant": session.tenant.name,
                    "dedicated": session.dedicated,
                    "device_seconds": round(session.device_ns / 1e9, 6),
                }
                for session in self._sessions
                if sees_tenant(viewer, session.tenant.name)
            ],
        }

    async def readings(self) -> dict[int, Reading]:
        """NVML's, by ordinal."""
        gpus = {d.ordinal: d.properties.uuid for d in self._supervisor if d.properties.backend == "cuda"}
        if not gpus:
            return {}

        nvml = self._nvml = self._nvml or Nvml()

        def read() -> dict[int, Reading]:
            found = {ordinal: nvml.read(uuid) for ordinal, uuid in gpus.items()}
            return {ordinal: reading for ordinal, reading in found.items() if reading is not None}

        return await asyncio.to_thread(read)

    def _device(self, device: Device, stats: gauges.Gauges, reading: Reading | None, viewer: Tenant) -> dict[str, Any]:
        properties = device.properties
        return {
            "ordinal": device.ordinal,
            "name": properties.name,
            "backend": properties.backend,
            "uuid": properties.uuid,
            "state": STATE_NAMES[device.state],
            "detail": device.detail,
            "generation": device.generation,
            "pid": device.pid,
            "restarts": dict(device.restarts),
            "memory": {
                "total_bytes": properties.total_memory,
                "used_bytes": reading.memory_used if reading else None,
            },
            "gpu": dataclasses.asdict(reading) if reading else None,
            "counters": device.totals.counts().counters,
            "gauges": dict(stats),
            "processes": [
                {
                    "pid": worker.pid,
                    "generation": worker.generation,
                    "state": STATE_NAMES[worker.state],
                    "detail": worker.detail,
                    "tenant": worker.key.tenant if worker.key is not None else None,
                    "session": worker.key.session if worker.key is not None else "",
                    "memory_granted_bytes": device.memory.granted(worker.generation),
                    "memory_held_bytes": device.memory.held(worker.generation),
                }
                for worker in device.workers
                if worker.key is None or sees_tenant(viewer, worker.key.tenant)
            ],
        }
