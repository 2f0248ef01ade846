"""The failures that an error lists.

Separate from `errors.py`, which every client imports, because the creation of a dataclass takes longer than that of all
exception classes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A command that failed after it was sent."""

    command: str
    """Kind and subject of the command, e.g. ``launch saxpy``."""
    stream: int
    """Handle of the logical stream that the command was submitted to."""
    reason: str
    message: str
    merged: int = 0
    """Number of older failures that this entry represents in addition to its own."""
    caller: str = ""
    """File, line and function that submitted the command, e.g. ``train.py:12 in step``; empty unless the environment
    variable HEARTH_DEBUG is set."""
