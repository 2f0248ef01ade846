"""Transfers under way: bytes that have arrived for a Write, and chunks of a Read on their way out."""

from __future__ import annotations

from collections import deque

from hearth_proto.reasons import Refusal
from hearthd.device.flows.segment import SegmentRange
from hearthd.device.flows.stripe_state import StripedDownload, StripedUpload
from hearthd.device.streams.pending_outcomes import PendingOutcome


class FinishedTransfers:
    """Numbers of transfers that have ended, bounded: their last messages may still arrive."""

    REMEMBERED = 1024

    def __init__(self) -> None:
        self._sizes: dict[int, int | None] = {}

    def __contains__(self, transfer: object) -> bool:
        return transfer in self._sizes

    def add(self, transfer: int, size: int | None = None) -> None:
        """Records a transfer that has ended. `size` is that of a complete upload, whose client may not know yet."""
        self._sizes[transfer] = size
        if len(self._sizes) > self.REMEMBERED:
            del self._sizes[next(iter(self._sizes))]

    def uploaded(self, transfer: int) -> int | None:
        """The bytes of an upload that has come whole; None: it has not."""
        return self._sizes.get(transfer)


class UploadFlow:
    """An upload: bytes that have arrived or are expected for a Write."""

    def __init__(self) -> None:
        self.chunks: deque[memoryview] = deque()
        self.claimed = False
        self.ended = False
        self.error: Refusal | None = None
        self.written = 0
        self.striped: StripedUpload | None = None
        """Set while the bytes come over stripes."""
        self.placed: SegmentRange | None = None
        """Place of the bytes in memory that the client shares."""

    def unstripe(self) -> None:
        """Ends the use of stripes and of shared memory: the transfer has ended, or all its bytes come by Upload."""
        if self.striped is not None:
            self.striped.drop()
            self.striped = None
            self.written = 0
        if self.placed is not None:
            self.placed.segment.drop()
            self.placed = None
            self.written = 0


class DownloadFlow:
    """A download: chunks of a Read on their way out."""

    def __init__(self) -> None:
        self.credits = 0
        self.open = False
        self.claimed = False
        self.aborted = False
        self.refused = False
        """True if it was answered with an error after some of it had been submitted to the device."""
        self.queued = 0
        self.striped: StripedDownload | None = None
        """Set while the bytes go over stripes."""
        self.placed: SegmentRange | None = None
        """Place for the bytes in memory that the client shares."""
        self.outcomes: dict[PendingOutcome, None] = {}
        """Outcomes of collectives that the copied bytes depended on."""

    def unstripe(self) -> None:
        """Ends the use of stripes and of shared memory: the transfer has ended, or all its bytes go by Download."""
        if self.striped is not None:
            self.striped.drop()
            self.striped = None
            self.queued = 0
        if self.placed is not None:
            self.placed.segment.drop()
            self.placed = None
            self.queued = 0
