"""Device processes: one task a device, and everyone who wants to know of its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from hearthd.front import refusals
from hearthd.front.device import FENCED, LOST, SERVING, STARTING, STATE_NAMES, Device, Policy
from hearthd.front.launcher import Launcher
from hearthd.front.link import CollectiveSink, DeviceLink
from hearthd.spec import DeviceSpec

__all__ = ["FENCED", "LOST", "SERVING", "STARTING", "STATE_NAMES", "Device", "Policy", "Supervisor"]


class Supervisor:
    """All devices of the node."""

    def __init__(
        self,
        specs: list[DeviceSpec],
        launcher: Launcher,
        policy: Policy,
        on_collective: CollectiveSink | None = None,
        on_lost: Callable[[int, str], None] = lambda ordinal, why: None,
    ) -> None:
        self.on_collective = on_collective
        self.device_lost = on_lost
        self.prepare: list[Callable[[DeviceLink], Awaitable[None]]] = []
        """Called, in order, with the link of each process that is ready, before it serves."""
        self.policy = policy
        self.devices = {spec.ordinal: Device(spec, launcher, policy, self) for spec in specs}
        self._launcher = launcher
        self._change: asyncio.Future[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices.values())

    def find(self, ordinal: int) -> Device:
        device = self.devices.get(ordinal)
        if device is None:
            raise refusals.device_not_found(ordinal, self.devices)
        return device

    def start(self) -> None:
        """Starts every device's process, in parallel."""
        for device in self:
            self._tasks[device.ordinal] = asyncio.create_task(device.run(), name=f"device-{device.ordinal}")

    async def before_serving(self, link: DeviceLink) -> None:
        for prepare in self.prepare:
            await prepare(link)

    async def settled(self) -> None:
        """Returns when no device is starting for the first time any more."""
        while any(device.state == STARTING for device in self):
            await self.changed()

    def watch(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of a device's state."""
        self._listeners.append(listener)

    def notify(self) -> None:
        change, self._change = self._change, None
        if change is not None and not change.done():
            change.set_result(None)
        for listener in self._listeners:
            listener()

    async def changed(self) -> None:
        """Returns after the next change of a device's state."""
        if self._change is None or self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._change)

    async def stop(self, at_once: bool = False) -> None:
        """Ends every device process and the forkserver."""
        await asyncio.gather(*(device.stop(at_once) for device in self))
        for task in self._tasks.values():  # one may sleep before a restart, or wait for a launch
            if not task.done():
                _, pending = await asyncio.wait({task}, timeout=self.policy.shutdown_timeout)
                if pending:
                    task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._launcher.stop()
