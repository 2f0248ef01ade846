"""How long the loop of a device process may sleep, where several have a say in it."""

from __future__ import annotations


def sooner(seconds: float, asleep: float | None) -> float:
    """`seconds`, or `asleep` where that is less; None: it would otherwise sleep until it is woken."""
    return seconds if asleep is None else min(seconds, asleep)
