"""A front with separate device processes for each tenant."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator

from hearthd.front.sessions.session import Session
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.device import Device, IsolationPolicy
from hearthd.front.supervisor.supervisor import Supervisor
from hearthd.front.tenancy.tenants import Tenant
from hearthd.shared.device_spec import DeviceSpec
from tests.support.front.fake_device import FakeDevice, FakeLauncher

PATIENT = IsolationPolicy(idle_timeout=0, ping_interval=0.05)
BY_TENANT = dataclasses.replace(PATIENT, by_tenant=True)
X, Y = Tenant("x"), Tenant("y")


class Node:
    """A supervisor over fake device processes, and sessions of several tenants."""

    def __init__(self, policy: IsolationPolicy, launcher: FakeLauncher, devices: int) -> None:
        specs = [DeviceSpec(ordinal, "cpu", ordinal) for ordinal in range(devices)]
        self.launcher = launcher
        self.lost: list[tuple[int, int]] = []
        self.supervisor = Supervisor(
            specs, launcher, policy, on_lost=lambda link, why: self.lost.append((link.ordinal, link.generation))
        )
        self.sessions = SessionTable(on_closed=self.supervisor.release)
        self.supervisor.sessions = self.sessions

    @property
    def device(self) -> Device:
        return self.supervisor.find(0)

    def session(self, tenant: Tenant | None = None, dedicated: bool = False) -> Session:
        session, _ = self.sessions.open("test", "0")
        session.dedicated = dedicated
        if tenant is not None:
            session.tenant = tenant
        return session

    async def generation(self, session: Session) -> int:
        """Returns the generation of the process that serves a session."""
        return (await self.device.channel(session)).link.generation

    def process(self, generation: int) -> FakeDevice:
        return next(device for device in self.launcher.started if device.spec.generation == generation)

    @property
    def running(self) -> list[int]:
        return sorted(worker.generation for worker in self.device.workers if worker.pid)


@contextlib.asynccontextmanager
async def node(
    policy: IsolationPolicy = PATIENT, launcher: FakeLauncher | None = None, devices: int = 1
) -> AsyncIterator[Node]:
    launcher = launcher or FakeLauncher()
    front = Node(policy, launcher, devices)
    front.supervisor.start()
    try:
        await front.supervisor.wait_until_started()
        yield front
    finally:
        for session in front.sessions:
            await front.sessions.close(session, "the test is over", time_limit=1.0)
        await front.supervisor.stop()
    assert all(device.exit_code in (0, -9, -11) for device in launcher.started)
    assert not front.running, "a process remains"
