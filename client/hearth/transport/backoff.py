"""Backoff: how long, and in which steps, what broke or was refused is tried again; without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.errors import HearthError

FIRST_S = 0.005
MOST_S = 0.5
_RETRY_S = 0.05
_RETRY_MAX_S = 0.5
_RETRIED = ("DEVICE_LOST", "HANDLE_IN_USE")
"""Retried without a hint of the daemon: a device on its way back, and a daemon that has yet to see the old stream
end."""
_TOLD_TO = ("DEVICE_UNAVAILABLE", "OVERLOADED")
"""Retried where the daemon says when."""
_BROKEN_S = 1.0
"""Seconds during which a first attach whose connection breaks is repeated."""


def may_go_on(error: HearthError) -> bool:
    """True if another stream may replace one that ended with `error`: its connection broke, an older connection of this
    client displaced it with a late attach, or an overloaded daemon refused it."""
    return error.broken or error.reason in ("HANDLE_IN_USE", "OVERLOADED")


class Backoff:
    """Pauses that grow from none to half a second, until `seconds` have passed."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._deadline = clock() + seconds
        self._pause = 0.0

    def pause(self, least: float = 0.0) -> float | None:
        """Seconds to wait before the next attempt, `least` or more; None: there is no time for another."""
        left = self._deadline - self._clock()
        if left <= 0:
            return None
        import random  # not before something broke: it takes a while to import

        pause, self._pause = self._pause, min(MOST_S, max(FIRST_S, 2 * self._pause))
        # Many clients have lost the same daemon, or were asked to come again at the same time.
        return min(left, max(pause * random.uniform(0.75, 1.25), least * random.uniform(1.0, 1.25)))


class AttachBackoff:
    """The attempts to attach once, `timeout` seconds together. `absent`: whether it is certain that the daemon has
    ended."""

    def __init__(self, timeout: float, absent: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._absent = absent
        self._clock = clock
        self._deadline = clock() + timeout
        self._broken = Backoff(min(timeout, _BROKEN_S), clock)
        self._pause = _RETRY_S

    @property
    def left(self) -> float:
        """Seconds that the next attempt may take."""
        return max(0.1, self._deadline - self._clock())

    def pause(self, error: HearthError) -> float:
        """Seconds until the next attempt, where one failed with `error`. Raises it where there is no other."""
        if error.broken:
            again = None if self._absent() else self._broken.pause()
            if again is None:
                raise error
            return again
        wait = error.retry_after if error.retry_after is not None else self._pause
        told_to = error.reason in _TOLD_TO and error.retry_after is not None
        if not (told_to or error.reason in _RETRIED) or self._clock() + wait > self._deadline:
            raise error
        self._pause = min(2 * self._pause, _RETRY_MAX_S)
        return wait
