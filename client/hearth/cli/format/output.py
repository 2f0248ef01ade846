"""Output on stdout: one document with `--json`, otherwise text, in colour only on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

SCHEMA = 1
"""Schema number of every document: keys may be added under it, none is renamed."""

_UNBOUNDED = 1_000_000

RED, GREEN, YELLOW, BOLD, FAINT = "31", "32", "33", "1", "2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help='print one JSON document ("schema": 1; base units)')


def emit(document: Mapping[str, Any], as_json: bool, text: str) -> None:
    """Prints the document, or `text`, which says the same to people."""
    if as_json:
        import json

        text = json.dumps({"schema": SCHEMA, **document}, indent=2)
    print(text, flush=True)


def emit_line(document: Mapping[str, Any]) -> None:
    """Prints the document on one line, where more follow."""
    import json

    print(json.dumps({"schema": SCHEMA, **document}), flush=True)


def columns() -> int:
    """Returns the width of a line: COLUMNS, otherwise the terminal's width; unlimited without a terminal."""
    return shutil.get_terminal_size((_UNBOUNDED if not sys.stdout.isatty() else 80, 24)).columns


def in_colour() -> bool:
    """Returns whether stdout shows colours and the user wants them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


class Paint:
    """Colours, or none."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown

    def __call__(self, text: str, *codes: str) -> str:
        """`text`, whose width stays as it is, in the colours of `codes`."""
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self._shown and codes and text else text
