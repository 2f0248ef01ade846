"""Copies of durable buffers: chooses the area for the next copy, and limits the host memory used by copies under way.

A buffer's copies alternate between two areas of a file. Only the front's confirmation makes it certain which area holds
the last complete copy, because a report of a process that ends while the report is being sent may be lost. Therefore an
area is written only when the front is known to rely on the other area, so that one complete copy exists at any time.
"""

from __future__ import annotations

from typing import Literal

AreaIndex = Literal[0, 1]

CHUNK = 4 << 20
"""Size, in bytes, of one chunk of a copy out of or into a buffer: about 0.1 ms of bus time, and 1 ms of a helper
thread."""


class SnapshotAreas:
    """The two areas of one buffer, of `span` bytes each; the first starts at `offset` of the file."""

    __slots__ = ("_sent", "_writing", "committed", "offset", "span")

    def __init__(self, offset: int, span: int, committed: AreaIndex | None = None) -> None:
        self.offset = offset
        self.span = span
        self.committed = committed
        """The area whose copy the front would restore; None if no copy is complete."""
        self._writing: AreaIndex | None = None
        self._sent = False

    @property
    def idle(self) -> bool:
        """True if the next copy may begin."""
        return self._writing is None

    def at(self, area: AreaIndex) -> int:
        """Returns the file offset of an area."""
        return self.offset + area * self.span

    def begin(self) -> AreaIndex:
        """Begins a new copy, and returns the area for it. Only allowed while `idle`."""
        assert self._writing is None, "a copy is in progress"
        self._writing = 1 if self.committed == 0 else 0
        return self._writing

    def send(self) -> None:
        """Marks the copy as complete and reported to the front."""
        assert self._writing is not None, "there is no copy"
        self._sent = True

    def commit(self) -> None:
        """Marks the copy as confirmed by the front, so that the area of the previous copy becomes free."""
        assert self._sent, "the front was not notified"
        self.committed, self._writing, self._sent = self._writing, None, False

    def fail(self) -> None:
        """Ends a copy that failed; the previous copy stays valid."""
        self._writing, self._sent = None, False


class StagingAllowance:
    """Limits the staging memory (`cap` bytes in total) that all snapshots together may hold.

    Snapshots may hold a quarter, so that other transfers always have most of it. Copies whose position in the stream
    has not been reached may hold a sixteenth of the total, because they hold it as long as the work before them takes.
    """

    def __init__(self, cap: int) -> None:
        self._max_bytes = cap // 4
        self._max_early_bytes = cap // 16
        self._early_bytes = 0
        self.in_use = 0
        self.denied = False
        """True if a copy waits for memory to be returned."""

    def chunk(self, pinned: int = 0) -> int:
        """Returns the size of one chunk, in bytes, for a session.

        `pinned` is the number of bytes of host memory that the session may hold; 0: no limit.
        """
        size = max(min(CHUNK, self._max_bytes), 1)
        return max(min(size, pinned // 2), 1) if pinned else size

    def acquire(self, size: int, early: bool) -> bool:
        """Takes `size` bytes for a chunk.

        Returns False if it must wait. A single chunk is always allowed while no other chunk is held, unless it is
        `early`: the stream has not reached the position of the copy.
        """
        fits = not self.in_use or self.in_use + size <= self._max_bytes
        if not fits or (early and self._early_bytes + size > self._max_early_bytes):
            self.denied = True
            return False
        self.in_use += size
        if early:
            self._early_bytes += size
        return True

    def release(self, size: int, early: bool) -> bool:
        """Ends one `acquire`. Returns True if a copy has been waiting for memory."""
        self.in_use -= size
        if early:
            self._early_bytes -= size
        denied, self.denied = self.denied, False
        return denied
