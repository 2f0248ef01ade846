"""The HTTP server of the daemon: probes, metrics, a status document, and a page that shows it."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.core import Metric

from hearth_proto.reasons import Refusal
from hearthd.front.addresses import Address
from hearthd.front.auth.authenticator import Authenticator
from hearthd.front.auth.tls import ServerCertificates
from hearthd.front.config.http import HttpSettings
from hearthd.front.connections.limiter import ConnectionLimiter
from hearthd.front.http.acceptor import BACKLOG, Acceptor
from hearthd.front.http.cached import CachedResponse
from hearthd.front.http.connection import Connection, deliver
from hearthd.front.http.head import MAX_HEAD, PROBES
from hearthd.front.http.hosts import is_own_host, same_origin
from hearthd.front.http.metrics_page import MetricsPages
from hearthd.front.http.page import Page
from hearthd.front.http.refused import HEADERS, Refusals
from hearthd.front.http.trace_download import TraceDownload
from hearthd.front.metrics.collector import Metrics
from hearthd.front.rpc.node_status import NodeStatus, readiness
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.sockets import UnixSocket, listen_error
from hearthd.front.supervisor import gauges
from hearthd.front.supervisor.supervisor import Supervisor
from hearthd.front.tenancy.tenants import EVERYONE, Tenant
from hearthd.shared.log import WithoutErrors

log = structlog.get_logger("hearthd.http")

_METRICS = "/metrics"
_VIEWER: ContextVar[Tenant] = ContextVar("viewer", default=EVERYONE)
"""The tenant for which the present request is answered."""
_MAX_AGE = 10.0
"""Maximum age, in seconds, of a status document that a request may accept."""
_KEEPALIVE_S = 3600.0
"""aiohttp's own timeout of idle connections, in seconds. `connection` enforces a shorter one."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


_INVALID_REQUEST_FILTER = WithoutErrors("aiohttp.server", HttpProcessingError)
"""Suppresses aiohttp's log of invalid requests, because their sender gets a response."""


class HttpServer:
    """Serves /healthz, /readyz, /metrics, /status, /history, /traces/ID.json, and the page at /.

    If there are tenants, every path needs a credential, except for those without data: the probes and the files
    of the page. A credential is a tenant's token or, on the Unix socket, the user at the other end.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        sessions: SessionTable,
        metrics: Metrics,
        auth: Authenticator,
        status: NodeStatus,
        limiter: ConnectionLimiter,
        settings: HttpSettings,
        refusals: Refusals,
        *,
        certificates: ServerCertificates | None = None,
    ) -> None:
        self._auth = auth
        self._limiter = limiter
        self.certificates = certificates
        """The certificates of the TCP listener. None: it does not use TLS."""
        self._supervisor = supervisor
        self._sessions = sessions
        self._metrics = metrics
        self._status = status
        self.settings = settings
        """The settings in force. A change of `hosts` or `metrics_on_loopback` takes effect at the next request."""
        self._refusals = refusals
        self._runner: web.AppRunner | None = None
        self.acceptor: Acceptor | None = None
        """The acceptor, which has the open connections. None before `start`."""
        self._unix: UnixSocket | None = None
        self._address: Address | None = None
        self._page = Page()
        self._documents: dict[Tenant, CachedResponse[bytes]] = {}
        self._pages = MetricsPages(self._collect_families, settings.metrics_max_age)
        self.downloads = TraceDownload()

    def application(self) -> web.Application:
        """Returns an aiohttp application with all paths. Its requests are served only after `start`."""

        async def complete(request: web.Request, response: web.StreamResponse) -> None:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            response.headers["Server"] = HEADERS["Server"]

        app = web.Application(middlewares=[self._answer])
        app.on_response_prepare.append(complete)
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get(_METRICS, self._metrics_page),
                web.get("/status", self._status_document),
                web.get("/history", self._history),
                web.get(r"/traces/{id:[A-Za-z0-9_-]{1,64}}.json", self._trace),
                *(web.get(path, self._page_file) for path in self._page.paths),
            ]
        )
        return app

    async def start(self, address: Address | None, unix: UnixSocket | None = None) -> Address | None:
        """Starts to listen on TCP, on a Unix socket, or on both.

        Returns the TCP address with its port. Raises `ListenError`.
        """
        _INVALID_REQUEST_FILTER.install()
        self._address = address
        self._runner = web.AppRunner(
            self.application(), access_log=None, handle_signals=False, shutdown_timeout=1.0, handler_cancellation=True,
            keepalive_timeout=_KEEPALIVE_S, lingering_time=0, auto_decompress=False, max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
        )  # fmt: skip
        await self._runner.setup()
        assert self._runner.server is not None
        context = self.certificates.context if self.certificates is not None else None
        self.acceptor = Acceptor(self.settings, self._limiter, self._refusals, self._runner.server, context)
        if unix is not None:
            unix.claim()
            self._unix = unix
            self.acceptor.open_unix(unix.listen(BACKLOG))
        if address is None:
            return None
        try:
            return await self.acceptor.open(address)
        except OSError as error:
            raise listen_error(address, "http", error) from None

    async def stop(self) -> None:
        """Stops listening, and closes the connections after at most a second for requests under way."""
        if self.acceptor is not None:
            await self.acceptor.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        if self.acceptor is not None:
            self.acceptor.close()
        if self._unix is not None:
            self._unix.release()
        for answer in self._documents.values():
            answer.close()
        self._pages.close()

    @property
    def _guarded(self) -> bool:
        """True if requests must show a credential."""
        return not self._auth.directory.open

    @property
    def _has_open_metrics(self) -> bool:
        """True if /metrics shows all tenants without a token."""
        return self.settings.metrics_on_loopback and self._address is not None and self._address.loopback

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handles one request and sends the response, which may be an error."""
        connection = self._connection_of(request)
        if connection is None:
            return _unsent_response()
        try:
            response = await self._admit(request, handler, connection)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            response = _not_found_response(request, error)
        except ConnectionError:  # the connection broke during a response
            return _unsent_response()
        except Exception:
            log.exception("http_failed", path=request.path[:200])
            response = _refusal_response(500, "The daemon failed to answer.", "See the daemon's log.")
        return await deliver(request, response, connection)

    def _connection_of(self, request: web.Request) -> Connection | None:
        """Returns the connection of a request; None: it is closed."""
        assert self.acceptor is not None
        return self.acceptor.connection_of(request.protocol)

    async def _admit(self, request: web.Request, handler: Handler, connection: Connection) -> web.StreamResponse:
        """Checks a request's path, origin and caller, then calls its handler."""
        if self.certificates is not None:
            self.certificates.refresh()
        path, peer = request.path, connection.peer
        if path in PROBES:
            return await handler(request)
        host = request.headers.get("Host", "")
        if not self._is_own_host(host):
            self._refusals.add("host", peer)
            fix = "Use a name or an address of this host, or add the name to `hosts` in [http]."
            return _refusal_response(421, "The Host header does not name this daemon.", fix)
        if path in self._page.paths:
            return await handler(request)
        if not same_origin(host, request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")):
            self._refusals.add("origin", peer)
            return _refusal_response(
                403, "The request comes from a page of another origin.", "Open the daemon's own page, at /."
            )
        header = request.headers.get("Authorization")
        if self._guarded and not (path == _METRICS and self._has_open_metrics and header is None):
            try:
                caller = await self._auth.identify_request(header, connection.user, f"http:{peer}", path)
            except Refusal as refusal:
                headers = {"WWW-Authenticate": 'Bearer realm="hearth"'}
                if refusal.retry_after_s:
                    headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
                return _refusal_response(401, refusal.message, refusal.fix, headers)
            _VIEWER.set(caller.tenant)
        connection.slot.mark_authenticated()
        return await handler(request)

    def _is_own_host(self, host: str) -> bool:
        """Returns True if a Host header is a name of this daemon.

        Its names are those of `http.hosts`, of its certificate and of this host, and the address on which it listens.
        """
        certificate_names = self.certificates.names if self.certificates is not None else ()
        listen_host = self._address.host if self._address is not None else ""
        hostname = socket.gethostname()
        own_names = (listen_host, hostname, hostname.partition(".")[0])
        return is_own_host(host, (*self.settings.hosts, *certificate_names, *own_names))

    async def _page_file(self, request: web.Request) -> web.Response:
        connection = self._connection_of(request)
        has_user = connection is not None and connection.user is not None
        return self._page.answer(request, guarded=self._guarded and not has_user)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        body = readiness(self._supervisor, self._sessions)
        return web.json_response(body, status=200 if body["ready"] else 503)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        page, content_type = await self._pages.get(_VIEWER.get(), request.headers.get("Accept", ""))
        return web.Response(body=page, headers={"Content-Type": content_type})

    async def _collect_families(self, viewer: Tenant) -> list[Metric]:
        stats, readings = await asyncio.gather(gauges.collect(self._supervisor), self._status.readings())
        return self._metrics.families(self._supervisor, self._sessions, stats, readings, viewer)

    async def _status_document(self, request: web.Request) -> web.Response:
        viewer = _VIEWER.get()
        requested = request.query.get("max_age")
        if requested is None:
            return web.json_response(await self._status.document(viewer))
        try:
            max_age = float(requested)
        except ValueError:
            max_age = math.nan
        if not 0 <= max_age <= _MAX_AGE:
            fix = f"Give the maximum age of the document in seconds, from 0 to {_MAX_AGE:g}."
            return _refusal_response(400, f"max_age is {requested[:40]!r}.", fix)
        return web.Response(body=await self._document(viewer, max_age), content_type="application/json")

    async def _history(self, request: web.Request) -> web.Response:
        return web.json_response(self._status.history(_VIEWER.get()))

    async def _document(self, viewer: Tenant, max_age: float) -> bytes:
        """Returns the status document for a tenant.

        It is created at most once in `max_age` seconds, however many pages the tenant has open.
        """
        for idle in [idle for idle, answer in self._documents.items() if answer.age > _MAX_AGE]:
            del self._documents[idle]
        answer = self._documents.get(viewer)
        if answer is None:

            async def create() -> bytes:
                return json.dumps(await self._status.document(viewer)).encode()

            answer = self._documents[viewer] = CachedResponse(create)
        return await answer.get(max_age)

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        viewer = _VIEWER.get()
        trace = self._status.traces.find(request.match_info["id"], viewer)
        if trace is None:
            fix = "See `traces` in /status; the latest traces are kept for one hour."
            return _refusal_response(404, "There is no such trace.", fix)
        connection = self._connection_of(request)
        if connection is None:
            return _unsent_response()
        title = f"device {trace.device}: {self._supervisor.find(trace.device).properties.name}"
        return await self.downloads.answer(request, trace, title, connection, viewer)


def _unsent_response() -> web.Response:
    """Returns the response for aiohttp when the connection is closed. It is not sent."""
    response = web.Response(status=500)
    response.force_close()
    return response


def _refusal_response(status: int, error: str, fix: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Returns the response of a refusal."""
    return web.json_response({"error": error, "fix": fix}, status=status, headers=headers)


def _not_found_response(request: web.Request, error: web.HTTPNotFound | web.HTTPMethodNotAllowed) -> web.Response:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"{request.method[:20]} is not served at this path."
        return _refusal_response(405, message, f"Use {allowed}.", {"Allow": allowed})
    paths = "/, /status, /history, /metrics, /healthz and /readyz"
    return _refusal_response(404, "There is nothing at this path.", f"Use one of the paths {paths}.")
