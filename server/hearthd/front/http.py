"""HTTP beside gRPC: probes, metrics and a status document."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from typing import Any

from aiohttp import web

from hearth_proto.reasons import Refusal
from hearthd import version
from hearthd.front import health
from hearthd.front.addresses import Address
from hearthd.front.listen import listen_error
from hearthd.front.metrics import Metrics
from hearthd.front.nvml import Nvml, Reading
from hearthd.front.sessions import SessionTable
from hearthd.front.supervisor import SERVING, STATE_NAMES, Device, Supervisor

STATS_TIMEOUT = 1.0


class HttpServer:
    """/healthz, /readyz, /metrics and /status."""

    def __init__(self, supervisor: Supervisor, sessions: SessionTable, metrics: Metrics) -> None:
        self._supervisor = supervisor
        self._sessions = sessions
        self._metrics = metrics
        self._nvml = Nvml()
        self._started = time.time()
        self._runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics_page),
                web.get("/status", self._status),
            ]
        )
        return app

    async def start(self, address: Address) -> Address:
        """Listens; returns the address with its port. Raises `ListenError`."""
        self._runner = web.AppRunner(self.application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address.host, address.port)
        try:
            await site.start()
        except OSError as error:
            raise listen_error(address, "http", error) from None
        return Address(address.host, int(self._runner.addresses[0][1]))

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self._nvml.close()

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        ready = health.ready(self._supervisor, self._sessions.draining)
        body = {
            "ready": ready,
            "draining": self._sessions.draining,
            "devices": [
                {"ordinal": device.ordinal, "state": STATE_NAMES[device.state], "detail": device.detail}
                for device in self._supervisor
            ],
        }
        return web.json_response(body, status=200 if ready else 503)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        stats, readings = await asyncio.gather(self._stats(), self._readings())
        page = self._metrics.exposition(self._supervisor, self._sessions, stats, readings)
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _status(self, request: web.Request) -> web.Response:
        stats, readings = await asyncio.gather(self._stats(), self._readings())
        body = {
            "node": socket.gethostname(),
            "version": version(),
            "started_unix": self._started,
            "uptime_seconds": round(time.time() - self._started, 3),
            "ready": health.ready(self._supervisor, self._sessions.draining),
            "draining": self._sessions.draining,
            "devices": [
                self._device(device, stats.get(device.ordinal, {}), readings.get(device.ordinal))
                for device in self._supervisor
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
                }
                for session in self._sessions
            ],
        }
        return web.json_response(body)

    def _device(self, device: Device, stats: dict[str, Any], reading: Reading | None) -> dict[str, Any]:
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
            "gauges": stats.get("gauges", {}),
        }

    async def _stats(self) -> dict[int, dict[str, Any]]:
        """What every device process that answers in time says of itself."""

        async def ask(device: Device) -> tuple[int, dict[str, Any]]:
            link = device.link
            if device.state != SERVING or link is None:
                return device.ordinal, {}
            try:
                return device.ordinal, await asyncio.wait_for(link.stats(), STATS_TIMEOUT)
            except (TimeoutError, Refusal, ValueError):
                return device.ordinal, {}

        return dict(await asyncio.gather(*(ask(device) for device in self._supervisor)))

    async def _readings(self) -> dict[int, Reading]:
        gpus = {d.ordinal: d.properties.uuid for d in self._supervisor if d.properties.backend == "cuda"}
        if not gpus:
            return {}

        def read() -> dict[int, Reading]:
            found = {ordinal: self._nvml.read(uuid) for ordinal, uuid in gpus.items()}
            return {ordinal: reading for ordinal, reading in found.items() if reading is not None}

        return await asyncio.to_thread(read)
