"""The table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.stats import Row, Summary

_STYLE = {"aim": "green", "at least": "yellow", "below": "red", "": ""}


def show(rows: Sequence[Row], failed: Mapping[str, str], described: Mapping[str, Any], seconds: float) -> None:
    """Prints the rows, and what could not be measured."""
    console = Console(width=max(150, Console().width))
    devices = described["devices"]
    title = f"{len(devices)} x {devices[0]['name']}, commit {described['commit'][:12]}, {seconds:.0f} s"
    table = Table(title=title, title_justify="left")
    table.add_column("what")
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
        "Median, with the 10th and 90th percentile in brackets; green: the aim, yellow: at least, red: below."
    )
    for name, why in failed.items():
        console.print(f"[red]{name} could not be measured[/red]: {why}", markup=True, highlight=False)


def _value(summary: Summary, unit: str) -> str:
    spread = f" [dim]({_number(summary.p10)}..{_number(summary.p90)})[/dim]" if summary.n > 1 else ""
    return f"{_number(summary.median)} {unit}".strip() + spread


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _bound(row: Row, bound: float | None) -> str:
    if bound is None:
        return ""
    sign = "<= " if row.better == "lower" else ""
    return f"{sign}{bound:g}" + (f" {row.unit}" if row.baseline is None and row.unit else "")
