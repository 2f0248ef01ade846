"""Output on stdout: one document with `--json`, otherwise text, in colour only on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = 1
"""Schema number of every document. Under the same number, keys may be added, but none is renamed."""

_UNBOUNDED = 1_000_000

RED, GREEN, YELLOW, BOLD = "31", "32", "33", "1"


def emit(document: Mapping[str, Any], as_json: bool, text: str) -> None:
    """Prints the document as JSON, or `text`, which contains the same for people."""
    if as_json:
        print_json(document)
    else:
        print(text, flush=True)


def print_json(document: Mapping[str, Any], indent: int | None = 2) -> None:
    """Prints the document as JSON, with `SCHEMA`. None for `indent`: on one line, for commands that print several."""
    import json

    print(json.dumps({"schema": SCHEMA, **document}, indent=indent), flush=True)


def columns() -> int:
    """Returns the width of a line: COLUMNS, otherwise the terminal's width; unlimited without a terminal."""
    return shutil.get_terminal_size((_UNBOUNDED if not sys.stdout.isatty() else 80, 24)).columns


def in_colour() -> bool:
    """True if stdout is a terminal that shows colours and the user wants them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def paint(text: str, codes: Sequence[str], colour: bool) -> str:
    """Returns `text` in the colours of `codes` if `colour` is True; its visible width does not change."""
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if colour and codes and text else text
