"""Stretch of a profile: the commands of its stream between its start and its end, by their places, and their failures.

A command has its place, (batch, index), from its arrival on, but may fail on arrival or when its turn comes. So the
place decides whether a failure falls into the stretch, never the time.
"""

from __future__ import annotations

from hearthd.device.streams.stream_errors import StreamFailure

MAX_KEPT = 32
"""Failures kept by their names; further ones are counted."""

Place = tuple[int, int]


class Stretch:
    """The failures of one profile. `since` and `until` are places; None: open on that side, as for single calls."""

    def __init__(self, since: Place | None) -> None:
        self.since = since
        self.until: Place | None = None
        self.failures: list[StreamFailure] = []
        self.more = 0

    def add(self, failure: StreamFailure) -> None:
        """Adds the failure of a command of the stream, if its place is in the stretch."""
        place = (failure.seq, failure.index)
        if place != (0, 0):  # a single call has no place
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
        """True if a command failed in the stretch: its times do not measure the intended work."""
        return bool(self.failures)
