"""The quotas of a tenant in the configuration, and the values of quotas that it does not set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from hearthd.front.config.section import Section, parse_bytes, parse_seconds

AUTO, NONE = -1, 0
"""Values of a quota that is not set ("auto"), and of a quota that is "none"."""
DEVICE_SHARE = 7 / 8
"""Fraction of each device's memory that one of several tenants may hold; the rest is left for the other tenants."""
HANDLES = 262_144
"""Maximum number of handles of one tenant in a device process. If all of them are empty buffers, they use about 170 MiB
of host memory."""
_MAX_GPU_SECONDS = 1e12
"""Largest limit on device time, in seconds: more than all devices of a node use in the lifetime of a daemon."""
PUBLISHED = 1024
"""Maximum number of published names of one tenant on one device."""


def _quota(parse: Callable[[object], float]) -> BeforeValidator:
    def read(value: Any) -> Any:
        if value in ("auto", AUTO) and not isinstance(value, bool):
            return AUTO
        if value == "none":
            return NONE
        try:
            number = parse(value)
        except ValueError as error:
            raise ValueError(f'{error}, or "none" or "auto"') from None
        if number < 0:
            raise ValueError(f'{value!r} is negative; write a limit, "none" or "auto"')
        return number

    return BeforeValidator(read)


def _parse_integer(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number; write a limit")
    return value


def _serialize(value: float) -> Any:
    return {AUTO: "auto", NONE: "none"}.get(int(value), value) if value <= 0 else value


_SERIALIZER = PlainSerializer(_serialize, when_used="json")
Bytes = Annotated[int, _quota(parse_bytes), _SERIALIZER]
Count = Annotated[int, _quota(_parse_integer), _SERIALIZER]
Seconds = Annotated[float, _quota(partial(parse_seconds, maximum=_MAX_GPU_SECONDS)), _SERIALIZER]


class QuotaSettings(Section):
    """Limits of one tenant. "none" (or 0): no limit; "auto": see `resolve`."""

    device_bytes: Bytes = Field(default=AUTO)
    """Memory on one device; "auto": 7/8 of the device if there are several tenants."""
    pinned_bytes: Bytes = Field(default=AUTO)
    """Pinned host memory; "auto": a quarter of the host's memory if there are several tenants."""
    durable_bytes: Bytes = Field(default=AUTO)
    """Host memory for durable arrays; "auto": half of `sessions.durable_bytes` if there are several tenants."""
    sessions: Count = Field(default=AUTO)
    """Open sessions; "auto": a share of `sessions.max` by weight."""
    handles: Count = Field(default=AUTO)
    """Objects of all sessions in a device process; "auto": 262144."""
    published: Count = Field(default=AUTO)
    """Published names on one device; "auto": 1024."""
    queued_commands: Count = Field(default=AUTO)
    """Commands queued in the daemon; "auto": no limit. A limit excludes the tenant's clients from lanes."""
    queued_bytes: Bytes = Field(default=AUTO)
    """Bytes of commands queued in the daemon; "auto": no limit."""
    gpu_seconds: Seconds = Field(default=AUTO)
    """Device time on all devices since the daemon started; "auto": no limit."""


@dataclass(frozen=True)
class HostCapacity:
    """Capacities of the host that are divided among tenants, in bytes."""

    pinned_bytes: int = 0
    durable_bytes: int = 0
    several: bool = False
    """True if there is more than one tenant."""


def resolve(settings: QuotaSettings, capacity: HostCapacity) -> dict[str, Any]:
    """Returns the fields of `tenants.Quotas`. 0: no limit.

    "auto" limits the resources that tenants compete for: 7/8 of each device's memory, `capacity.pinned_bytes`, and half
    of `capacity.durable_bytes`. A single tenant has none of these limits. Sessions are limited by shares
    (`hearthd.front.tenancy.shares`). The queue is limited by `[limits]` for each session, because a limit on the
    tenant's queue would exclude its clients from lanes.
    """
    capacity = capacity if capacity.several else HostCapacity()
    auto: dict[str, int] = {
        "pinned_bytes": capacity.pinned_bytes,
        "durable_bytes": capacity.durable_bytes // 2,
        "handles": HANDLES,
        "published": PUBLISHED,
    }
    quotas = {name: auto.get(name, NONE) if value == AUTO else value for name, value in iter(settings)}
    if settings.device_bytes == AUTO and capacity.several:
        quotas["device_share"] = DEVICE_SHARE
    return quotas
