"""Watchdog: time limits of kernels. A running kernel cannot be stopped, so its process is.

A limited launch stands between two markers on its track. Its clock runs from the completion of the first marker (all
earlier work has ended) to that of the second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from hearthd.device.platform.spin_policy import sooner
from hearthd.device.streams.stream_pool import PooledStream, StreamPool

CHECK_S = 0.01
"""Interval at which limits are checked while any launch has one, in seconds."""


def shorter(wanted: float, default: float) -> float:
    """Returns the seconds that a session's launches may run: the session's wish, at most the daemon's default; 0: no
    limit."""
    return min(wanted, default) if wanted and default else wanted or default


@dataclass(eq=False)
class TimeLimit:
    kernel: str
    seconds: float
    session: str = ""
    deadline: float | None = None


class Watchdog:
    """Limits of the launches under way. Device-handle thread only."""

    def __init__(self, tracks: StreamPool) -> None:
        self._tracks = tracks
        self._limits: set[TimeLimit] = set()

    @contextlib.contextmanager
    def limit(self, track: PooledStream, kernel: str, seconds: float, session: str = "") -> Iterator[None]:
        """Limits the work that is submitted to the track inside to `seconds`."""
        limit = TimeLimit(kernel, seconds, session)

        def started() -> None:
            limit.deadline = time.monotonic() + seconds

        self._tracks.on_complete(track, started, still_to_come=1)
        yield
        self._limits.add(limit)
        self._tracks.on_complete(track, lambda: self._limits.discard(limit))

    def expired(self) -> TimeLimit | None:
        """Returns a limit that has been exceeded, if any."""
        if not self._limits:
            return None
        now = time.monotonic()
        return next((limit for limit in self._limits if limit.deadline is not None and now > limit.deadline), None)

    def sleep(self, wanted: float | None) -> float | None:
        """Returns how long the loop may sleep: at most `wanted`, and at most until the next check of limits."""
        if not self._limits:
            return wanted
        return sooner(CHECK_S, wanted)
