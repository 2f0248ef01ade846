"""Spin policy: the time for which the loop of a device process polls before it sleeps, and the length of its sleeps.
Pure; times are in seconds.

Most small kernels end before a sleep would have begun, and a client that waits for one waits for little else. Long
waits are not worth a spin: each that outlasted the spin by far halves the next spin.
"""

from __future__ import annotations

SPIN_S = 50e-6
"""Longest spin of one wait, in seconds. After a request was answered, the loop polls for the next one for longer
(`devices.linger`): a client that works step by step sends it soon, 30 us later over a lane, 400 us over gRPC, and a
thread that slept meanwhile takes twice as long for it."""

CORES = 4
"""Cores below which the loop does not linger: the client may need the core."""

LEAST_S = 5e-6
"""Shortest spin, in seconds: a short wait is then still recognized as one."""

SHORTEST_S, LONGEST_S = 20e-6, 1e-3
"""Bounds of a sleep between two polls after the spin, in seconds; the longer the wait so far, the longer the sleep."""

_PART = 8
"""Divisor of the time waited so far, which gives the length of the next sleep."""


class SpinPolicy:
    """Adaptive spin-wait for one source of completions: the last wait predicts the next one."""

    __slots__ = ("_most", "_patience", "_since")

    def __init__(self, most: float = SPIN_S) -> None:
        self._since = 0.0
        self._most = self._patience = most

    def begin(self, now: float) -> None:
        """Starts a wait."""
        self._since = now

    def came(self, now: float) -> None:
        """Records the end of a wait."""
        if now - self._since <= 2 * self._most:
            self._patience = self._most
        else:
            self._patience = max(self._patience / 2, LEAST_S)
        self._since = now

    def spins(self, now: float) -> bool:
        """Returns True if the next poll follows without a sleep."""
        return now - self._since < self._patience

    def sleep(self, now: float) -> float:
        """Returns the seconds to sleep before the next poll."""
        return min(LONGEST_S, max(SHORTEST_S, (now - self._since) / _PART))


def sooner(seconds: float, asleep: float | None) -> float:
    """Returns `seconds`, or `asleep` where that is less; None: the loop would otherwise sleep until it is woken."""
    return seconds if asleep is None else min(seconds, asleep)
