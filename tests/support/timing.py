"""Measuring on a machine on which others are at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Measured = TypeVar("Measured")

LATE = 15.0
"""Seconds by which other work may hold up what is due at once. A test that tells a prompt result from a timeout uses a
timeout of at least twice as long."""


def steady(measure: Callable[[], Measured], good: Callable[[Measured], bool], times: int = 4) -> Measured:
    """Returns the first result that is good, otherwise the last of `times`. Other work on the machine spoils one
    stretch; a defect spoils every one, and the caller's assertion then says by how much."""
    for _ in range(times - 1):
        measured = measure()
        if good(measured):
            return measured
    return measure()
