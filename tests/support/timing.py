"""Measuring on a machine on which others are at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Measured = TypeVar("Measured")

LATE = 15.0
"""Seconds by which other work may hold up what is due at once. It tells this from what waits for a timeout of its own,
which has to be twice as long."""


def steady(measure: Callable[[], Measured], good: Callable[[Measured], bool], times: int = 4) -> Measured:
    """The first that is good, else the last of `times`. Somebody else's work spoils one stretch; what is built wrongly
    spoils every one, and the caller's assertion then says by how much."""
    for _ in range(times - 1):
        measured = measure()
        if good(measured):
            return measured
    return measure()
