"""The supervisor of all devices of the node, and the observers of their changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator

import structlog

from hearth_proto.reasons import Refusal
from hearthd.front import errors
from hearthd.front.links.link import CollectiveSink, DeviceLink
from hearthd.front.sessions.session import Session
from hearthd.front.supervisor.device import FENCED, LOST, SERVING, STARTING, STATE_NAMES, Device, IsolationPolicy
from hearthd.front.supervisor.fault_policy import FaultQuarantine
from hearthd.front.supervisor.launcher import Launcher
from hearthd.front.tenancy.tenants import EVERYONE, Tenant
from hearthd.shared.device_spec import DeviceSpec

__all__ = ["FENCED", "LOST", "SERVING", "STARTING", "STATE_NAMES", "Device", "IsolationPolicy", "Supervisor"]

log = structlog.get_logger("hearthd.supervisor")


class Supervisor:
    """The supervisor of all devices of the node."""

    def __init__(
        self,
        specs: list[DeviceSpec],
        launcher: Launcher,
        policy: IsolationPolicy,
        on_collective: CollectiveSink | None = None,
        on_lost: Callable[[DeviceLink, str], None] = lambda link, reason: None,
    ) -> None:
        self.on_collective = on_collective
        self.device_lost = on_lost
        self.device_ended: Callable[[DeviceLink], None] = lambda link: None
        """Called with the link of each process that has ended, lost or not, when no more frames arrive."""
        self.sessions: Iterable[Session] = ()
        """All open sessions."""
        self.on_quarantined: Callable[[str], None] = lambda session: None
        """Called with the id of a session that is quarantined. The session's state at the front must be removed."""
        self.prepare: list[Callable[[DeviceLink], Awaitable[None]]] = []
        """Called, in order, with the link of each process that is ready, before the process serves. `link.serves`
        returns True for the sessions that it will serve."""
        self.policy = policy
        self.devices = {spec.ordinal: Device(spec, launcher, policy, self) for spec in specs}
        self._launcher = launcher
        self.quarantine = FaultQuarantine(policy.max_faults, policy.restart_window)
        self._closes: set[asyncio.Task[None]] = set()
        self._change = asyncio.Event()
        """Set for a moment after each change of a device's state."""
        self._listeners: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices.values())

    def find(self, ordinal: int, tenant: Tenant = EVERYONE) -> Device:
        """Returns a device that the tenant may use.

        Raises a refusal as for a missing device if the tenant may not use it.
        """
        device = self.devices.get(ordinal)
        if device is None or not tenant.sees(ordinal):
            raise errors.device_not_found(ordinal, (other.ordinal for other in self.visible(tenant)))
        return device

    def visible(self, tenant: Tenant) -> list[Device]:
        """Returns the devices that a tenant may use."""
        return [device for device in self if tenant.sees(device.ordinal)]

    def start(self) -> None:
        """Starts every device's first process, in parallel."""
        for device in self:
            device.start()

    def release(self, session: Session) -> None:
        """Ends the dedicated processes of a session that has ended, and forgets its faults."""
        self.quarantine.forget(session.id)
        for device in self:
            device.release(session)

    def record_fault(self, session: str) -> None:
        """Attributes the loss of a shared process to a session.

        After too many losses the session is quarantined: its channels in shared processes are closed, and what it holds
        there is freed.
        """
        if not self.quarantine.record_fault(session, time.monotonic()):
            return
        log.error("session_barred", session=session)
        self.on_quarantined(session)
        refusal = self.quarantine.refusal(session)
        assert refusal is not None
        for open_session in self.sessions:
            if open_session.id == session and not open_session.dedicated:
                channels, open_session.channels = list(open_session.channels.values()), {}
                for channel in channels:
                    task = asyncio.create_task(channel.close(refusal), name=f"session-{session}-cut-off")
                    self._closes.add(task)
                    task.add_done_callback(self._closes.discard)

    async def before_serving(self, link: DeviceLink) -> None:
        """Awaits the functions of `prepare`, one after another.

        An error of one of them is logged, and the device serves nevertheless.
        """
        for prepare in self.prepare:
            try:
                await prepare(link)
            except Refusal as refusal:  # the objects that could not be restored report it when used; the device serves
                log.error("device_prepare", device=link.ordinal, generation=link.generation, error=refusal.message)
            except Exception:
                log.exception("device_prepare", device=link.ordinal, generation=link.generation)

    async def wait_until_started(self) -> None:
        """Returns when no device is in its first start any more."""
        while any(device.state == STARTING for device in self):
            await self.changed()

    def watch(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of a device's state."""
        self._listeners.append(listener)

    def notify(self) -> None:
        """Wakes the callers of `changed`, and calls the listeners. Called after each change of a device's state."""
        self._change.set()
        self._change.clear()
        for listener in self._listeners:
            listener()

    async def changed(self) -> None:
        """Returns after the next change of a device's state."""
        await self._change.wait()

    async def stop(self, at_once: bool = False) -> None:
        """Ends every device process and the forkserver."""
        for task in self._closes:
            task.cancel()
        await asyncio.gather(*(device.stop(at_once) for device in self))
        await self._launcher.stop()
