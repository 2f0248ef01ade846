"""Transfers under way: bytes that have arrived and wait for their Write, chunks on their way out."""

from __future__ import annotations

from collections import deque

from hearth_proto.reasons import Refusal
from hearthd.device.striped import StripedDownload, StripedUpload


class Upload:
    """Bytes that have arrived for a Write, or are expected."""

    def __init__(self) -> None:
        self.chunks: deque[memoryview] = deque()
        self.claimed = False
        self.ended = False
        self.error: Refusal | None = None
        self.written = 0
        self.striped: StripedUpload | None = None
        """While its bytes come over stripes."""

    def unstripe(self) -> None:
        """It is over, or its bytes come another way: from the first on."""
        if self.striped is not None:
            self.striped.drop()
            self.striped = None
            self.written = 0


class Download:
    """Chunks of a Read on their way out."""

    def __init__(self) -> None:
        self.credits = 0
        self.open = False
        self.claimed = False
        self.aborted = False
        self.refused = False
        """Whether it was answered with an error when some of it had been given to the device."""
        self.queued = 0
        self.striped: StripedDownload | None = None
        """While its bytes go over stripes."""

    def unstripe(self) -> None:
        """It is over, or its bytes go another way: from the first on."""
        if self.striped is not None:
            self.striped.drop()
            self.striped = None
            self.queued = 0
