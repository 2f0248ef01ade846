"""Whether, and when, a device is attached to again where that failed; without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from hearth.errors import HearthError
from hearth.transport.backoff import Patience

_RETRY_S = 0.05
_RETRY_MAX_S = 0.5
_RETRIED = ("DEVICE_LOST", "HANDLE_IN_USE")
"""Retried without being told to: a device on its way back, and a daemon that has yet to see the old stream end."""
_TOLD_TO = ("DEVICE_UNAVAILABLE", "OVERLOADED")
"""Retried where the daemon says when."""
_BROKEN_S = 1.0
"""So long a first attach whose connection breaks is tried again."""


class Reattaching:
    """The attempts to attach once, `timeout` seconds together. `absent`: whether it is certain that the daemon has
    ended."""

    def __init__(self, timeout: float, absent: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._absent = absent
        self._clock = clock
        self._deadline = clock() + timeout
        self._broken = Patience(min(timeout, _BROKEN_S), clock)
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
