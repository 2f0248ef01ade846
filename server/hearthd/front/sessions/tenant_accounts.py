"""Usage and quotas of each tenant: sessions, queued work and device time.

Device, pinned and durable bytes are counted by the processes that allocate them. This module counts what only the front
can see.
"""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import structlog

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.front.sessions.command_queue import CommandQueue
from hearthd.front.sessions.link_interface import Link
from hearthd.front.sessions.session import Session
from hearthd.front.tenancy.shares import Shares, reserve
from hearthd.front.tenancy.tenants import Tenant
from hearthd.shared.log import LogThrottle

log = structlog.get_logger("hearthd.quotas")

REMEMBERED = 1024
"""Number of ended sessions that are remembered because their last device time may still be reported: as many as may end
at the same time by default."""


SESSIONS_SHARE = "sessions_share"
"""Name, among the quotas, of the tenant's share of `sessions.max`."""


class TenantAccount:
    """The account of one tenant."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.queue = CommandQueue(tenant.quotas.queued_commands, tenant.quotas.queued_bytes)
        self.device_ns = 0
        """Device time on all devices together since the daemon started, in nanoseconds."""
        self.sessions: dict[str, Session] = {}
        """Open sessions, by id."""
        self.opened = 0
        self.closed: collections.Counter[str] = collections.Counter()
        """Number of ended sessions, by the cause of their end."""
        self.refused: collections.Counter[str] = collections.Counter()
        """Number of sessions and calls that a quota refused, by the name of the quota."""

    @property
    def exhausted(self) -> bool:
        """True if the tenant has used up its quota of device time."""
        allowed = self.tenant.quotas.gpu_seconds
        return bool(allowed) and self.device_ns >= allowed * 1e9

    def change(self, tenant: Tenant) -> None:
        """Applies other quotas to the tenant. Usage that exceeds the new quotas is not taken away."""
        self.tenant = tenant
        self.queue.set_limits(tenant.quotas.queued_commands, tenant.quotas.queued_bytes)

    def check_time(self) -> None:
        """Raises `QUOTA_EXCEEDED` if the tenant has used up its quota of device time."""
        if self.exhausted:
            self.refused["gpu_seconds"] += 1
            raise self.time_refusal()

    def time_refusal(self) -> Refusal:
        """Returns the refusal of new work after the quota of device time was used up. Does not count it."""
        used, allowed = self.device_ns / 1e9, self.tenant.quotas.gpu_seconds
        return Refusal(
            Reason.QUOTA_EXCEEDED,
            f"Tenant {self.tenant.name!r} has used {used:.3f} GPU seconds; the maximum is {allowed:g}.",
            fix="Read what you need and free the rest; ask the daemon's operator for a larger quota (gpu_seconds) or "
            "wait for the daemon's next start, which resets the count.",
            details={"quota": "gpu_seconds", "used": f"{used:.3f}", "allowed": f"{allowed:g}"},
        )

    def check_sessions(self) -> None:
        """Raises `QUOTA_EXCEEDED` if the tenant may open no further session."""
        allowed = self.tenant.quotas.sessions
        if allowed and len(self.sessions) >= allowed:
            self.refused["sessions"] += 1
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"Tenant {self.tenant.name!r} has {len(self.sessions)} sessions open; the maximum is {allowed}.",
                fix="Close sessions that are no longer used; one whose client has gone ends with its lease.",
                details={"quota": "sessions", "used": len(self.sessions), "allowed": allowed},
                retry_after_s=1.0,
            )


class TenantAccounts:
    """The accounts of all tenants that have had a session."""

    weights: Mapping[str, float] = MappingProxyType({})
    """The weights of all configured tenants, by name. They determine the tenants' shares of the daemon's resources."""

    def __init__(self) -> None:
        self._accounts: dict[str, TenantAccount] = {}
        self._open: dict[str, Session] = {}
        self._ended: dict[str, Session] = {}  # recently ended, oldest first
        self._log_throttle = LogThrottle()
        self.on_exhausted: Callable[[TenantAccount], None] = end_streams

    def __iter__(self) -> Iterator[TenantAccount]:
        return iter(list(self._accounts.values()))

    def of(self, tenant: Tenant) -> TenantAccount:
        """Returns the account of a tenant, which the first call creates."""
        account = self._accounts.get(tenant.name)
        if account is None:
            account = self._accounts[tenant.name] = TenantAccount(tenant)
        return account

    def change(self, tenants: Mapping[str, Tenant]) -> None:
        """Applies a changed configuration of tenants, by name.

        Tenants that it does not name keep their accounts, which record what they used.
        """
        self.weights = {name: tenant.weight for name, tenant in tenants.items()}
        for name, account in self._accounts.items():
            if name in tenants:
                was_exhausted = account.exhausted
                account.change(tenants[name])
                if account.exhausted and not was_exhausted:
                    self._on_exhausted(account)

    def session(self, session_id: str) -> Session | None:
        """Returns a session that is open or ended recently."""
        return self._open.get(session_id) or self._ended.get(session_id)

    def admit(self, tenant: Tenant) -> TenantAccount:
        """Returns the account on which a session may be opened. Raises `QUOTA_EXCEEDED`."""
        account = self.of(tenant)
        account.check_sessions()
        account.check_time()
        return account

    def check_share(self, account: TenantAccount, limit: int) -> None:
        """Raises `SESSION_LIMIT` if the tenant has used up its share of the daemon's sessions.

        See `hearthd.front.tenancy.shares`.
        """
        tenant = account.tenant
        if not self.weights:
            return
        shares = Shares(limit, self.weights, reserve(limit))
        used = {other.tenant.name: len(other.sessions) for other in self._accounts.values()}
        if shares.admits(tenant.name, used, operator=tenant.observes):
            return
        account.refused[SESSIONS_SHARE] += 1
        count = len(account.sessions)
        if self._log_throttle.due(tenant.name, time.monotonic()):
            log.warning("session_share_taken", tenant=tenant.name, sessions=count, limit=limit)
        raise Refusal(
            Reason.SESSION_LIMIT,
            f"Tenant {tenant.name!r} has {count} sessions open, which is its share of the daemon's {limit} at present.",
            fix="Close sessions that are no longer used; the daemon's operator may raise sessions.max or the weight of "
            f"{tenant.name!r}.",
            details={"requested": count + 1, "allowed": count, "guaranteed": shares.guarantee(tenant.name)},
            retry_after_s=1.0,
        )

    def opened(self, session: Session) -> None:
        """Adds a new session to its tenant's account."""
        account = self.of(session.tenant)
        account.opened += 1
        account.sessions[session.id] = self._open[session.id] = session

    def closed(self, session: Session, cause: str) -> None:
        """Removes an ended session from its tenant's account. Its last device time may still be reported."""
        account = self.of(session.tenant)
        account.closed[cause] += 1
        account.sessions.pop(session.id, None)
        if self._open.pop(session.id, None) is not None:
            self._ended[session.id] = session
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def listen(self, link: Link) -> None:
        """Registers for the device time of each session that a device process reports (`Kind.METER`)."""
        link.listen(Kind.METER, self._on_meter)

    def _on_meter(self, frame: Frame) -> None:
        for session, nanoseconds in json.loads(frame.payload).items():
            self.add_device_time(session, nanoseconds)

    def add_device_time(self, session_id: str, nanoseconds: int) -> None:
        """Adds device time that a session has used."""
        session = self.session(session_id)
        if session is None:
            log.warning("metered_unknown_session", session=session_id, seconds=nanoseconds / 1e9)
            return
        account = self.of(session.tenant)
        session.device_ns += nanoseconds
        session.rates.sample(time.monotonic(), {"device_ns": session.device_ns})
        was_exhausted = account.exhausted
        account.device_ns += nanoseconds
        if account.exhausted and not was_exhausted:
            self._on_exhausted(account)

    def _on_exhausted(self, account: TenantAccount) -> None:
        log.warning("quota_used_up", tenant=account.tenant.name, quota="gpu_seconds")
        self.on_exhausted(account)


def end_streams(account: TenantAccount) -> None:
    """Ends the Execute streams of a tenant whose device time is used up.

    Its sessions keep their objects, which can be read by single calls until the sessions end.
    """
    refusal = account.time_refusal()
    for session in account.sessions.values():
        for channel in session.channels.values():
            if channel.sink is not None:
                channel.sink.on_lost(refusal, b"")
