"""The human-readable table of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.bench.stats import Row, Summary

_STYLE = {"aim": "green", "at least": "yellow", "below": "red", "": ""}
_SCALED: Mapping[str, Callable[[float], tuple[float, str]]] = {
    "s": lambda value: (1.0, "s") if value >= 1 else (1e3, "ms"),
    "1/s": lambda value: (1.0, "/s") if value < 1e4 else (1e-3, "k/s"),
    "GB/s": lambda value: (1.0, "GB/s") if value >= 0.1 else (1e3, "MB/s"),
}


def show(rows: Sequence[Row], failed: Mapping[str, str], described: Mapping[str, Any], seconds: float) -> None:
    """Prints the rows, and the groups that could not be measured."""
    console = Console(width=max(156, Console().width))
    devices = described["devices"]
    commit = described["commit"]
    commit = commit[:12] + "+" * commit.endswith("+")
    title = f"{len(devices)} x {devices[0]['name']}, commit {commit}, {seconds:.0f} s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("what", no_wrap=True)
    for column in ("Hearth", "baseline"):
        table.add_column(column, justify="right")
    table.add_column("against")
    for column in ("ratio", "at least", "aim"):
        table.add_column(column, justify="right")
    group = ""
    for row in rows:
        if group and row.group != group:
            table.add_section()
        group = row.group
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        if ratio and row.verdict:
            ratio = f"[{_STYLE[row.verdict]}]{ratio}[/]"
        ours = _value(row.hearth, row.unit)
        if row.baseline is None and row.verdict:
            ours = f"[{_STYLE[row.verdict]}]{ours}[/]"
        table.add_row(
            row.what,
            ours,
            "" if row.baseline is None else _value(row.baseline, row.unit),
            row.baseline_name,
            ratio,
            _bound(row, row.at_least),
            _bound(row, row.aim),
        )
    console.print(table)
    console.print(
        "Medians ± half of p10..p90; green: the aim, yellow: at least, red: below. Spread and notes: the JSON."
    )
    for name, why in failed.items():
        console.print(f"[red]{name} could not be measured[/red]: {escape(why)}", highlight=False)


def _value(summary: Summary, unit: str) -> str:
    """Returns the median in a suitable unit, and half the distance from the 10th to the 90th percentile as a percentage
    of it."""
    factor = 1.0
    if unit in _SCALED:
        factor, unit = _SCALED[unit](summary.median)
    spread = ""
    if summary.n > 1 and summary.median:
        spread = f" [dim]±{50 * (summary.p90 - summary.p10) / summary.median:.0f} %[/dim]"
    return f"{_number(summary.median * factor)} {unit}".strip() + spread


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _bound(row: Row, bound: float | None) -> str:
    if bound is None:
        return ""
    sign = "<= " if row.better == "lower" else ""
    return f"{sign}{bound:g}" + (f" {row.unit}" if row.baseline is None and row.unit else "")
