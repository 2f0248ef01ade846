"""The daemon's listeners: gRPC on TCP and on a Unix socket, framed calls, lanes and HTTP.

They are opened and closed together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import grpc.aio

from hearth_proto.calls import socket_path
from hearthd.front import sockets
from hearthd.front.addresses import Address, Addresses, parse_address
from hearthd.front.admission import grpc_server
from hearthd.front.admission.gate import AdmissionGate, GatedService
from hearthd.front.config.loader import Config
from hearthd.front.connections.limits import ConnectionLimits
from hearthd.front.daemon.access import Access
from hearthd.front.lanes.listener import LanePort
from hearthd.front.lanes.stripe_port import StripePort
from hearthd.front.metrics.collector import Metrics
from hearthd.front.overload.manager import OverloadManager
from hearthd.front.rpc import device_service, health, node_service
from hearthd.front.rpc.framed_server import CallServer
from hearthd.front.rpc.node_status import NodeStatus
from hearthd.front.rpc.reflection import Reflection
from hearthd.front.rpc.server_call import guarded
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from hearthd.front.http.server import HttpServer

_GRPC_OPTIONS = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),  # otherwise a second daemon would share the port silently
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Applies to gRPC's other pings; while one of them is unanswered, no keepalive ping is sent.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # No limit: above a limit, gRPC answers every further ping with an error, which takes 12 us each. The connection
    # guard limits the bytes instead.
    ("grpc.http2.max_ping_strikes", 0),
    # Less than the default of 4 MiB, with which reading one connection would occupy gRPC's threads for long, so that a
    # few flooding connections would block others.
    ("grpc.experimental.tcp_max_read_chunk_size", 128 << 10),
    # Limit for one connection. Each stream takes 15 KiB before the front sees the call. The limit is well above
    # `unary.MAX_CALLS`, which is enforced with a proper refusal: above this limit gRPC resets the stream, which the
    # caller sees as UNAVAILABLE.
    ("grpc.max_concurrent_streams", 512),
)


class Listeners:
    """The listeners of a daemon, and its health service."""

    def __init__(
        self,
        config: Config,
        access: Access,
        supervisor: Supervisor,
        sessions: SessionTable,
        metrics: Metrics,
        lanes: LanePort,
        stripes: StripePort,
        status: NodeStatus,
        gate: AdmissionGate,
        connections: ConnectionLimits,
        overload: OverloadManager,
    ) -> None:
        self._connections = connections
        self._gate = gate
        self._config = config
        self._access = access
        self._supervisor = supervisor
        self._sessions = sessions
        self._metrics = metrics
        self._lanes = lanes
        self._stripes = stripes
        self._status = status
        self._health = health.Health(supervisor, config.health, sessions.overloaded)
        overload.listeners.append(self._health.refresh)
        metrics.registry.register(self._health.watchers)
        self.http: HttpServer | None = None
        """The HTTP server. None before `open_http`, or without an address for it."""
        self._unix: sockets.UnixSocket | None = None
        self._server: grpc.aio.Server | None = None
        self._calls: CallServer | None = None

    async def open(self, services: Sequence[GatedService]) -> Addresses:
        """Opens the gRPC listeners of the configuration, with those for framed calls and lanes.

        Returns the addresses in use. Raises `ListenError`; `close` then closes the listeners that are open.
        """
        config = self._config.listen
        devices = len(self._supervisor.devices)
        tenants = max(1, len(self._config.tenants))
        self._connections.fit(devices * min(self._config.devices.max_processes, tenants))
        guard = partial(guarded, observer=self._metrics)
        open_service = self._gate.open_service(health.NAME, self._health.methods(), guard)
        service_names = (node_service.NAME, device_service.NAME, health.NAME)
        reflection = Reflection(service_names, self._gate, self._metrics).handlers()
        options = (*_GRPC_OPTIONS, *self._connections.grpc_options(), *grpc_server.options(self._gate.limits.largest))
        server = grpc_server.create(
            (*services, open_service, *reflection), self._gate.account, options, self._connections.guard.admits
        )
        self._server = server
        grpc_address = ""
        if config.grpc:
            grpc_address = str(self._listen_tcp(server, parse_address(config.grpc)))
        unix = self._config.unix_path
        if unix:
            self._listen_unix(server, unix)
            await self._access.listen_identity(unix, self._connections)
            self._calls = CallServer(services, self._access.ticket, self._gate, self._connections.limiter("call"))
            await self._calls.open(socket_path(unix), public=self._access.public_socket)
            if self._config.lane_path:
                self._lanes.open(self._config.lane_path, public=self._access.public_socket)
        lanes = ""
        if self._config.lane_address and (config.grpc or unix):  # tickets for this port are issued over gRPC
            grpc_host = parse_address(config.grpc).host if config.grpc else ""
            lanes = str(self._stripes.open(parse_address(self._config.lane_address), grpc_host))
        await server.start()
        ports = [parse_address(grpc_address).port] if grpc_address else []
        self._connections.guard.start(ports, [unix] if unix else [])
        return Addresses(grpc=grpc_address, unix=unix, lanes=lanes)

    async def open_http(self) -> str:
        """Opens HTTP on TCP, with TLS except on loopback, and on the Unix socket at `Config.http_path`.

        Returns the TCP address; empty without TCP.
        """
        config = self._config
        if not config.listen.http and not config.http_path:
            return ""
        # Imported late, because aiohttp takes a fifth of the import time.
        from hearthd.front.http.refused import Refusals
        from hearthd.front.http.server import HttpServer

        address = parse_address(config.listen.http) if config.listen.http else None
        unix = None
        if config.http_path:
            public = self._access.public_socket
            unix = sockets.UnixSocket(config.http_path, public=public, setting="listen.http_unix")
        refusals = Refusals()
        self._metrics.registry.register(refusals)
        self.http = HttpServer(
            self._supervisor, self._sessions, self._metrics, self._access.auth, self._status,
            self._connections.http(config.http), config.http, refusals,
            certificates=None if address is not None and address.loopback else self._access.certificates,
        )  # fmt: skip
        return str(await self.http.start(address, unix) or "")

    def change(self, config: Config) -> None:
        """Applies the settings that can be changed while the daemon listens."""
        if self.http is not None:
            self.http.settings = config.http

    def _listen_tcp(self, server: grpc.aio.Server, address: Address) -> Address:
        sockets.check_free(address, "grpc")
        certificates = self._access.certificates
        try:
            if certificates is not None:
                port = server.add_secure_port(str(address), certificates.grpc())
            else:
                port = server.add_insecure_port(str(address))
        except RuntimeError as error:
            raise sockets.ListenError(f"listen.grpc: {address} cannot be listened on: {error}") from None
        return Address(address.host, port)

    def _listen_unix(self, server: grpc.aio.Server, path: str) -> None:
        self._unix = sockets.UnixSocket(path, public=self._access.public_socket)
        self._unix.claim()
        try:
            with self._unix.umask():
                server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise sockets.ListenError(f"listen.unix: {path} cannot be listened on: {error}") from None

    def report_not_ready(self) -> None:
        """Reports not ready in the health service from now on."""
        self._health.drain()

    async def close(self, grace: float) -> None:
        """Accepts no further connections, and asks the connected clients to disconnect (GOAWAY).

        Calls under way may continue for `grace` seconds.
        """
        await self._health.stop()
        self._connections.guard.stop()
        await self._lanes.close()
        await self._stripes.close()
        server, self._server = self._server, None
        # When the server object is freed, gRPC cleans up on the event loop, so it must be freed before the loop ends.
        stops = [server.stop(grace)] if server is not None else []
        if self._calls is not None:
            stops.append(self._calls.close(grace))
        if self.http is not None:
            stops.append(self.http.stop())
        await asyncio.gather(*stops)

    def release(self) -> None:
        """Removes the path of the Unix socket. Called late, because calls that are ending may still use the socket."""
        if self._unix is not None:
            self._unix.release()
