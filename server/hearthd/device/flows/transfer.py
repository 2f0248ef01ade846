"""Transfers under way: bytes that have arrived for a Write, and chunks of a Read that are being sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from hearth_proto.reasons import Refusal
from hearthd.device.flows.segment import SegmentRange
from hearthd.device.flows.stripe_state import StripedDownload, StripedUpload
from hearthd.device.flows.stripe_window import StripeStaging
from hearthd.device.streams.pending_outcomes import PendingOutcome

S = TypeVar("S", StripedUpload, StripedDownload)


class FinishedTransfers:
    """Numbers of the last `REMEMBERED` transfers that have ended, because late messages of them may still arrive."""

    REMEMBERED = 1024

    def __init__(self) -> None:
        self._sizes: dict[int, int | None] = {}

    def __contains__(self, transfer: object) -> bool:
        return transfer in self._sizes

    def add(self, transfer: int, size: int | None = None) -> None:
        """Records a transfer that has ended.

        `size` is the size of a complete upload, which the client may not know to be complete.
        """
        self._sizes[transfer] = size
        if len(self._sizes) > self.REMEMBERED:
            del self._sizes[next(iter(self._sizes))]

    def uploaded(self, transfer: int) -> int | None:
        """Returns the size of a completed upload, in bytes; None if it did not complete."""
        return self._sizes.get(transfer)


class TransferFlow(Generic[S]):
    """A transfer under way, in either direction."""

    def __init__(self, number: int, striped_type: type[S]) -> None:
        self.number = number
        self._striped_type: type[S] = striped_type
        self.claimed = False
        """True once a command has named the transfer."""
        self.submitted = 0
        """Number of bytes whose copies have been submitted to the device."""
        self.striped: S | None = None
        """Set while the bytes travel over stripes."""
        self.location: SegmentRange | None = None
        """Location of the bytes in memory that the client shares; None if they are not there."""

    def use_stripes(self, chunk: int, stripe_staging: StripeStaging) -> S:
        """Returns the state of this transfer over stripes, which is created at the first call."""
        if self.striped is None:
            self.striped = self._striped_type(self.number, chunk, stripe_staging)
        return self.striped

    def end_bulk(self) -> None:
        """Ends the use of stripes and of shared memory.

        Called when the transfer has ended, or when all its bytes travel over Upload or Download.
        """
        if self.striped is not None:
            self.striped.drop()
            self.striped = None
            self.submitted = 0
        if self.location is not None:
            self.location.segment.drop()
            self.location = None
            self.submitted = 0


class UploadFlow(TransferFlow[StripedUpload]):
    """An upload: bytes that have arrived or are expected for a Write."""

    def __init__(self, number: int) -> None:
        super().__init__(number, StripedUpload)
        self.chunks: deque[memoryview] = deque()
        self.ended = False
        self.error: Refusal | None = None

    @property
    def streamed(self) -> bool:
        """True if bytes have arrived over Upload."""
        return bool(self.chunks or self.submitted or self.ended)


class DownloadFlow(TransferFlow[StripedDownload]):
    """A download: chunks of a Read that are being sent."""

    def __init__(self, number: int) -> None:
        super().__init__(number, StripedDownload)
        self.sent: Callable[[], None] | None = None
        """Answers the Read, after the last chunk; None for a dispatch, which checks the contents by itself."""
        self.credits = 0
        self.streamed = False
        """True once the client receives bytes over Download."""
        self.aborted = False
        self.refused = False
        """True if it was answered with an error after a part of it had been submitted to the device."""
        self.outcomes: dict[PendingOutcome, None] = {}
        """Outcomes of collectives that the copied bytes depended on."""
