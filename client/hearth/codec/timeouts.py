"""Timeouts that callers pass, in seconds: their check, and their conversion to nanoseconds for commands."""

from __future__ import annotations

import math

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


def check_wait(timeout: float | None) -> float | None:
    """Checks the timeout of a call that waits; a timeout of 0 or less does not wait.

    Args:
        timeout: Seconds; None: no limit.

    Returns:
        The timeout as a float; None: no limit.

    Raises:
        ArgumentError: `timeout` is not a number below 292 years.
    """
    if timeout is None:
        return None
    try:
        seconds = float(timeout) if timeout < _MAX_S else math.inf
    except (TypeError, ValueError):  # a string, an array
        seconds = math.inf
    if seconds == math.inf:
        raise ArgumentError(
            f"timeout is {timeout!r}; it must be a number of seconds.",
            fix="pass a timeout in seconds, or None to wait without a limit.",
        )
    return seconds


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
