"""Output on stderr: one line for each complaint."""

from __future__ import annotations

import sys

from hearth.cli.format.printable import printable


def one_line(text: str) -> str:
    """Without the line ends of a compiler's log, say, and what else does not print; of bounded length."""
    words = " ".join(printable(text).split())
    return words if len(words) <= 1000 else f"{words[:1000]}..."


def complain(text: str) -> None:
    """Says it."""
    print(f"hearth: {one_line(text)}", file=sys.stderr, flush=True)
