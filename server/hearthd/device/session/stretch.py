"""Stretch of a profile: the commands of its stream between its start and its end, by position, and their failures.

A command has its position, (batch, index), from its arrival on, but may fail on arrival or when it runs. Therefore the
position decides whether a failure belongs to the stretch, not the time.
"""

from __future__ import annotations

from hearthd.device.streams.stream_errors import StreamFailure

MAX_KEPT = 32
"""Most failures kept individually; further failures are only counted."""

Position = tuple[int, int]
"""Position of a command: (batch, index)."""


class Stretch:
    """The failures of one profile between the positions `since` and `until`.

    None: no bound on that side, as for single calls.
    """

    def __init__(self, since: Position | None) -> None:
        self.since = since
        self.until: Position | None = None
        self.failures: list[StreamFailure] = []
        self.omitted = 0
        """Number of failures that are not in `failures`."""

    def add(self, failure: StreamFailure) -> None:
        """Adds the failure of a command of the stream, if the command's position is in the stretch."""
        position = (failure.seq, failure.index)
        if position != (0, 0):  # a single call has no position
            if self.since is not None and position <= self.since:
                return
            if self.until is not None and position >= self.until:
                return
        if len(self.failures) < MAX_KEPT:
            self.failures.append(failure)
        else:
            self.omitted += 1

    @property
    def void(self) -> bool:
        """True if a command failed in the stretch, so that the measured times do not describe the intended work."""
        return bool(self.failures)
