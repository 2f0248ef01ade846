"""Rates computed from two status documents of one daemon. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Document = Mapping[str, Any]


class Rates(NamedTuple):
    """Rates of one device, per second; None: unknown."""

    busy: float | None = None
    """Fraction of the time during which the device was busy, from 0 to 1."""
    launches: float | None = None
    commands: float | None = None
    received: float | None = None
    """Bytes per second to the device."""
    sent: float | None = None
    """Bytes per second from the device."""


_COUNTERS = {
    "device_busy_ns": 1e-9, "kernel_launches": 1.0, "commands": 1.0, "host_to_device_bytes": 1.0,
    "device_to_host_bytes": 1.0,
}  # fmt: skip
"""A device's counters, in the order of `Rates`, and the factor of the rate of each."""
NAMES = (
    "busy_ratio", "launches_per_second", "commands_per_second", "received_bytes_per_second", "sent_bytes_per_second",
)  # fmt: skip
"""Names of the rates in documents. The daemon reports them under "throughput", over its last seconds."""


def elapsed(before: Document | None, now: Document) -> float | None:
    """Returns the seconds between the two documents, by the daemon's clock.

    Returns None without an earlier document, or if the daemon was restarted in between.
    """
    if before is None or before.get("started_unix") != now.get("started_unix"):
        return None
    seconds = now.get("uptime_seconds", 0.0) - before.get("uptime_seconds", 0.0)
    return float(seconds) if seconds > 0 else None


def device_rates(before: Document | None, now: Document) -> dict[int, Rates]:
    """Returns the rates by ordinal, computed from the two documents.

    For a device without earlier counters to compare with, returns the rates that the daemon reports.
    """
    seconds = elapsed(before, now)
    counted = {d["ordinal"]: d.get("counters") or {} for d in (before or {}).get("devices", ())}
    by_ordinal = {}
    for device in now.get("devices", ()):
        ordinal, counters = device["ordinal"], device.get("counters") or {}
        if seconds is None or ordinal not in counted:
            reported = device.get("throughput") or {}
            by_ordinal[ordinal] = Rates(*map(reported.get, NAMES))
        else:
            by_ordinal[ordinal] = Rates(
                *(
                    _rate(counted[ordinal].get(name), counters.get(name), seconds, factor)
                    for name, factor in _COUNTERS.items()
                )
            )
    return by_ordinal


def session_rates(before: Document | None, now: Document) -> dict[str, float | None]:
    """Returns device seconds per second, by session id. A session that uses several devices may exceed 1."""
    seconds = elapsed(before, now)
    used = {session["id"]: session.get("device_seconds", 0.0) for session in (before or {}).get("sessions", ())}
    return {
        session["id"]: None
        if seconds is None
        else _rate(used.get(session["id"], 0.0), session.get("device_seconds"), seconds)
        for session in now.get("sessions", ())
    }


def busiest_first(document: Document, devices: Mapping[int, Rates], sessions: Mapping[str, float | None]) -> Document:
    """Returns the document with devices and sessions sorted by the device time that they used since the last document.

    Further keys are the total device time (sessions), then ordinal or id, so that idle entries keep their places.
    """
    return {
        **document,
        "devices": sorted(
            document.get("devices", ()),
            key=lambda device: (-(devices[device["ordinal"]].busy or 0.0), device["ordinal"]),
        ),
        "sessions": sorted(
            document.get("sessions", ()),
            key=lambda session: (-(sessions[session["id"]] or 0.0), -session.get("device_seconds", 0.0), session["id"]),
        ),
    }


def memory_used(device: Mapping[str, Any]) -> int | None:
    """Returns the used bytes of a device, as reported by the driver; None: unknown.

    Without a report, returns the bytes held by those processes of the daemon that the caller may see.
    """
    used: int | None = (device.get("memory") or {}).get("used_bytes")
    if used is not None:
        return used
    gauges = device.get("gauges") or {}
    sizes = [gauges[name] for name in ("memory_reserved_bytes", "memory_in_use_bytes") if name in gauges]
    if device.get("processes"):
        sizes.append(sum(process.get("memory_held_bytes", 0) for process in device["processes"]))
    return max(sizes) if sizes else None


def queued(device: Mapping[str, Any]) -> int | None:
    """Returns the number of waiting commands; None: unknown."""
    waiting: int | None = (device.get("queue") or {}).get("commands")
    return (device.get("gauges") or {}).get("commands_waiting") if waiting is None else waiting


def _rate(before: float | None, now: float | None, seconds: float, factor: float = 1.0) -> float | None:
    """Returns the rate; None if the value is not counted, or has decreased."""
    return None if before is None or now is None or now < before else (now - before) * factor / seconds
