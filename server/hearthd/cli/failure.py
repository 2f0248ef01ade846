"""Failure of a command of `hearthd`: its message and its exit status."""

import sys
from typing import NoReturn

RUNTIME_ERROR = 1
"""The command could not do its work, or found a problem."""
USAGE_ERROR = 2
"""The arguments, or the configuration, cannot be used."""


def fail(text: str, status: int) -> NoReturn:
    """Prints a message on stderr, and raises `SystemExit` with an exit status.

    Args:
        text: The message, without the name of the program.
        status: `RUNTIME_ERROR`, `USAGE_ERROR`, or a status that only one command has.

    Raises:
        SystemExit: Always.
    """
    print(f"hearthd: {text}", file=sys.stderr)
    raise SystemExit(status)
