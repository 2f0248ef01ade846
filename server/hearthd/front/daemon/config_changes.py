"""Applies the changes of a reload to a running daemon.

A credential that is removed stops working: sessions that were opened with it are closed, because an operator revokes a
token for a reason. Sessions whose credential now belongs to another tenant are closed, too. A device or right that a
tenant loses is not available to its sessions from then on, and what they hold on such a device is freed. A quota that
is lowered below the present usage takes nothing away, but further use is refused. (A limit on queued work applies to
Execute streams. A lane that was opened before there was a limit stays, and is not limited until its client connects
again.)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator
from typing import Any

from hearth_proto.frames import Kind
from hearth_proto.reasons import Refusal
from hearthd.front import errors
from hearthd.front.config.loader import Config
from hearthd.front.daemon.access import Access
from hearthd.front.daemon.listeners import Listeners
from hearthd.front.daemon.reload_plan import ReloadPlan
from hearthd.front.overload.manager import OverloadManager
from hearthd.front.peers.targets import PeerTargets, auto_networks
from hearthd.front.sessions.session import Session, SessionEnd
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor import backends
from hearthd.front.supervisor.supervisor import IsolationPolicy, Supervisor
from hearthd.front.tenancy.tenants import Caller, Directory
from hearthd.shared import log
from hearthd.shared.device_spec import Backend

_CLOSE_WAIT_S = 2.0
"""Time, in seconds, that a reload waits until what it ended has been freed. The rest is freed after the reload."""


class ConfigChanges:
    """Applies the changes of a reload. Belongs to the event loop."""

    def __init__(
        self,
        sessions: SessionTable,
        supervisor: Supervisor,
        access: Access,
        listeners: Listeners,
        targets: PeerTargets,
        overload: OverloadManager,
        backend: Backend,
        devices: list[int],
    ) -> None:
        self._sessions = sessions
        self._supervisor = supervisor
        self._access = access
        self._listeners = listeners
        self._targets = targets
        self._overload = overload
        self._backend, self._devices = backend, devices
        self._closing: set[asyncio.Task[None]] = set()

    async def apply(self, plan: ReloadPlan, directory: Directory) -> int:
        """Applies all changes of a plan.

        Returns the number of sessions that were closed. Does not wait for the work of sessions that continue.
        """
        config, changed = plan.config, frozenset(plan.changed)
        self._access.change(config)
        self._listeners.change(config)
        self._sessions.lease, self._sessions.limit = config.sessions.lease, config.sessions.max
        self._targets.change(config.collectives.peers, auto_networks(config))
        self._overload.change(config.overload)
        policy = isolation_policy(config, self._backend)
        self._supervisor.policy = policy
        for device in self._supervisor:
            device.policy = policy
        if changed & {"log.level", "log.format", "launch.timeout", "launch.load_timeout"}:
            log.configure(config.log.level, config.log.format)
            for spec in backends.device_specs(config, self._backend, self._devices):
                self._supervisor.devices[spec.ordinal].change(spec)
        return await self._change_tenants(directory) if "tenants" in changed else 0

    # ---- tenants ----

    async def _change_tenants(self, directory: Directory) -> int:
        self._access.auth.directory = directory
        self._sessions.accounts.change(directory.tenants)
        closings: list[Coroutine[Any, Any, Any]] = []
        ended = 0
        for session in self._sessions:
            try:
                caller = _reidentify(directory, session.caller)
            except _AccessRevoked as revoked:
                ended += 1
                self._sessions.audit.record("session_revoked", session, why=str(revoked))
                closings.append(self._sessions.close(session, str(revoked), cause=SessionEnd.CREDENTIAL))
            else:
                closings += self._change_session(session, caller)
        tasks = [asyncio.create_task(close) for close in closings]
        self._closing.update(tasks)
        for task in tasks:
            task.add_done_callback(self._closing.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_WAIT_S)
        for device in self._supervisor:
            device.change_quotas({name: tenant.quotas for name, tenant in directory.tenants.items()})
        return ended

    def _change_session(self, session: Session, caller: Caller) -> Iterator[Coroutine[Any, Any, None]]:
        """Applies the caller's present state to a session.

        Yields coroutines that close its channels on devices that the tenant no longer has.
        """
        previous = session.tenant
        self._sessions.renew(session, caller)
        for ordinal in [*session.channels, *session.ended]:
            if session.tenant.sees(ordinal):
                continue
            session.ended.pop(ordinal, None)
            channel = session.channels.pop(ordinal, None)
            if channel is not None:
                visible = (device.ordinal for device in self._supervisor.visible(session.tenant))
                yield channel.close(errors.device_not_found(ordinal, visible))
        if session.tenant != previous:
            for channel in session.channels.values():
                if channel.alive:
                    payload = json.dumps(session.open_payload(channel.link.device_memory)).encode()
                    channel.link.send(Kind.CHANGE, payload, channel=channel.number)


class _AccessRevoked(Exception):
    """The reason why a session is closed."""


def _reidentify(directory: Directory, caller: Caller) -> Caller:
    """Returns the caller as the new configuration defines it. Raises `_AccessRevoked`."""
    try:
        renewed = directory.reidentify(caller, time.time())
    except Refusal as refusal:
        raise _AccessRevoked(
            f"the configuration of the daemon was changed, and its credential ({caller.credential}) is no longer "
            f"valid: "
            f"{refusal.message.rstrip('.')}"
        ) from None
    if renewed.tenant.name != caller.tenant.name:
        raise _AccessRevoked(
            f"the configuration of the daemon was changed, and its credential ({caller.credential}) now belongs to "
            f"tenant {renewed.tenant.name!r}"
        )
    return renewed


def isolation_policy(config: Config, backend: Backend) -> IsolationPolicy:
    """Returns the supervisor's policy for a configuration."""
    return IsolationPolicy(
        start_timeout=config.devices.start_timeout,
        ping_timeout=config.devices.ping_timeout,
        ping_interval=min(2.0, config.devices.ping_timeout / 4),
        max_restarts=config.devices.max_restarts,
        restart_window=config.devices.restart_window,
        by_tenant=bool(config.tenants) and config.devices.isolation == "tenant",
        idle_timeout=config.devices.idle_timeout,
        max_processes=config.devices.max_processes,
        weights={tenant.name: tenant.weight for tenant in config.tenants},
        max_faults=config.devices.max_faults,
        spare=config.devices.spare,
        context_memory=config.devices.context_memory if backend == "cuda" else 0,
        scrub=bool(config.tenants),  # a tenant may be added or changed while the process runs
    )
