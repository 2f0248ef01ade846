"""Spin policy: how long the loop of a device process polls before it sleeps, and how long it sleeps.

Pure; times are in seconds.

Most small kernels end before a sleep would have begun, and such a sleep would be a large part of the client's waiting
time. Long waits are not worth a spin: each wait that was much longer than the spin halves the next spin.
"""

from __future__ import annotations

SPIN_S = 50e-6
"""Longest spin of one wait, in seconds.

After a request was answered, the loop polls for the next one for longer (`devices.linger`). A client that works step by
step sends the next request soon, 30 us later over a lane and 400 us later over gRPC, and a thread that slept meanwhile
takes twice as long to handle it.
"""

CORES = 4
"""Smallest number of cores with which the loop polls after an answer; with fewer, the client may need the core."""

MIN_SPIN_S = 5e-6
"""Shortest spin, in seconds; it still allows a short wait to be recognized."""

MIN_SLEEP_S, MAX_SLEEP_S = 20e-6, 1e-3
"""Bounds of a sleep between two polls after the spin, in seconds. The sleep grows with the time waited so far."""

_SLEEP_DIVISOR = 8
"""The next sleep is the time waited so far, divided by this number."""


class SpinPolicy:
    """Adaptive spin-wait for one source of completions: the length of the last wait predicts the next one."""

    __slots__ = ("_max_spin", "_spin", "_started_at")

    def __init__(self, max_spin: float = SPIN_S) -> None:
        self._started_at = 0.0
        self._max_spin = self._spin = max_spin

    def begin(self, now: float) -> None:
        """Starts a wait at time `now`."""
        self._started_at = now

    def wait_ended(self, now: float) -> None:
        """Records that a wait has ended at time `now`, and adapts the length of the next spin."""
        if now - self._started_at <= 2 * self._max_spin:
            self._spin = self._max_spin
        else:
            self._spin = max(self._spin / 2, MIN_SPIN_S)
        self._started_at = now

    def spins(self, now: float) -> bool:
        """Returns True if the next poll should follow without a sleep."""
        return now - self._started_at < self._spin

    def sleep(self, now: float) -> float:
        """Returns the seconds to sleep before the next poll."""
        return min(MAX_SLEEP_S, max(MIN_SLEEP_S, (now - self._started_at) / _SLEEP_DIVISOR))


def at_most(seconds: float, limit: float | None) -> float:
    """Returns `seconds`, or `limit` if that is less.

    `limit` is None if the loop would otherwise sleep until it is woken.
    """
    return seconds if limit is None else min(seconds, limit)
