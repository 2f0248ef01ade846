"""Lines of text of a status document, for `status` and `top`, each in one colour. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hearth.cli.format import output, units
from hearth.cli.format.printable import fit, printable, width
from hearth.cli.format.table import table
from hearth.cli.top.rates import Document, Rates, memory_used, queued

_BAR = "BAR"
_HEADER = ("DEVICE", "NAME", "STATE", "GEN", _BAR, "MEMORY", "BUSY", "QUEUED", "LAUNCH/S", "CMD/S", "IN", "OUT")
_FIRST_FIGURE = 5
"""The first of the columns that are aligned to the right."""
_SECOND = frozenset({"QUEUED", "LAUNCH/S", "CMD/S", "IN", "OUT", "TEMP", "POWER"})
"""The columns on the second line of a device, in layouts with two lines."""


class _Layout(NamedTuple):
    """A form of the table of devices."""

    name_width: int
    """Maximum width of a device's name."""
    omitted: frozenset[str] = frozenset()
    """Columns that are left out."""
    second: frozenset[str] = frozenset()
    """Columns on the second line of a device; empty: each device has one line."""


_LAYOUTS = (
    _Layout(28),
    _Layout(16),
    _Layout(16, frozenset({_BAR})),
    _Layout(28, frozenset(), _SECOND),
    _Layout(28, frozenset({_BAR}), _SECOND),
    _Layout(16, frozenset({_BAR}), _SECOND),
    _Layout(16, frozenset({_BAR, "GEN", "CMD/S", "QUEUED"}), _SECOND),
    _Layout(8, frozenset({_BAR, "GEN", "CMD/S", "QUEUED", "TEMP", "POWER"}), _SECOND),
)
"""The first layout that fits is used, otherwise the last one, whose lines are cut. Only the last two leave out figures;
the bar repeats the figure next to it."""
SESSION_HEADER = ("SESSION", "DEVICE TIME", "DEVICES", "TENANT", "AGE", "LEASE", "CLIENT")
_INDENT = " " * 8
_TENANT_WIDTH = 16
_BAR_CELLS = 10
_LOAD_S = 1.0
"""Minimum seconds for which a module load has waited for kernels before it is shown."""


class ScreenLine(NamedTuple):
    """A line of a screen, of any width, with its colours."""

    text: str = ""
    codes: tuple[str, ...] = ()

    def render(self, columns: int, colour: bool) -> str:
        """Returns the text, cut to `columns`, and in colour if `colour` is True."""
        return output.paint(fit(self.text, columns), self.codes, colour)


def clock(document: Document) -> float:
    """Returns the time at which the daemon made the document, in seconds since 1970."""
    return float(document.get("started_unix", 0.0)) + float(document.get("uptime_seconds", 0.0))


def state(document: Document) -> ScreenLine:
    """Returns the line "ready", "draining" or "not ready"."""
    if document.get("ready"):
        return ScreenLine("ready", (output.GREEN,))
    return (
        ScreenLine("draining", (output.YELLOW,)) if document.get("draining") else ScreenLine("not ready", (output.RED,))
    )


def daemon(document: Document) -> str:
    """Returns the daemon's version and uptime as text."""
    return f"hearthd {printable(document.get('version', '?'))}, up {units.duration(document.get('uptime_seconds'))}"


def session_count(document: Document) -> str:
    """Returns the number of sessions, as text."""
    sessions = document.get("sessions", ())
    connected = sum(bool(session.get("connected")) for session in sessions)
    return f"{len(sessions)} ({connected} connected)" if sessions else "none"


def devices(document: Document, rates: Mapping[int, Rates], columns: int) -> list[ScreenLine]:
    """Returns the headings and the lines of each device, in the order of the document: two lines if one is too wide.

    Below a device that does not serve, another line shows the reason.
    """
    entries = document.get("devices", ())
    if not entries:
        return [ScreenLine("no devices")]
    for layout in _LAYOUTS:
        groups = _devices(entries, rates, layout)
        if all(width(text) <= columns for texts in groups for text in texts):
            break
    headings, *rows = groups
    lines = [ScreenLine(text, (output.BOLD,)) for text in headings]
    for device, texts in zip(entries, rows, strict=True):
        codes = () if device.get("state") == "serving" else (output.RED,)
        lines += [ScreenLine(text, codes) for text in texts]
        if device.get("detail"):
            lines.append(ScreenLine(f"{_INDENT}{printable(device['detail'])}", (output.RED,)))
        if waiting := _loads(device):
            lines.append(ScreenLine(f"{_INDENT}{waiting}", (output.YELLOW,)))
    return lines


def _loads(device: Mapping[str, Any]) -> str:
    """Describes the modules that wait to be loaded; an empty string if none has waited noticeably."""
    gauges = device.get("gauges") or {}
    count, longest = int(gauges.get("loads_waiting", 0)), gauges.get("load_wait_longest_ns", 0) / 1e9
    if not count or longest < _LOAD_S:
        return ""
    subject = "1 module load is waiting" if count == 1 else f"{count} module loads are waiting"
    return f"{subject} for kernels to end, the longest for {units.duration(longest)}"


def _devices(
    entries: Sequence[Mapping[str, Any]], rates: Mapping[int, Rates], layout: _Layout
) -> list[tuple[str, ...]]:
    """Returns the lines of the headings, then those of each device."""
    gpu = any(device.get("gpu") for device in entries)
    names = [*_HEADER, *(("TEMP", "POWER") if gpu else ())]
    rows = [_device(device, rates.get(device["ordinal"], Rates()), layout.name_width, gpu) for device in entries]
    columns = {index: name for index, name in enumerate(names) if name not in layout.omitted}
    first = _columns(rows, {index: name for index, name in columns.items() if name not in layout.second})
    if not layout.second:
        return [(text,) for text in first]
    second = _columns(rows, {index: name for index, name in columns.items() if name in layout.second})
    return [(above, f"{_INDENT}{below}") for above, below in zip(first, second, strict=True)]


def _columns(rows: list[list[str]], columns: Mapping[int, str]) -> list[str]:
    """Returns the lines of a table with some of the columns; `columns`: their names by index."""
    numbers = frozenset(column for column, index in enumerate(columns) if index in (0, 3) or index >= _FIRST_FIGURE)
    has_bar = _BAR in columns.values()  # has the heading of the figure next to it
    header = ["MEMORY" if name == _BAR else "" if has_bar and name == "MEMORY" else name for name in columns.values()]
    return table(header, [[row[index] for index in columns] for row in rows], numbers).splitlines()


def _device(device: Mapping[str, Any], rates: Rates, name_width: int, gpu: bool) -> list[str]:
    used, total = memory_used(device), (device.get("memory") or {}).get("total_bytes")
    waiting = queued(device)
    row = [
        str(device["ordinal"]),
        fit(printable(device.get("name", "")), name_width),
        printable(device.get("state", "")),
        str(device.get("generation", units.NONE)),
        units.bar(used / total if used is not None and total else None, _BAR_CELLS),
        units.memory(used, total),
        units.share(rates.busy),
        units.NONE if waiting is None else str(waiting),
        units.per_second(rates.launches),
        units.per_second(rates.commands),
        units.bytes_per_second(rates.received),
        units.bytes_per_second(rates.sent),
    ]
    if gpu:
        reading = device.get("gpu") or {}
        temperature, power = reading.get("temperature"), reading.get("power")
        row += [
            units.NONE if temperature is None else f"{temperature:.0f} C",
            units.NONE if power is None else f"{power:.0f} W",
        ]
    return row


def sessions(document: Document, used: Mapping[str, float | None]) -> list[ScreenLine]:
    """Returns a heading and a line for each session, in the document's order.

    `used`: device seconds per second, by session id.
    """
    entries = document.get("sessions", ())
    if not entries:
        return [ScreenLine("no sessions")]
    now = clock(document)
    rows = []
    for session in entries:
        name, time_used, devices, tenant, *others = session_cells(session, now)
        rows.append(
            [name, units.share(used.get(session["id"])), time_used, devices, fit(tenant, _TENANT_WIDTH), *others]
        )
    header = [SESSION_HEADER[0], "BUSY", *SESSION_HEADER[1:]]
    heading, *lines = table(header, rows, frozenset({1, 2, 5})).splitlines()
    return [ScreenLine(heading, (output.BOLD,)), *map(ScreenLine, lines)]


def session_cells(session: Mapping[str, Any], now: float) -> list[str]:
    """Returns the cells of `SESSION_HEADER` for a session of a status document. `now`: seconds since 1970."""
    lease = "connected" if session.get("connected") else f"{units.duration(session.get('lease_left_seconds'))} left"
    return [
        printable(session["id"]),
        units.duration(session.get("device_seconds")),
        ",".join(map(str, session.get("devices", ()))) or units.NONE,
        printable(session.get("tenant", "")),
        units.duration(now - session.get("opened_unix", now)),
        lease,
        client(session.get("client", ""), session.get("dedicated", False), session.get("process", "")),
    ]


def client(name: str, dedicated: bool, process: str = "") -> str:
    """Returns the name that the client declared, with `process`, its host and pid, unless the name begins with them.

    They distinguish clients of one name.
    """
    shown = printable(name) or units.NONE
    if process and not name.startswith(process):
        shown += f" ({printable(process)})"
    return shown + (" (dedicated)" if dedicated else "")


def faults(document: Document, limit: int) -> list[ScreenLine]:
    """Returns a line for each of the `limit` latest faults."""
    entries = list(document.get("faults") or ())
    lines = []
    for fault in entries[:limit]:
        kernels = ", ".join(map(printable, fault.get("kernels") or ()))
        ago = units.duration(clock(document) - fault.get("time_unix", 0.0))
        lines.append(
            ScreenLine(
                f"{ago} ago: device {fault.get('device')}, generation {fault.get('generation')}: "
                f"{printable(fault.get('reason', ''))}: {printable(fault.get('detail', ''))}"
                + (f" (kernels: {kernels})" if kernels else ""),
                (output.YELLOW,),
            )
        )
    if len(entries) > limit:
        lines.append(ScreenLine(f"... {len(entries) - limit} more"))
    return lines
