"""HTTP beside gRPC: probes, metrics, a status document, and a page that shows it."""

from __future__ import annotations

import asyncio
import json
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
from hearthd.front.http.cached import CachedAnswer
from hearthd.front.http.page import Page
from hearthd.front.http.trace_download import TraceDownload
from hearthd.front.listen import listen_error
from hearthd.front.metrics import Metrics
from hearthd.front.sessions import SessionTable
from hearthd.front.status import NodeStatus
from hearthd.front.supervisor import STATE_NAMES, Supervisor
from hearthd.front.tenants import EVERYONE, Tenant
from hearthd.front.tls import Certificates

PROBES = ("/healthz", "/readyz")
_VIEWER: ContextVar[Tenant] = ContextVar("viewer", default=EVERYONE)
"""Who asks for the page."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""Of every answer that does not say otherwise."""
_MAX_AGE = 10.0
"""Seconds; nobody gets a status document that is older."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _OurFaults(logging.Filter):
    """Lets pass what aiohttp logs, with a traceback, but of bytes that are no request: whoever sends them is told so,
    and could fill the log with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


class HttpServer:
    """/healthz, /readyz, /metrics, /status, /traces/ID.json, and the page at /. Where it is `guarded`, all but health
    and the page, which has no data in it, asks for a tenant's token."""

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
        self.guarded = guarded
        self._certificates = certificates
        self._supervisor = supervisor
        self._sessions = sessions
        self._metrics = metrics
        self._status = status
        self._runner: web.AppRunner | None = None
        self._page = Page(guarded=guarded)
        self._documents: dict[Tenant, CachedAnswer[bytes]] = {}
        self._downloads = TraceDownload()

    def application(self) -> web.Application:
        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._admit(request, handler)

        async def complete(request: web.Request, response: web.StreamResponse) -> None:
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
            response.headers["Server"] = "hearthd"  # and not which versions of what

        app = web.Application(middlewares=[admit])
        app.on_response_prepare.append(complete)
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics_page),
                web.get("/status", self._status_document),
                web.get(r"/traces/{id:[A-Za-z0-9_-]{1,64}}.json", self._trace),
                *(web.get(path, self._page.answer) for path in self._page.paths),
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
        for answer in self._documents.values():
            answer.close()

    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Finds out who asks, unless everybody may."""
        if self._certificates is not None:
            self._certificates.look()
        if self.guarded and request.path not in PROBES and request.path not in self._page.paths:
            try:
                peer = f"http:{request.remote or ''}"
                caller = await self._auth.bearer(request.headers.get("Authorization"), peer, request.path)
            except Refusal as refusal:
                headers = {"WWW-Authenticate": 'Bearer realm="hearth"'}
                if refusal.retry_after_s:
                    headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
                return web.json_response({"error": refusal.message, "fix": refusal.fix}, status=401, headers=headers)
            _VIEWER.set(caller.tenant)
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            return _refused(request, error)

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

    async def _status_document(self, request: web.Request) -> web.Response:
        viewer = _VIEWER.get()
        asked = request.query.get("max_age")
        if asked is None:
            return web.json_response(await self._status.document(viewer))
        try:
            max_age = float(asked)
        except ValueError:
            max_age = math.nan
        if not 0 <= max_age <= _MAX_AGE:
            body = {
                "error": f"max_age is {asked[:40]!r}.",
                "fix": f"Give seconds from 0 to {_MAX_AGE:g}: how old the document may be.",
            }
            return web.json_response(body, status=400)
        return web.Response(body=await self._document(viewer, max_age), content_type="application/json")

    async def _document(self, viewer: Tenant, max_age: float) -> bytes:
        """However many pages a tenant leaves open, its document is made once in `max_age` seconds."""
        for other in [other for other, answer in self._documents.items() if answer.age > _MAX_AGE]:
            del self._documents[other]
        answer = self._documents.get(viewer)
        if answer is None:

            async def find() -> bytes:
                return json.dumps(await self._status.document(viewer)).encode()

            answer = self._documents[viewer] = CachedAnswer(find)
        return await answer.get(max_age)

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        trace = self._status.traces.find(request.match_info["id"], _VIEWER.get())
        if trace is None:
            body = {
                "error": "There is no such trace.",
                "fix": "Look at `traces` in /status: the last ones are kept, for an hour.",
            }
            return web.json_response(body, status=404)
        device = self._supervisor.find(trace.device)
        return await self._downloads.answer(request, trace, f"device {trace.device}: {device.properties.name}")


def _refused(request: web.Request, error: web.HTTPNotFound | web.HTTPMethodNotAllowed) -> web.Response:
    """As everything else that is refused here."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        body = {"error": f"{request.method[:20]} is not served at this path.", "fix": f"Use {allowed}."}
        return web.json_response(body, status=405, headers={"Allow": allowed})
    paths = "/, /status, /metrics, /healthz and /readyz"
    return web.json_response({"error": "There is nothing at this path.", "fix": f"Look at {paths}."}, status=404)
