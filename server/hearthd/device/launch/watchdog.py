"""Time limits of kernels: a running kernel cannot be stopped, so its process is.

A limited launch stands between two marks on its track. Its clock runs from when the first mark is done (what came
before has ended) to when the second is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from hearthd.device.platform.spin_policy import sooner
from hearthd.device.streams.stream_pool import PooledStream, StreamPool

CHECK_S = 0.01
"""How often limits are looked at while any launch has one."""


def shorter(wanted: float, default: float) -> float:
    """Seconds that a session's launches may run: what it wants, and no more than the daemon's default; 0: no limit."""
    return min(wanted, default) if wanted and default else wanted or default


@dataclass(eq=False)
class TimeLimit:
    kernel: str
    seconds: float
    session: str = ""
    deadline: float | None = None


class Watchdog:
    """Belongs to the device-handle thread."""

    def __init__(self, tracks: StreamPool) -> None:
        self._tracks = tracks
        self._limits: set[TimeLimit] = set()

    @contextlib.contextmanager
    def limit(self, track: PooledStream, kernel: str, seconds: float, session: str = "") -> Iterator[None]:
        """What is given to the track inside may run for `seconds`."""
        limit = TimeLimit(kernel, seconds, session)

        def started() -> None:
            limit.deadline = time.monotonic() + seconds

        self._tracks.on_complete(track, started, still_to_come=1)
        yield
        self._limits.add(limit)
        self._tracks.on_complete(track, lambda: self._limits.discard(limit))

    def expired(self) -> TimeLimit | None:
        """A limit that has been passed."""
        if not self._limits:
            return None
        now = time.monotonic()
        return next((limit for limit in self._limits if limit.deadline is not None and now > limit.deadline), None)

    def sleep(self, wanted: float | None) -> float | None:
        """`wanted`, but no longer than until limits have to be looked at again."""
        if not self._limits:
            return wanted
        return sooner(CHECK_S, wanted)
