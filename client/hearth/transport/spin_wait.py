"""Adaptive spin-wait: when a thread polls for an answer instead of sleeping. Pure; seconds and bytes; times are those
of `time.monotonic`.

Putting a thread to sleep and waking it takes as long as a small kernel, and the data it needs next is in no cache by
then. So a thread polls for most answers at once, because they come soon, and for those of large copies about when they
are due, which follows from earlier copies. Long waits are not worth polling for, nor is any wait on a machine with few
cores: the daemon may need the core.
"""

from __future__ import annotations

CORES = 4
"""Fewest cores for spinning; with fewer, a waiting thread sleeps at once."""

LOOK_S = 100e-6
"""The most that an answer is looked for at once."""

LEAST_S = 5e-6
"""The least: a soon one is noticed then, and known as one."""

LEAST_BYTES = 2 << 20
"""Smallest copy, in bytes, whose end is predicted."""

_MARGIN = 16
_LEAST_MARGIN_S, _MOST_MARGIN_S = 100e-6, 250e-6
"""Margin of a predicted end: polling begins 1/16 of a copy's time, within these bounds, before the copy is due, and
ends twice that after. A sleep may last 50 us longer than requested."""

_SHORT_S = 2e-3
"""A copy that takes no longer is looked for all the time, as CUDA does where it is waited for
(cudaDeviceScheduleSpin)."""

_LONGEST_S = 1.0
"""A copy that takes longer is not worth it."""

_SLOWER = 4
"""A slower copy counts for so small a part: others may have slowed it down. A faster one counts at once."""

UP, DOWN = 0, 1
"""Which way a copy goes."""


class Lookout:
    """Adaptive spin-wait of one attachment. Concurrent updates from several threads may be lost: it is only an
    estimate."""

    __slots__ = ("_early", "_ended", "_margin", "_pace", "_signalled", "copies", "ends_at", "most", "patience")

    def __init__(self, cores: int) -> None:
        self.most = self.patience = LOOK_S if cores >= CORES else 0.0
        """Seconds of polling at the most (0: never), and for the next wait."""
        self.ends_at = 0.0
        """Time at which the last copy that was asked for is due, or has ended."""
        self._early = self._margin = 0.0
        self.copies = 0
        """Number of copies under way; a failed copy is not reported."""
        self._ended = 0.0
        """Time at which the last copy ended."""
        self._signalled = 0.0
        """Time at which all awaited copies were last known to have ended."""
        self._pace: dict[tuple[int, int], float] = {}
        """Seconds for a byte, by way and magnitude of a copy."""

    # ---- answers ----

    def came(self, waited: float) -> None:
        """Notes that an answer came after `waited` seconds: the next of a series comes as soon."""
        most = self.most
        if waited <= 2 * most:
            self.patience = most
        elif most:
            self.patience = max(self.patience / 2, LEAST_S)

    # ---- copies ----

    def begin(self, way: int, size: int, now: float) -> None:
        """A copy is asked for, behind those that are under way."""
        if size < LEAST_BYTES or not self.most:
            return
        self.copies += 1
        pace = self._pace.get((way, size.bit_length()))
        if pace is not None:
            took = pace * size
            self.ends_at = max(now, self.ends_at) + took
            self._margin = min(_MOST_MARGIN_S, max(_LEAST_MARGIN_S, took / _MARGIN))
            self._early = took if took <= _SHORT_S else self._margin

    def signalled(self, now: float) -> None:
        """The device has said that what was asked for is done, before the answers have come that say it of each."""
        self._signalled, self.copies = now, 0
        self.ends_at = min(self.ends_at, now)

    def end(self, way: int, size: int, begun: float, now: float) -> None:
        """Notes that a copy is done."""
        if size < LEAST_BYTES or not self.most:
            return
        if begun < self._signalled:  # by then, and it was counted off
            now = self._signalled
        else:
            self.copies -= 1
        took, self._ended = now - max(begun, self._ended), now
        if self.copies <= 0:
            self.ends_at, self.copies = min(self.ends_at, now), 0  # sooner than it was due
        if took <= 0:  # with another, by one signal
            return
        key, pace = (way, size.bit_length()), took / size
        known = self._pace.get(key)
        self._pace[key] = pace if known is None or pace < known else known + (pace - known) / _SLOWER

    def due(self, now: float) -> tuple[float, float] | None:
        """Returns the interval in which to poll for the end of the last copy; None: it is not polled for."""
        begins, ends = self.ends_at - self._early, self.ends_at + 2 * self._margin
        return (begins, ends) if now < ends and begins - now < _LONGEST_S else None
