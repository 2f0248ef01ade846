"""Backoff: pauses between attempts to repeat what broke or was refused; without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.errors import HearthError

FIRST_S = 0.005
MAX_PAUSE_S = 0.5
_RETRY_S = 0.05
_RETRY_MAX_S = 0.5
_RETRIED = ("DEVICE_LOST", "HANDLE_IN_USE")
"""Reasons after which an attach is repeated without a hint of the daemon: a device that is restarting, and a daemon
that has yet to notice the end of the old stream."""
_RETRIED_WITH_HINT = ("DEVICE_UNAVAILABLE", "OVERLOADED")
"""Reasons after which an attach is repeated if the daemon says when."""
_BROKEN_S = 1.0
"""Seconds during which a first attach is repeated if its connection breaks."""


def may_replace_stream(error: HearthError) -> bool:
    """True if another stream may replace one that ended with `error`.

    That is so if its connection broke, if an older connection of this client displaced it with a late attach, or if an
    overloaded daemon refused it.
    """
    return error.broken or error.reason in ("HANDLE_IN_USE", "OVERLOADED")


class Backoff:
    """Pauses that grow from zero to `MAX_PAUSE_S`, until `seconds` have passed."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._deadline = clock() + seconds
        self._pause = 0.0

    def pause(self, minimum: float = 0.0) -> float | None:
        """Returns the seconds to wait before the next attempt.

        Args:
            minimum: Seconds to wait at least, unless less time is left.

        Returns:
            The pause, or None if no time is left.
        """
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            return None
        import random  # imported only after a failure, because the import takes a while

        pause, self._pause = self._pause, min(MAX_PAUSE_S, max(FIRST_S, 2 * self._pause))
        # Random, because many clients may have lost the same daemon, or were asked to return at the same time.
        return min(remaining, max(pause * random.uniform(0.75, 1.25), minimum * random.uniform(1.0, 1.25)))


class AttachBackoff:
    """Attempts of one attach, limited to `timeout` seconds in total.

    `absent` returns True if the daemon has certainly ended.
    """

    def __init__(self, timeout: float, absent: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._absent = absent
        self._clock = clock
        self._deadline = clock() + timeout
        self._broken_backoff = Backoff(min(timeout, _BROKEN_S), clock)
        self._pause = _RETRY_S

    @property
    def attempt_timeout(self) -> float:
        """Timeout, in seconds, of the next attempt."""
        return max(0.1, self._deadline - self._clock())

    def pause(self, error: HearthError) -> float:
        """Returns the seconds until the next attempt, after one that failed with `error`.

        Args:
            error: Error of the last attempt.

        Raises:
            HearthError: There is no further attempt; this is `error`.
        """
        if error.broken:
            pause = None if self._absent() else self._broken_backoff.pause()
            if pause is None:
                raise error
            return pause
        wait = error.retry_after if error.retry_after is not None else self._pause
        has_hint = error.reason in _RETRIED_WITH_HINT and error.retry_after is not None
        if not (has_hint or error.reason in _RETRIED) or self._clock() + wait > self._deadline:
            raise error
        self._pause = min(2 * self._pause, _RETRY_MAX_S)
        return wait
