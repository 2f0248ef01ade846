"""Watchdog: time limits of kernels. A running kernel cannot be stopped, so the process is ended instead.

A launch with a limit is submitted between two markers on its track. Its time is measured from the completion of the
first marker (all earlier work is done) to the completion of the second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from hearthd.device.platform.spin_policy import at_most
from hearthd.device.streams.stream_pool import PooledStream, StreamPool

CHECK_S = 0.01
"""Interval, in seconds, at which limits are checked while any launch has one."""


def shorter_limit(requested: float, default: float) -> float:
    """Returns the time limit of a session's launches in seconds: `requested`, capped by the daemon's `default`.

    For each of the three, 0 means no limit.
    """
    return min(requested, default) if requested and default else requested or default


@dataclass(eq=False)
class TimeLimit:
    """Time limit of submitted work, in seconds.

    `deadline` is a time of `time.monotonic`; None until the device begins the work.
    """

    kernel: str
    seconds: float
    session: str = ""
    deadline: float | None = None


class Watchdog:
    """Time limits of the launches under way. Device-handle thread only."""

    def __init__(self, tracks: StreamPool) -> None:
        self._tracks = tracks
        self._limits: set[TimeLimit] = set()

    @contextlib.contextmanager
    def limit(self, track: PooledStream, kernel: str, seconds: float, session: str = "") -> Iterator[None]:
        """Context manager: limits the work that is submitted to the track inside the block to `seconds`."""
        limit = TimeLimit(kernel, seconds, session)

        def started() -> None:
            limit.deadline = time.monotonic() + seconds

        self._tracks.on_complete(track, started, unsubmitted=1)
        yield
        self._limits.add(limit)
        self._tracks.on_complete(track, lambda: self._limits.discard(limit))

    def expired(self) -> TimeLimit | None:
        """Returns a limit that has been exceeded; None if there is none."""
        if not self._limits:
            return None
        now = time.monotonic()
        return next((limit for limit in self._limits if limit.deadline is not None and now > limit.deadline), None)

    def max_sleep(self, timeout: float | None) -> float | None:
        """Returns how long the loop may sleep, in seconds: at most `timeout`, and at most until the next check."""
        if not self._limits:
            return timeout
        return at_most(CHECK_S, timeout)
