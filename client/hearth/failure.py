"""The failures that an error lists.

Apart from `errors.py`, which every client imports: a dataclass takes longer to make than all of those classes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A command that failed after it was sent."""

    command: str
    """Kind and subject of the command, e.g. ``launch saxpy``."""
    stream: int
    """The number of the logical stream it was submitted to."""
    reason: str
    message: str
    merged: int = 0
    """Number of older failures that this entry stands for, beyond itself."""
