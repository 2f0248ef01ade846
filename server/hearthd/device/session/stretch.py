"""What fails between the start and the end of a profile: which commands of its stream these are, by their places.

A command has its place, (batch, index), from its arrival on, but may fail when it arrives or when its turn comes. So it
is the place that decides whether a failure falls into the stretch, never the moment.
"""

from __future__ import annotations

from hearthd.device.streams.stream_errors import StreamFailure

MAX_KEPT = 32
"""Failures kept by their names; what comes beyond is counted."""

Place = tuple[int, int]


class Stretch:
    """The failures of one profile. `since` and `until` are places; None: open on that side, as for single calls."""

    def __init__(self, since: Place | None) -> None:
        self.since = since
        self.until: Place | None = None
        self.failures: list[StreamFailure] = []
        self.more = 0

    def add(self, failure: StreamFailure) -> None:
        """A command of the stream has failed."""
        place = (failure.seq, failure.index)
        if place != (0, 0):  # of a single call: it has no place but the moment
            if self.since is not None and place <= self.since:
                return
            if self.until is not None and place >= self.until:
                return
        if len(self.failures) < MAX_KEPT:
            self.failures.append(failure)
        else:
            self.more += 1

    @property
    def void(self) -> bool:
        """Whether anything failed in it, so that its times are of something else than what was asked for."""
        return bool(self.failures)
