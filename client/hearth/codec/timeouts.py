"""Timeouts that callers pass, in seconds: their check, and their conversion to nanoseconds for commands."""

from __future__ import annotations

from hearth.errors import ArgumentError

_MAX_S = 2**63 / 1e9
"""Limit of the wire format, which has nanoseconds in a signed integer of 64 bits: 292 years."""


def check(timeout: float) -> None:
    """Checks a timeout.

    Args:
        timeout: Seconds.

    Raises:
        ArgumentError: `timeout` is not a number above 0 and below 292 years.
    """
    try:
        valid = 0 < timeout < _MAX_S
    except (TypeError, ValueError):  # a string, an array
        valid = False
    if not valid:
        raise ArgumentError(
            f"timeout is {timeout!r}; it must be a number of seconds above 0.",
            fix="pass a timeout above 0, in seconds.",
        )


def nanoseconds(timeout: float | None) -> int:
    """Converts a timeout from seconds to nanoseconds, at least 1.

    Args:
        timeout: Seconds; None: the daemon's default.

    Returns:
        The nanoseconds; 0 for None.

    Raises:
        ArgumentError: `timeout` is not a number above 0 and below 292 years.
    """
    if timeout is None:
        return 0
    check(timeout)
    return max(1, int(timeout * 1e9))
