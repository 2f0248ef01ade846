"""A frame of `hearth top`, built from two documents. Pure."""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass

from hearth.cli.format import output, units
from hearth.cli.format.printable import printable
from hearth.cli.top import lines, rates
from hearth.cli.top.lines import ScreenLine
from hearth.cli.top.rates import Document

_ROOMY = 12
"""Minimum number of lines of a terminal for which totals and gaps are shown."""
_REASON_LINES = 3
"""Maximum number of lines for the reason why a daemon does not answer."""


@dataclass(frozen=True)
class Outage:
    """A daemon that does not answer."""

    reason: str
    since: float
    """Time of the last answer, in seconds since 1970, by this machine's clock."""


def frame(
    before: Document | None,
    now: Document,
    *,
    outage: Outage | None = None,
    at: float,
    columns: int,
    rows: int | None = None,
) -> list[ScreenLine]:
    """Returns the lines for the time since `before`, sorted by device time.

    `at`: this machine's time, in seconds since 1970; `columns`: width of a line; `rows`: maximum number of lines (None:
    no limit).
    """
    by_device, by_session = rates.device_rates(before, now), rates.session_rates(before, now)
    ordered = rates.busiest_first(now, by_device, by_session)
    devices, sessions = lines.devices(ordered, by_device, columns), lines.sessions(ordered, by_session)
    heading, gap = [_heading(now, outage, at)], [ScreenLine()]
    if outage is not None:
        heading += [
            ScreenLine(text, (output.RED,)) for text in textwrap.wrap(printable(outage.reason), columns)[:_REASON_LINES]
        ]
    if rows is None or rows >= _ROOMY:
        heading += [ScreenLine()] if outage is not None else [_totals(now, list(by_device.values())), ScreenLine()]
    else:
        gap = []
    if rows is not None:
        room = max(0, rows - len(heading) - len(gap))
        devices = _cut(devices, max(room - len(sessions), (room + 1) // 2), "devices")
        sessions = _cut(sessions, room - len(devices), "sessions")
    return (heading + devices + gap + sessions)[:rows]


def _heading(document: Document, outage: Outage | None, at: float) -> ScreenLine:
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    node = printable(document.get("node", "?"))
    if outage is not None:
        since = time.strftime("%H:%M:%S", time.localtime(outage.since))
        text = f"{clock}  {node}: unreachable since {since} ({units.duration(max(0, int(at - outage.since)))})"
        return ScreenLine(text, (output.BOLD, output.RED))
    state = lines.state(document)
    return ScreenLine(f"{clock}  {node}: {state.text}; {lines.daemon(document)}", (output.BOLD, *state.codes))


def _totals(document: Document, devices: list[rates.Rates]) -> ScreenLine:
    serving = sum(device.get("state") == "serving" for device in document.get("devices", ()))
    received, sent = (
        _sum([entry.received for entry in devices]),
        _sum([entry.sent for entry in devices]),
    )
    launches = _sum([entry.launches for entry in devices])
    return ScreenLine(
        f"devices: {serving} of {len(document.get('devices', ()))} serving; sessions: "
        f"{lines.session_count(document)}; launches: {units.per_second(launches)}/s; "
        f"in {units.bytes_per_second(received)}, out {units.bytes_per_second(sent)}"
    )


def _sum(values: list[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return sum(known_values) if known_values else None


def _cut(screen_lines: list[ScreenLine], limit: int, kind: str) -> list[ScreenLine]:
    if len(screen_lines) <= limit:
        return screen_lines
    if limit <= 0:
        return []
    return [*screen_lines[: limit - 1], ScreenLine(f"... {len(screen_lines) - limit + 1} more lines of {kind}")]
