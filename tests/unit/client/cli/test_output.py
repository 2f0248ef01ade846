"""Documents, colours and units on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from hearth.cli.format import output, units


def test_a_document_or_text(capsys: Any) -> None:
    output.emit({"a": "\x1b[2J"}, True, "text")
    written = capsys.readouterr().out
    assert json.loads(written) == {"schema": 1, "a": "\x1b[2J"} and "\x1b" not in written
    output.emit({"a": 1}, False, "text")
    output.print_json({"a": 1}, indent=None)
    assert capsys.readouterr().out == 'text\n{"schema": 1, "a": 1}\n'


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "__stdout__", sys.stdout)
    assert output.columns() > 10_000
    monkeypatch.setenv("COLUMNS", "72")
    assert output.columns() == 72


@pytest.mark.parametrize(
    ("tty", "variables", "coloured"),
    [
        (True, {"TERM": "xterm"}, True),
        (False, {"TERM": "xterm"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {}, False),
    ],
)
def test_colours(tty: bool, variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty, raising=False)
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    colour = output.in_colour()
    assert output.paint("x", (output.BOLD, output.RED), colour) == ("\x1b[1;31mx\x1b[0m" if coloured else "x")
    assert output.paint("x", (), colour) == "x" and output.paint("", (output.RED,), colour) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (-3, "0 s"), (0, "0 s"), (8e-6, "8 us"), (0.012, "12 ms"), (1.49, "1.49 s"), (59, "59 s"),
        (65, "1 min 5 s"), (3600, "1 h"), (11_520, "3 h 12 min"), (266_400, "3 d 2 h"), (86_400 + 59, "1 d"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert units.duration(seconds) == text


def test_figures() -> None:
    gib = 1 << 30
    assert units.memory(12.34 * gib, 141 * gib) == "12.3/141 GiB" and units.memory(None, 16 * gib) == "-/16 GiB"
    assert units.memory(0, 512) == "0/512 B" and units.memory(5, None) == "5 bytes" and units.memory(None, 0) == "-"
    assert [units.per_second(each) for each in (None, 0, 12.34, 999, 999.6, 45_000, 2.5e6, 3e9)] == [
        "-", "0", "12.3", "999", "1k", "45k", "2.5M", "3G",
    ]  # fmt: skip
    assert units.bytes_per_second(1.5 * gib) == "1.5 GiB/s" and units.bytes_per_second(0) == "0 B/s"
    assert [units.share(each) for each in (None, 0, 0.004, 0.43, 2)] == ["-", "0 %", "<1 %", "43 %", "200 %"]
    assert units.bar(0.5, 4) == "[##--]" and units.bar(None, 2) == "[--]" and units.bar(7, 2) == "[##]"
