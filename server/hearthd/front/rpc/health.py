"""`grpc.health.v1`: the status of the node, its services and each device, by name, and the readiness of the node.

This implementation replaces that of `grpc_health`, which writes to its watchers one after another, so that a watcher
that grants no HTTP/2 window delays the next status for every caller. Here each watcher has a task and a queue of one
entry that holds the latest status: a slow watcher skips statuses and delays no other. A watcher counts until its call
ends, because gRPC cannot reset a stream whose message is not read. The number of watchers is limited in total and for
each address.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hearthd.front.auth.authenticator import host_of
from hearthd.front.config.front_limits import HealthSettings
from hearthd.front.rpc import device_service, node_service
from hearthd.front.rpc.node_status import ready
from hearthd.front.supervisor.supervisor import SERVING, Supervisor
from hearthd.shared.log import LogThrottle

log = structlog.get_logger("hearthd.health")

NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
_SLOW_AFTER_S = 20.0
"""Time, in seconds, that a watcher may leave a status unread before it is counted as slow."""
_LOG_INTERVAL_S = 10.0
"""Minimum interval, in seconds, between log lines about watchers that were refused or are slow."""

Context = grpc.aio.ServicerContext[Any, Any]


class Health:
    """The service that reports the status of each name, which follows the states of the devices.

    Names: `""` is the node, with the meaning of `/readyz`. `hearth.v1.DeviceService` serves while at least one device
    serves, `hearth.v1.NodeService` until the daemon drains, `device/0` and so on while that device serves.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        settings: HealthSettings | None = None,
        overloaded: Callable[[], str] = lambda: "",
    ) -> None:
        self.statuses: dict[str, int] = {}
        self.watchers = HealthWatchers(settings or HealthSettings())
        self._supervisor = supervisor
        self._draining = False
        self._overloaded = overloaded
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        supervisor.watch(self.refresh)
        self.refresh()

    def drain(self) -> None:
        """Reports all names as not serving from now on."""
        self._draining = True
        self.refresh()

    def refresh(self) -> None:
        """Updates the status of every name from the devices, and wakes the watchers after a change. Does not block."""
        any_serving = any(device.state == SERVING for device in self._supervisor)
        refuses_new = self._draining or bool(self._overloaded())
        serving = {
            "": ready(self._supervisor, refuses_new),
            device_service.NAME: any_serving,
            node_service.NAME: True,
        }
        serving |= {f"device/{device.ordinal}": device.state == SERVING for device in self._supervisor}
        statuses = {
            name: _SERVING if serves and not self._draining else _NOT_SERVING for name, serves in serving.items()
        }
        if statuses != self.statuses:
            self.statuses = statuses
            change, self._change = self._change, asyncio.get_running_loop().create_future()
            if not change.done():
                change.set_result(None)

    # ---- the service ----

    def methods(self) -> dict[str, Any]:
        """Returns the handlers of the service, by method."""
        answer = health_pb2.HealthCheckResponse.SerializeToString
        methods: dict[str, Any] = {
            "Check": grpc.unary_unary_rpc_method_handler(
                self.check, health_pb2.HealthCheckRequest.FromString, response_serializer=answer
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                self.watch, health_pb2.HealthCheckRequest.FromString, response_serializer=answer
            ),
        }
        if hasattr(health_pb2, "HealthListRequest"):  # some releases of grpcio-health-checking lack it
            methods["List"] = grpc.unary_unary_rpc_method_handler(
                self.list,
                health_pb2.HealthListRequest.FromString,
                response_serializer=health_pb2.HealthListResponse.SerializeToString,
            )
        return methods

    async def check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """Returns the present status of a name. An unknown name ends the call with NOT_FOUND."""
        status = self.statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "There is no service of this name; List returns all names.")
        return health_pb2.HealthCheckResponse(status=status)

    async def list(self, request: Any, context: Context) -> Any:
        """Returns the present status of every name."""
        return health_pb2.HealthListResponse(
            statuses={name: health_pb2.HealthCheckResponse(status=status) for name, status in self.statuses.items()}
        )

    async def watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """Sends the status now and after each change, until the client ends the call.

        Of several changes only the latest may be sent.
        """
        peer = context.peer()  # read now, because a call whose connection has ended has no peer
        reason = self.watchers.enter(peer)
        if reason:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        sent: int | None = None
        try:
            while True:
                change = self._change
                status = self.statuses.get(request.service, _UNKNOWN)
                if status == sent:
                    await asyncio.shield(change)
                    continue
                await self._write(context, peer, health_pb2.HealthCheckResponse(status=status))
                sent = status
        except grpc.aio.InternalError:  # the status could not be sent: the client has disconnected
            raise asyncio.CancelledError from None
        finally:
            self.watchers.leave(peer)

    async def _write(self, context: Context, peer: str, message: health_pb2.HealthCheckResponse) -> None:
        """Returns when the watcher's connection has accepted the message, which may never happen."""
        write = asyncio.ensure_future(context.write(message))
        try:
            done, _ = await asyncio.wait({write}, timeout=_SLOW_AFTER_S)
            if not done:
                self.watchers.add_fault("slow", peer)
            await write
        finally:
            write.cancel()

    async def stop(self) -> None:
        """Ends all watches."""
        self._change.cancel()


class HealthWatchers(Collector):
    """Counts the watchers, in total and by address, and those that were refused or are slow."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._by_address: Counter[str] = Counter()
        self._faults: Counter[str] = Counter({"total": 0, "address": 0, "slow": 0})
        self._log_throttle = LogThrottle(_LOG_INTERVAL_S)

    def __len__(self) -> int:
        return self._by_address.total()

    def enter(self, peer: str) -> str:
        """Counts one more watcher and returns an empty string, or returns the reason why no more is accepted."""
        address = host_of(peer)
        if len(self) >= self._settings.watchers:
            self.add_fault("total", peer)
            return f"{len(self)} clients already watch the health, which is the maximum; call Check."
        if self._by_address[address] >= self._settings.watchers_per_address:
            self.add_fault("address", peer)
            calls = self._by_address[address]
            return f"{calls} calls from this address already watch the health, which is the maximum; call Check."
        self._by_address[address] += 1
        return ""

    def leave(self, peer: str) -> None:
        """Removes a watcher whose call has ended. Called once for each `enter` that returned an empty string."""
        address = host_of(peer)
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def add_fault(self, kind: str, peer: str) -> None:
        """Counts a fault of a watcher, and logs it at a limited rate. `kind`: total, address or slow."""
        self._faults[kind] += 1
        if self._log_throttle.due("fault", time.monotonic()):
            log.warning("health_watcher", fault=kind, peer=peer[:200], count=self._faults.total())

    def collect(self) -> list[Metric]:
        """Returns the number of watchers and of their faults. Called at each scrape."""
        faults = CounterMetricFamily(
            "hearth_health_watcher_faults",
            "Calls of Health/Watch ended by a limit (total, address) or with a status unread (slow).",
            labels=["why"],
        )
        for kind, count in sorted(self._faults.items()):
            faults.add_metric([kind], count)
        return [
            GaugeMetricFamily("hearth_health_watchers", "Open calls of Health/Watch.", value=len(self)),
            faults,
        ]
