"""Adaptive spin-wait: decides when a thread polls for an answer instead of sleeping.

Pure computation, in seconds and bytes; times are those of `time.monotonic`. Putting a thread to sleep and waking it
takes as long as a small kernel, after which the data that it needs next is in no cache. So a thread polls for most
answers immediately, because they arrive soon. It polls for the answers of large copies near the time at which they are
due, which is predicted from earlier copies. Polling is not worth its cost for long waits, nor for any wait on a machine
with few cores, because the daemon may need the core.
"""

from __future__ import annotations

CORES = 4
"""Minimum number of cores for polling; with fewer cores, a waiting thread sleeps immediately."""

MAX_SPIN_S = 100e-6
"""Maximum duration, in seconds, of immediate polling for an answer."""

MIN_SPIN_S = 5e-6
"""Minimum duration, in seconds, of that polling: enough to notice that answers arrive early again."""

MIN_PREDICTED_BYTES = 2 << 20
"""Smallest copy, in bytes, whose end is predicted."""

_MARGIN = 16
_MIN_MARGIN_S, _MAX_MARGIN_S = 100e-6, 250e-6
"""Margin of a predicted end. Polling begins 1/16 of the copy's duration, within these bounds in seconds, before the
copy is due, and ends twice that time after. A sleep may last 50 us longer than requested."""

_SHORT_COPY_S = 2e-3
"""Copies predicted to take at most this many seconds are polled for from their beginning, as CUDA does for waits with
cudaDeviceScheduleSpin."""

_LONGEST_S = 1.0
"""A copy is not polled for if polling would begin later than this many seconds from now."""

_SLOWER_DIVISOR = 4
"""Divisor of the weight of a slower copy in the estimated pace, because other work may have slowed it down. A faster
copy replaces the estimate immediately."""

UP, DOWN = 0, 1
"""Direction of a copy: to the device, to the host."""


class SpinWait:
    """Adaptive spin-wait of one attachment.

    Concurrent updates by several threads may be lost, which is acceptable for an estimate.
    """

    __slots__ = ("_early", "_ended", "_margin", "_pace", "_signalled", "copies", "ends_at", "max_spin_s", "spin_s")

    def __init__(self, cores: int) -> None:
        self.max_spin_s = self.spin_s = MAX_SPIN_S if cores >= CORES else 0.0
        """Maximum duration of immediate polling, in seconds (0: never), and the duration for the next wait."""
        self.ends_at = 0.0
        """Time at which the last requested copy is due, or has ended."""
        self._early = self._margin = 0.0
        self.copies = 0
        """Number of copies in flight; failed copies are not subtracted."""
        self._ended = 0.0
        """Time at which the last copy ended."""
        self._signalled = 0.0
        """Time at which all awaited copies were last known to have ended."""
        self._pace: dict[tuple[int, int], float] = {}
        """Seconds per byte, by direction and order of magnitude of a copy."""

    # ---- answers ----

    def answer_arrived(self, waited: float) -> None:
        """Adapts to an answer that arrived: the next one is expected to take as long.

        Args:
            waited: Seconds from the beginning of the wait to the answer.
        """
        max_spin_s = self.max_spin_s
        if waited <= 2 * max_spin_s:
            self.spin_s = max_spin_s
        elif max_spin_s:
            self.spin_s = max(self.spin_s / 2, MIN_SPIN_S)

    # ---- copies ----

    def begin(self, direction: int, size: int, now: float) -> None:
        """Records the request of a copy, after the copies in flight.

        Args:
            direction: Direction: `UP` or `DOWN`.
            size: Size of the copy in bytes.
            now: Monotonic time in seconds.
        """
        if size < MIN_PREDICTED_BYTES or not self.max_spin_s:
            return
        self.copies += 1
        pace = self._pace.get((direction, size.bit_length()))
        if pace is not None:
            duration = pace * size
            self.ends_at = max(now, self.ends_at) + duration
            self._margin = min(_MAX_MARGIN_S, max(_MIN_MARGIN_S, duration / _MARGIN))
            self._early = duration if duration <= _SHORT_COPY_S else self._margin

    def signalled(self, now: float) -> None:
        """Records that the device has signalled the end of all requested copies, before their answers have arrived.

        Args:
            now: Monotonic time in seconds.
        """
        self._signalled, self.copies = now, 0
        self.ends_at = min(self.ends_at, now)

    def copy_ended(self, direction: int, size: int, requested_at: float, now: float) -> None:
        """Records that a copy has ended, and updates the estimated pace.

        Args:
            direction: Direction: `UP` or `DOWN`.
            size: Size of the copy in bytes.
            requested_at: Monotonic time in seconds at which the copy was requested.
            now: Monotonic time in seconds.
        """
        if size < MIN_PREDICTED_BYTES or not self.max_spin_s:
            return
        if requested_at < self._signalled:  # the copy ended by the time of the signal, which has already subtracted it
            now = self._signalled
        else:
            self.copies -= 1
        duration, self._ended = now - max(requested_at, self._ended), now
        if self.copies <= 0:
            self.ends_at, self.copies = min(self.ends_at, now), 0  # all copies ended earlier than predicted
        if duration <= 0:  # it ended together with another copy, by one signal
            return
        key, pace = (direction, size.bit_length()), duration / size
        estimate = self._pace.get(key)
        self._pace[key] = (
            pace if estimate is None or pace < estimate else estimate + (pace - estimate) / _SLOWER_DIVISOR
        )

    def poll_interval(self, now: float) -> tuple[float, float] | None:
        """Returns the interval in which to poll for the end of the last copy; None: it is not polled for.

        Args:
            now: Monotonic time in seconds.
        """
        start, end = self.ends_at - self._early, self.ends_at + 2 * self._margin
        return (start, end) if now < end and start - now < _LONGEST_S else None
