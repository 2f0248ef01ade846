"""Quotas as the configuration writes them, and what those mean that it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from hearthd.front.config.section import Section, parse_bytes, parse_seconds

AUTO, NONE = -1, 0
"""Values for a quota that is left out, and for one that is "none"."""
DEVICE_SHARE = 7 / 8
"""The part of each device that one of several tenants may hold: an eighth is left for the others."""
HANDLES = 262_144
"""Handles of one tenant in a device process: some 170 MiB of the host where all of them are empty buffers."""
PUBLISHED = 1024
"""Names of one tenant on one device."""


def _quota(parse: Callable[[object], float]) -> BeforeValidator:
    def read(value: Any) -> Any:
        if value in ("auto", AUTO) and not isinstance(value, bool):
            return AUTO
        if value == "none":
            return NONE
        number = parse(value)
        if number < 0:
            raise ValueError(f'{value!r} is negative; write a limit, "none" or "auto"')
        return number

    return BeforeValidator(read)


def _whole(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f'{value!r} is no whole number, "none" or "auto"')
    return value


def _shown(value: float) -> Any:
    return {AUTO: "auto", NONE: "none"}.get(int(value), value) if value <= 0 else value


_SHOWN = PlainSerializer(_shown, when_used="json")
Bytes = Annotated[int, _quota(parse_bytes), _SHOWN]
Count = Annotated[int, _quota(_whole), _SHOWN]
Seconds = Annotated[float, _quota(parse_seconds), _SHOWN]


class QuotaSettings(Section):
    """Limits of one tenant; "none" (or 0): no limit, "auto": see `resolve`."""

    device_bytes: Bytes = Field(default=AUTO)
    pinned_bytes: Bytes = Field(default=AUTO)
    durable_bytes: Bytes = Field(default=AUTO)
    sessions: Count = Field(default=AUTO)
    handles: Count = Field(default=AUTO)
    published: Count = Field(default=AUTO)
    queued_commands: Count = Field(default=AUTO)
    queued_bytes: Bytes = Field(default=AUTO)
    gpu_seconds: Seconds = Field(default=AUTO)


@dataclass(frozen=True)
class HostCapacity:
    """Capacities of the host that tenants divide, in bytes."""

    pinned_bytes: int = 0
    durable_bytes: int = 0
    several: bool = False
    """There is more than one tenant."""


def resolve(settings: QuotaSettings, means: HostCapacity) -> dict[str, Any]:
    """The fields of `tenants.Quotas`; 0: no limit.

    "auto" of what tenants could take from each other: 7/8 of each device's memory, the host's share of page-locked
    memory, half of that of durable copies; nothing of it for a tenant that is the only one. Sessions are bounded by
    shares (`shares`), the queue by `[limits]` for each session: a bound for the tenant costs it its lanes.
    """
    means = means if means.several else HostCapacity()
    auto: dict[str, int] = {
        "pinned_bytes": means.pinned_bytes,
        "durable_bytes": means.durable_bytes // 2,
        "handles": HANDLES,
        "published": PUBLISHED,
    }
    found = {name: auto.get(name, NONE) if value == AUTO else value for name, value in iter(settings)}
    if settings.device_bytes == AUTO and means.several:
        found["device_share"] = DEVICE_SHARE
    return found
