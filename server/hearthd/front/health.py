"""`grpc.health.v1`: the node, its services and each device, by name; and readiness."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]

from hearthd.front import device_service, node_service
from hearthd.front.supervisor import FENCED, SERVING, Supervisor

NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def ready(supervisor: Supervisor, draining: bool) -> bool:
    """Whether work may be sent here: some device serves, and none that is not fenced does not."""
    states = [device.state for device in supervisor]
    usable = [state for state in states if state != FENCED]
    return not draining and bool(usable) and all(state == SERVING for state in usable)


class Health:
    """Keeps the health service in step with the devices."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.servicer = health_aio.HealthServicer()
        self._supervisor = supervisor
        self._draining = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: dict[str, int] = {}
        supervisor.watch(self.refresh)
        self.refresh()

    def drain(self) -> None:
        """Not serving from now on."""
        self._draining = True
        self.refresh()

    def refresh(self) -> None:
        """Sets every name to what the devices say."""
        some = any(device.state == SERVING for device in self._supervisor)
        self._set("", some)
        self._set(device_service.NAME, some)
        self._set(node_service.NAME, True)
        for device in self._supervisor:
            self._set(f"device/{device.ordinal}", device.state == SERVING)

    def _set(self, name: str, serving: bool) -> None:
        status = _SERVING if serving and not self._draining else _NOT_SERVING
        if self._wanted.get(name) == status:
            return
        self._wanted[name] = status
        task = self._tasks.get(name)
        if task is None or task.done():
            # One task a name: a watcher that does not read holds up its own name and no other.
            self._tasks[name] = asyncio.create_task(self._apply(name))

    async def _apply(self, name: str) -> None:
        applied = None
        while applied != self._wanted[name]:
            applied = self._wanted[name]
            await self.servicer.set(name, applied)

    async def stop(self) -> None:
        """Ends what is still under way."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
