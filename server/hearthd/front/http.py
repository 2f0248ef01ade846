"""HTTP beside gRPC: probes, metrics and a status document."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from hearth_proto.reasons import Refusal
from hearthd import version
from hearthd.front import gauges, health
from hearthd.front.addresses import Address
from hearthd.front.auth import Authenticator
from hearthd.front.listen import listen_error
from hearthd.front.metrics import Metrics
from hearthd.front.nvml import Nvml, Reading
from hearthd.front.sessions import SessionTable
from hearthd.front.supervisor import STATE_NAMES, Device, Supervisor
from hearthd.front.tenants import EVERYONE, Tenant, sees_tenant
from hearthd.front.tls import Certificates

_HEALTH = ("/healthz", "/readyz")
_VIEWER: ContextVar[Tenant] = ContextVar("viewer", default=EVERYONE)
"""Who asks for the page."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _OurFaults(logging.Filter):
    """Lets pass what aiohttp logs, with a traceback, but of bytes that are no request: whoever sends them is told so,
    and could fill the log with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


class HttpServer:
    """/healthz, /readyz, /metrics and /status. Where it is `guarded`, all but health asks for a tenant's token."""

    def __init__(
        self,
        supervisor: Supervisor,
        sessions: SessionTable,
        metrics: Metrics,
        auth: Authenticator,
        *,
        guarded: bool = False,
        certificates: Certificates | None = None,
    ) -> None:
        self._auth = auth
        self._guarded = guarded
        self._certificates = certificates
        self._supervisor = supervisor
        self._sessions = sessions
        self._metrics = metrics
        self._nvml = Nvml()
        self._started = time.time()
        self._runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._admit(request, handler)

        app = web.Application(middlewares=[admit])
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
        logging.getLogger("aiohttp.server").addFilter(_OurFaults())
        self._runner = web.AppRunner(self.application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        context = self._certificates.http() if self._certificates is not None else None
        site = web.TCPSite(self._runner, address.host, address.port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            raise listen_error(address, "http", error) from None
        return Address(address.host, int(self._runner.addresses[0][1]))

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self._nvml.close()

    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Finds out who asks, unless everybody may."""
        if self._certificates is not None:
            self._certificates.look()
        if self._guarded and request.path not in _HEALTH:
            try:
                peer = f"http:{request.remote or ''}"
                caller = await self._auth.bearer(request.headers.get("Authorization"), peer, request.path)
            except Refusal as refusal:
                headers = {"WWW-Authenticate": 'Bearer realm="hearth"'}
                if refusal.retry_after_s:
                    headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
                return web.json_response({"error": refusal.message, "fix": refusal.fix}, status=401, headers=headers)
            _VIEWER.set(caller.tenant)
        return await handler(request)

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
        stats, readings = await asyncio.gather(gauges.ask(self._supervisor), self._readings())
        viewer = _VIEWER.get()
        page = self._metrics.exposition(self._supervisor, self._sessions, stats, readings, viewer)
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _status(self, request: web.Request) -> web.Response:
        stats, readings = await asyncio.gather(gauges.ask(self._supervisor), self._readings())
        viewer = _VIEWER.get()
        body = {
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
        return web.json_response(body)

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

    async def _readings(self) -> dict[int, Reading]:
        gpus = {d.ordinal: d.properties.uuid for d in self._supervisor if d.properties.backend == "cuda"}
        if not gpus:
            return {}

        def read() -> dict[int, Reading]:
            found = {ordinal: self._nvml.read(uuid) for ordinal, uuid in gpus.items()}
            return {ordinal: reading for ordinal, reading in found.items() if reading is not None}

        return await asyncio.to_thread(read)
