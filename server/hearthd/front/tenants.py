"""Who may use this node, and how much of it. Pure: identities come in, tenants and refusals come out."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

ALL: frozenset[int] | None = None
"""Every device."""


class Right(enum.StrEnum):
    """What a tenant may be allowed. Names as they stand in the configuration."""

    ALLOCATE = "allocate"  # memory: allocate, free, fill, copy
    READ = "read"
    WRITE = "write"
    LAUNCH = "launch"  # modules, kernels, graphs, dispatch
    COLLECTIVE = "collective"
    PROFILE = "profile"  # profiles and traces
    PUBLISH = "publish"  # publish buffers to others
    ATTACH = "attach"  # attach what others published
    DEDICATED = "dedicated"  # device processes of its own
    ADMIN = "admin"  # see everybody's sessions, end them, drain, restart devices


EVERYTHING = frozenset(Right)


@dataclass(frozen=True)
class Quotas:
    """Limits of one tenant; 0: none. Bytes of memory count on each device."""

    device_bytes: int = 0
    pinned_bytes: int = 0
    durable_bytes: int = 0
    sessions: int = 0
    queued_commands: int = 0
    queued_bytes: int = 0
    gpu_seconds: float = 0.0
    """Of all devices together, since the daemon started."""


@dataclass(frozen=True)
class Tenant:
    """Somebody whose sessions share rights, quotas and fate."""

    name: str
    weight: float = 1.0
    """Its share of a device's time, beside the weights of others."""
    priority: int = 0
    """Lower is more urgent, as for CUDA streams."""
    devices: frozenset[int] | None = ALL
    rights: frozenset[Right] = EVERYTHING
    quotas: Quotas = field(default_factory=Quotas)

    def may(self, right: Right) -> bool:
        return right in self.rights


EVERYONE = Tenant("default")
"""The one tenant of a daemon without authentication."""
