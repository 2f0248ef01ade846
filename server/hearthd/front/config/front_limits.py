"""Sections that limit the resources that clients use in the front.

They are `[connections]`, `[admission]`, `[health]` and `[overload]`.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from hearthd.front.config.section import Bytes, Seconds, Section


class ConnectionSettings(Section):
    """Limits on connections.

    A stranger is a connection that has not yet presented an accepted credential. All numbers are reduced to fit the
    process's limit on open files (`ulimit -n`, `LimitNOFILE`).
    """

    max: int = Field(default=4096, ge=8)
    """Maximum number of connections of each listener."""
    max_strangers: int = Field(default=512, ge=2)
    """Maximum number of strangers of each listener; a further one displaces an older one."""
    max_strangers_per_address: int = Field(default=128, ge=1)
    """The same for each address (with IPv6, each /64 network), or for each user on Unix sockets."""
    handshake_timeout: Seconds = Field(default=10.0, ge=1, le=600)
    """Time limit for a connection to present a credential."""
    stranger_bytes: Bytes = Field(default=256 << 10, ge=64 << 10)
    """Maximum that a stranger may send over gRPC's TCP port."""

    @property
    def requested(self) -> int:
        """Number of connections of a listener that the configuration explicitly asks for.

        0: none, so all connections that fit are allowed. At most half of a listener's connections may be strangers.
        """
        set_fields = self.model_fields_set
        connections = self.max if "max" in set_fields else 0
        return max(connections, min(self.max, 2 * self.max_strangers) if "max_strangers" in set_fields else 0)


class AdmissionSettings(Section):
    """Limits on requests, before and after the credential of a call is accepted."""

    request_timeout: Seconds = Field(default=10.0, gt=0, le=600)
    """Time limit for a call's first message."""
    request_rate: Bytes = Field(default=64 << 10, ge=1 << 10)
    """Bytes per second; the time limit is longer by the largest size of the message divided by this rate."""
    max_request_bytes: Bytes = Field(default=1 << 20, ge=64 << 10, le=31 << 20)
    """Size of a message of a call that carries no bulk data."""
    max_request_fields: int = Field(default=8192, ge=256, le=1 << 20)
    """Fields of one message, including those of nested messages."""
    max_unauthenticated_bytes: Bytes = Field(default=16 << 20, ge=1 << 20)
    """Total size of messages held for callers without an accepted credential."""


class HealthSettings(Section):
    """Limits on the number of health watchers. They are necessary because watching needs no credential."""

    watchers: int = Field(default=1024, ge=1)
    """Health/Watch calls in total."""
    watchers_per_address: int = Field(default=64, ge=1)
    """Health/Watch calls of one address; all calls from the Unix socket count as one address."""


class OverloadSettings(Section):
    """Two thresholds for each resource.

    Above the first, new sessions and large requests are refused, with a time after which to retry. Above the second
    (critical) one, new work of open sessions is refused as well.
    """

    enabled: bool = True
    """False: no request is refused because of overload."""
    loop_lag: Seconds = Field(default=0.5, gt=0)
    """Delay of due callbacks in the front's event loop."""
    loop_lag_critical: Seconds = Field(default=2.0, gt=0)
    """Critical delay."""
    memory: Bytes = Field(default=0, ge=0)
    """Memory of the front without shared memory; 0: 1 GiB, or 1/8 of the host's memory if that is less."""
    memory_critical: Bytes = Field(default=0, ge=0)
    """Critical memory; 0: twice `memory`."""
    group_memory: float = Field(default=0.92, gt=0, le=1)
    """Fraction of the memory limit of the daemon's control group, without inactive page cache."""
    group_memory_critical: float = Field(default=0.97, gt=0, le=1)
    """Critical fraction."""
    descriptors: float = Field(default=0.85, gt=0, le=1)
    """Fraction of the limit on open files."""
    descriptors_critical: float = Field(default=0.95, gt=0, le=1)
    """Critical fraction."""

    @model_validator(mode="after")
    def _check_order(self) -> OverloadSettings:
        for name in ("loop_lag", "memory", "group_memory", "descriptors"):
            first, second = getattr(self, name), getattr(self, f"{name}_critical")
            if second and first > second:
                raise ValueError(
                    f"{name} = {first} is above {name}_critical = {second}; it must not exceed {name}_critical"
                )
        return self
