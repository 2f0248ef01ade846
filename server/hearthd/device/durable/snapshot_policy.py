"""Copies of durable buffers: where the next one goes, and how much host memory copies under way may hold.

A buffer's copies alternate between two areas of a file. Which of them holds the last complete copy is known for sure
only when the front has said so: the report of a process that ends while it is on the way may be lost. So an area is
written to only when the front is known to count on the other one, and whatever happens there is a whole copy.
"""

from __future__ import annotations

from typing import Literal

Which = Literal[0, 1]

CHUNK = 4 << 20
"""Bytes of one copy out of a buffer, or into it: some 0.1 ms of the bus, a millisecond of a helper thread."""


class SnapshotAreas:
    """The two areas of one buffer, `span` bytes each, the first at `offset` of the file."""

    __slots__ = ("_committed", "_sent", "_writing", "offset", "span")

    def __init__(self, offset: int, span: int, committed: Which | None = None) -> None:
        self.offset = offset
        self.span = span
        self._committed = committed
        self._writing: Which | None = None
        self._sent = False

    @property
    def committed(self) -> Which | None:
        """The area whose copy the front would bring back; None: none is complete."""
        return self._committed

    @property
    def idle(self) -> bool:
        """True if the next copy may begin."""
        return self._writing is None

    def at(self, which: Which) -> int:
        """Returns the start of an area."""
        return self.offset + which * self.span

    def begin(self) -> Which:
        """A new copy begins: the area that it goes to. Only when idle."""
        assert self._writing is None, "a copy is under way"
        self._writing = 1 if self._committed == 0 else 0
        return self._writing

    def send(self) -> None:
        """Marks the copy as complete, and reported to the front."""
        assert self._writing is not None, "there is no copy"
        self._sent = True

    def commit(self) -> None:
        """Marks the copy as confirmed by the front: the area of the one before is free."""
        assert self._sent, "the front was not told"
        self._committed, self._writing, self._sent = self._writing, None, False

    def fail(self) -> None:
        """Ends a copy that failed; the one before stays valid."""
        self._writing, self._sent = None, False


class StagingAllowance:
    """Limit of the host memory for copies (`cap` bytes) that snapshots may hold together.

    A quarter, so that other transfers always have most of it; and a sixteenth of the whole for copies whose point in
    the stream has not been reached: they hold it for as long as the work before them takes.
    """

    def __init__(self, cap: int) -> None:
        self._most = cap // 4
        self._most_ahead = cap // 16
        self._ahead = 0
        self.held = 0
        self.denied = False
        """True if a copy waits for memory to be returned."""

    def chunk(self, pinned: int = 0) -> int:
        """Returns the size of one copy, where a session may hold `pinned` of host memory (0: no limit)."""
        size = max(min(CHUNK, self._most), 1)
        return max(min(size, pinned // 2), 1) if pinned else size

    def take(self, size: int, ahead: bool) -> bool:
        """Takes `size` bytes for a copy, if it may have them now; one may always go alone, once its point is
        reached."""
        fits = not self.held or self.held + size <= self._most
        if not fits or (ahead and self._ahead + size > self._most_ahead):
            self.denied = True
            return False
        self.held += size
        if ahead:
            self._ahead += size
        return True

    def give(self, size: int, ahead: bool) -> bool:
        """Ends one `take`; True if a copy has been waiting for it."""
        self.held -= size
        if ahead:
            self._ahead -= size
        denied, self.denied = self.denied, False
        return denied
