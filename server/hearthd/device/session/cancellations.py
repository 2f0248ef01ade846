"""Cancellations of a session: which of its commands are dropped instead of being executed. Pure.

A cancellation is in effect from the arrival of a DROP frame, which overtakes the session's batches, until the Cancel
command with the same number is executed in its batch. So it covers exactly the commands that the client sent before
that command, however many of them have arrived. Cancel commands are numbered in their order in the batches.
"""

from __future__ import annotations

from dataclasses import dataclass

DROPPED = frozenset(
    {"launches", "launch", "launch_graph", "launch_prepared", "dispatch", "write", "read", "copy", "fill"}
)
"""Kinds of commands that a cancellation drops. Commands on handles run, so that the client's objects stay valid; events
and syncs run, because they describe the work that was not dropped; collectives run, because their peers depend on
them."""

MAX_ACTIVE = 64
"""Largest number of cancellations in effect. A further one has no effect before its command is executed."""
MAX_SPLIT = 1024
"""Largest number of split copies that are kept; the oldest is forgotten. Those of which the client does not send all
pieces, because it was interrupted or a piece was cancelled, are removed in this way only."""


@dataclass(eq=False, slots=True)
class SplitCopy:
    """A write or read that the client sends as several commands, its pieces: either all are cancelled, or none."""

    number: int
    remaining: int
    """Number of bytes of the pieces that have not been executed."""
    begun: bool = False
    """True once a part of a piece was submitted to the device: no piece is dropped from then on."""
    dropped: bool = False
    """True once a piece was dropped: all others are dropped, also if they arrive after the cancellation's end."""


@dataclass(eq=False, slots=True)
class Cancellation:
    """A cancellation in effect."""

    stream: int
    """Handle of the stream whose commands are dropped, unless the next two attributes say otherwise."""
    all_streams: bool
    of_request: int
    """Request number of the only command that is dropped; 0: all commands of the stream or streams."""
    dropped: int = 0
    """Number of commands and launches that were dropped."""

    def covers(self, kind: str, stream: int, request: int) -> bool:
        """True if a command of this kind, on the stream with this handle, is to be dropped."""
        if kind not in DROPPED:
            return False
        if self.of_request:
            return request == self.of_request
        return self.all_streams or stream == self.stream


class Cancellations:
    """The cancellations of one session."""

    def __init__(self) -> None:
        self._active: dict[int, Cancellation] = {}
        self._last = 0
        """Number of the last Cancel command that was executed."""
        self._split: dict[int, SplitCopy] = {}

    def __bool__(self) -> bool:
        return bool(self._active)

    def begin(self, number: int, cancellation: Cancellation) -> bool:
        """Puts a cancellation into effect.

        Returns False, without effect, if its command has been executed, if it is in effect already, or if too many are.
        """
        if number <= self._last or number in self._active or len(self._active) >= MAX_ACTIVE:
            return False
        self._active[number] = cancellation
        return True

    def end(self, number: int) -> Cancellation | None:
        """Ends the cancellation whose command is executed, and all with lower numbers.

        Returns the cancellation; None if it was not in effect.
        """
        self._last = max(self._last, number)
        ended = self._active.pop(number, None)
        for lower in [active for active in self._active if active < number]:
            del self._active[lower]
        return ended

    def clear(self) -> None:
        """Ends all cancellations, because their commands will not arrive; the next attachment numbers them anew."""
        self._active.clear()
        self._last = 0

    def split(self, number: int, size: int) -> SplitCopy:
        """Returns the split copy with this number, of `size` bytes in total, to which a piece that arrives belongs."""
        split = self._split.get(number)
        if split is None:
            if len(self._split) >= MAX_SPLIT:
                del self._split[next(iter(self._split))]
            split = self._split[number] = SplitCopy(number, size)
        return split

    def has_begun(self, number: int) -> bool:
        """True if a piece of the split copy with this number has begun, so that the others are not dropped."""
        split = self._split.get(number)
        return split is not None and split.begun

    def piece_done(self, split: SplitCopy, size: int) -> None:
        """Notes that a piece of `size` bytes was executed."""
        split.begun = True
        split.remaining -= size
        if split.remaining <= 0:
            self._split.pop(split.number, None)

    def find(self, kind: str, stream: int, request: int) -> Cancellation | None:
        """Returns the first cancellation that covers a command; None if there is none."""
        for cancellation in self._active.values():
            if cancellation.covers(kind, stream, request):
                return cancellation
        return None
