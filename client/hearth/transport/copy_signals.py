"""Completion signals of copies: a device of the same host writes a finished copy's request number to shared memory.

The daemon's answer to the same request comes later: the device process has to observe the end first, and to report it.
A thread that polls for the answer (`hearth.transport.spin_wait`) polls here too, and continues with the number that it
finds. A signal means success, and is written only where no other outcome is possible; the answer follows all the same,
and the next receiver takes it. Without a signal, a copy completes by its answer alone.

Launches have no signals: one costs the device process as much as it saves the thread that waits for a short kernel.
"""

from __future__ import annotations

from hearth.transport.memory_segments import Segment


class Signals:
    """Signal word of one attachment: `word[0]` is the number of the completed request that was written last."""

    __slots__ = ("_segment", "word")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment  # its last release is reported to the daemon
        self.word = segment.bytes.data.cast("Q")
