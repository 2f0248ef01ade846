"""HTTP beside gRPC: probes, metrics and a status document."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from hearth_proto.reasons import Refusal
from hearthd.front import gauges, health
from hearthd.front.addresses import Address
from hearthd.front.auth import Authenticator
from hearthd.front.listen import listen_error
from hearthd.front.metrics import Metrics
from hearthd.front.sessions import SessionTable
from hearthd.front.status import NodeStatus
from hearthd.front.supervisor import STATE_NAMES, Supervisor
from hearthd.front.tenants import EVERYONE, Tenant
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
        status: NodeStatus,
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
        self._status = status
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
                web.get("/status", self._status_page),
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
        stats, readings = await asyncio.gather(gauges.ask(self._supervisor), self._status.readings())
        viewer = _VIEWER.get()
        families = self._metrics.families(self._supervisor, self._sessions, stats, readings, viewer)
        page, content_type = await asyncio.to_thread(self._metrics.render, families, request.headers.get("Accept", ""))
        return web.Response(body=page, headers={"Content-Type": content_type})

    async def _status_page(self, request: web.Request) -> web.Response:
        return web.json_response(await self._status.document(_VIEWER.get()))
