"""What goes to stderr: one line for each thing that is wrong."""

from __future__ import annotations

import sys


def one_line(text: str) -> str:
    """Without the line ends of a compiler's log, say, and of bounded length."""
    words = " ".join(text.split())
    return words if len(words) <= 1000 else f"{words[:1000]}..."


def complain(text: str) -> None:
    """Says it."""
    print(f"hearth: {one_line(text)}", file=sys.stderr, flush=True)
