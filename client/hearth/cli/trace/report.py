"""Output of `hearth trace show`, as text and as a JSON document."""

from __future__ import annotations

from typing import Any

from hearth.cli.format.table import number, table
from hearth.cli.format.units import size_name
from hearth.cli.trace.summary import Row, Summary

_LONGEST = 60


def to_text(path: str, summary: Summary, top: int) -> str:
    """Returns the tables, each sorted by time in descending order. `top`: maximum number of rows of each."""
    work = sum(row.count for rows in (summary.kernels, summary.transfers, summary.others) for row in rows)
    parts = [f"{path}: {work} commands with work for a device, in {_time(summary.span_us)}"]
    if summary.dropped or summary.lost:
        parts[0] += f"; {summary.dropped} more were dropped, {summary.lost} traces were lost with their device"
    if not work:
        return parts[0] + "\nNo device had any work."
    parts.append(_rows("kernels", summary.kernels, top))
    parts.append(_transfers(summary.transfers, top))
    parts.append(_rows("other work", summary.others, top))
    busy = {device: (used, span) for device, used, span in summary.devices}
    rows = [(_short(stream.stream), str(stream.commands), _time(stream.busy_us), _percent(stream.ratio), stream.device)
            for stream in summary.streams[:top]]  # fmt: skip
    for device, (used, span) in busy.items():
        rows.append(("all streams", "", _time(used), _percent(used / span if span else 1.0), device))
    parts.append(table(("stream", "commands", "busy", "share of time", "device"), rows, frozenset({1, 2, 3})))
    gaps = [(_time(gap.us), f"at {_time(gap.start_us)}", f"after {_short(gap.after)}, before {_short(gap.before)}",
             gap.device) for gap in summary.gaps]  # fmt: skip
    if gaps:
        parts.append(table(("longest gap", "", "", "device"), gaps, frozenset({0})))
    failed = [(str(count), _short(name), reason) for (name, reason), count in summary.errors.items()]
    if failed:
        parts.append(table(("failed", "", "reason"), failed, frozenset({0})))
    return "\n\n".join(part for part in parts if part)


def to_json(path: str, summary: Summary) -> dict[str, Any]:
    """Returns the JSON document, with all rows."""
    return {
        "file": path,
        "span_us": summary.span_us,
        "dropped": summary.dropped,
        "lost": summary.lost,
        "kernels": [_row(row) for row in summary.kernels],
        "transfers": [{**_row(row), "bytes": row.bytes, "gb_per_s": row.gb_per_s} for row in summary.transfers],
        "others": [_row(row) for row in summary.others],
        "devices": [{"name": name, "busy_us": busy, "span_us": span} for name, busy, span in summary.devices],
        "streams": [vars(entry) for entry in summary.streams],
        "gaps": [vars(entry) for entry in summary.gaps],
        "errors": [
            {"name": name, "reason": reason, "count": count} for (name, reason), count in summary.errors.items()
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "count": row.count,
        "total_us": row.total_us,
        "mean_us": row.mean_us,
        "max_us": row.max_us,
    }


def _rows(title: str, rows: list[Row], top: int) -> str:
    if not rows:
        return ""
    total = sum(row.total_us for row in rows)
    cells = [
        (_short(row.name), str(row.count), _time(row.total_us), _percent(row.total_us / total if total else 0.0),
         _time(row.mean_us), _time(row.max_us))
        for row in rows[:top]
    ]  # fmt: skip
    text = table((title, "count", "total", "share", "mean", "max"), cells, frozenset({1, 2, 3, 4, 5}))
    return text + _more(rows, top)


def _transfers(rows: list[Row], top: int) -> str:
    if not rows:
        return ""
    cells = [
        (row.name, str(row.count), size_name(row.bytes), _time(row.total_us),
         number(row.gb_per_s) if row.gb_per_s is not None else "-", _time(row.max_us))
        for row in rows[:top]
    ]  # fmt: skip
    return table(("transfers", "count", "bytes", "total", "GB/s", "max"), cells, frozenset({1, 2, 3, 4, 5})) + _more(
        rows, top
    )


def _more(rows: list[Row], top: int) -> str:
    return f"\nand {len(rows) - top} more (--top {len(rows)})" if len(rows) > top else ""


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _time(us: float) -> str:
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if us >= factor:
            return f"{number(us / factor)} {unit}"
    return f"{number(us)} us"
