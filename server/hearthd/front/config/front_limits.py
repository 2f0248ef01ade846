"""Sections that bound what clients take of the front: `[connections]`, `[admission]`, `[health]`, `[overload]`."""

from __future__ import annotations

from pydantic import Field, model_validator

from hearthd.front.config.section import Bytes, Seconds, Section


class ConnectionSettings(Section):
    """A stranger is a connection that has shown no accepted credential yet. All numbers are cut to what the process's
    limit on open files allows (`ulimit -n`, `LimitNOFILE`)."""

    max: int = Field(default=4096, ge=8)  # of each listener
    max_strangers: int = Field(default=512, ge=2)  # of each listener; a further one takes the place of an older one
    max_strangers_per_address: int = Field(default=128, ge=1)  # or per user on Unix sockets; IPv6: per /64
    handshake_timeout: Seconds = Field(default=10.0, ge=1, le=600)  # in which a stranger has to show a credential
    stranger_bytes: Bytes = Field(default=256 << 10, ge=64 << 10)  # that a stranger may send by gRPC over TCP

    @property
    def asked(self) -> int:
        """Connections of a listener that the configuration asks for by number; 0: as many as fit. Strangers get half
        of a listener's."""
        given = self.model_fields_set
        most = self.max if "max" in given else 0
        return max(most, min(self.max, 2 * self.max_strangers) if "max_strangers" in given else 0)


class AdmissionSettings(Section):
    """Bounds on requests, before and after the credential of a call is accepted."""

    request_timeout: Seconds = Field(default=10.0, gt=0, le=600)  # until a call's first message is there
    request_rate: Bytes = Field(default=64 << 10, ge=1 << 10)  # bytes a second: a long message has that much longer
    max_request_bytes: Bytes = Field(default=1 << 20, ge=64 << 10, le=31 << 20)  # of calls that carry no bulk data
    max_request_fields: int = Field(default=8192, ge=256, le=1 << 20)  # in one message, nested ones included
    max_unauthenticated_bytes: Bytes = Field(default=16 << 20, ge=1 << 20)  # held for callers without a credential


class HealthSettings(Section):
    """Watching takes no credential, so the number of watchers is limited."""

    watchers: int = Field(default=1024, ge=1)  # calls of Health/Watch, in all
    watchers_per_address: int = Field(default=64, ge=1)  # those of the Unix socket count as one address


class OverloadSettings(Section):
    """Two thresholds for each resource. From the first on, new sessions and large requests are refused with a time to
    come again, from the second on new work of open sessions as well."""

    enabled: bool = True
    loop_lag: Seconds = Field(default=0.5, gt=0)  # how late the event loop runs what is due
    loop_lag_critical: Seconds = Field(default=2.0, gt=0)
    memory: Bytes = Field(default=0, ge=0)  # of the front's own, shared memory excepted; 0: 1 GiB, or 1/8 of the host's
    memory_critical: Bytes = Field(default=0, ge=0)  # 0: twice `memory`
    group_memory: float = Field(default=0.92, gt=0, le=1)  # share of its control group's limit, page cache excepted
    group_memory_critical: float = Field(default=0.97, gt=0, le=1)
    descriptors: float = Field(default=0.85, gt=0, le=1)  # share of the limit on open files
    descriptors_critical: float = Field(default=0.95, gt=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> OverloadSettings:
        for name in ("loop_lag", "memory", "group_memory", "descriptors"):
            first, second = getattr(self, name), getattr(self, f"{name}_critical")
            if second and first > second:
                raise ValueError(f"{name} = {first} is above {name}_critical = {second}; the second is the higher one")
        return self
