"""The session of one client: its lease, its credential and its channels."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any

from hearth_proto import rights
from hearthd.front.rates import Rates
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.client_process import ClientProcess
from hearthd.front.sessions.command_queue import CommandQueue
from hearthd.front.tenancy.tenants import ANONYMOUS, EVERYONE, Caller, Tenant


class SessionEnd(enum.StrEnum):
    """Causes of a session's end. The values are labels of metrics."""

    CLIENT = "client"
    LEASE = "lease"
    CREDENTIAL = "credential"
    OPERATOR = "operator"
    STOP = "stop"


@dataclass(eq=False)
class Session:
    """A client's session. It expires one lease after its last use."""

    id: str
    client_name: str
    client_version: str
    opened_unix_ns: int
    lease: float
    last_used: float
    key: bytes
    tenant: Tenant = EVERYONE
    caller: Caller = ANONYMOUS
    """The caller that opened the session."""
    credential_deadline: float = float("inf")
    """Monotonic time at which the credential that opened the session expires. The session expires with it."""
    dedicated: bool = False
    """True if the session has separate device processes, which no other session shares."""
    launch_timeout: float = 0.0
    """Time limit, in seconds, for launches without a limit of their own. 0: the daemon's default."""
    queue: CommandQueue = field(default_factory=CommandQueue)
    """The queue of the session's tenant, shared by all sessions of that tenant."""
    channels: dict[int, Channel] = field(default_factory=dict)
    """The channel in the device process that serves the session now, by device ordinal."""
    ended: dict[int, Channel] = field(default_factory=dict)
    """The last channel in a device process that was lost, by device ordinal. It holds the responses that a resuming
    client must still receive."""
    client_process: str = ""
    """Host and pid of the client, `host:pid`, as the client declares them. Empty: not declared."""
    device_ns: int = 0
    """Device time used so far on all devices, in nanoseconds."""
    rates: Rates = field(default_factory=Rates)
    """The rate of `device_ns`."""
    connections: int = 0
    """Number of Execute streams and calls under way."""
    process: ClientProcess | None = None
    """The process that opened the session and alone has used it. None: it is unknown, or other processes use the
    session too."""
    closing: bool = False
    ended_by: SessionEnd | None = None
    """The cause of the session's end. None: the session is open."""

    def open_payload(self, device_memory: int) -> dict[str, Any]:
        """Returns the payload of OPEN for a device process. `device_memory` is the device's memory in bytes."""
        tenant, quotas = self.tenant, self.tenant.quotas
        restricted = {} if tenant.rights >= rights.OF_COMMANDS else {"rights": sorted(tenant.rights)}
        return {
            **restricted,
            "session": self.id,
            "client": self.client_name,
            "tenant": tenant.name,
            "weight": tenant.weight,
            "priority": tenant.priority,
            "launch_timeout": self.launch_timeout,
            "device_bytes": quotas.on_device(device_memory),
            "pinned_bytes": quotas.pinned_bytes,
            "durable_bytes": quotas.durable_bytes,
            "handles": quotas.handles,
        }

    @property
    def expiry_cause(self) -> SessionEnd:
        """The cause to record if the session expires now."""
        return SessionEnd.CREDENTIAL if self.deadline == self.credential_deadline else SessionEnd.LEASE

    @property
    def expiry_reason(self) -> str:
        """The reason to state, for people, if the session expires now."""
        if self.orphaned:
            return "the process of its client ended"
        if self.expiry_cause is SessionEnd.CREDENTIAL:
            return f"its credential ({self.caller.credential}) has expired"
        return "its lease expired"

    @property
    def orphaned(self) -> bool:
        """True if the only process that used the session has ended, and no connection is left."""
        return self.process is not None and self.process.ended and not self.connections

    @property
    def deadline(self) -> float:
        """Monotonic time at which the session expires.

        A session in use expires only with the credential that opened it. A session whose client's process has ended
        has expired once its last connection is closed.
        """
        if self.orphaned:
            return -math.inf
        if self.connections:
            return self.credential_deadline
        return min(self.credential_deadline, self.last_used + self.lease)
