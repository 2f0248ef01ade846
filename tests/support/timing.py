"""Measurements on a machine that runs other work at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Measured = TypeVar("Measured")

LATE = 15.0
"""Seconds by which other work on the machine may delay an immediate result. A test that distinguishes an immediate
result from a timeout uses a timeout of at least twice this value."""


def steady(measure: Callable[[], Measured], good: Callable[[Measured], bool], times: int = 4) -> Measured:
    """Returns the first result that is good, otherwise the last of `times` results. Other work on the machine affects
    single measurements; a defect affects all of them, and the caller's assertion then shows the measured value."""
    for _ in range(times - 1):
        measured = measure()
        if good(measured):
            return measured
    return measure()
