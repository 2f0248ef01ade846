"""Messages on stderr, each on one line, and the error of an invalid argument."""

from __future__ import annotations

import sys

from hearth.cli.format.printable import printable
from hearth.errors import ArgumentError


def one_line(text: str) -> str:
    """Returns `text` on one line of at most 1003 characters.

    Line ends (as of a compiler's log) become spaces, and other unprintable characters ``?``.
    """
    words = " ".join(printable(text).split())
    return words if len(words) <= 1000 else f"{words[:1000]}..."


def complain(text: str) -> None:
    """Prints `text` as one line on stderr."""
    print(f"hearth: {one_line(text)}", file=sys.stderr, flush=True)


def invalid_argument(problem: str, fix: str) -> ArgumentError:
    """Returns the error of an invalid argument of a command. `problem` and `fix` have no full stop."""
    return ArgumentError(f"{problem}.", fix=f"{fix}.")
