"""Transfers under way: bytes that have arrived and wait for their Write, chunks on their way out."""

from __future__ import annotations

from collections import deque

from hearth_proto.reasons import Refusal


class Upload:
    """Bytes that have arrived for a Write, or are expected."""

    def __init__(self) -> None:
        self.chunks: deque[memoryview] = deque()
        self.claimed = False
        self.ended = False
        self.error: Refusal | None = None
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
