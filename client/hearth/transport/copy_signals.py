"""Completion signals of copies: a device of the same host writes a finished copy's request number to shared memory.

The daemon's answer to the same request arrives later, because the device process first has to observe the end and
report it. A thread that polls for the answer (`hearth.transport.spin_wait`) also polls the signal word, and continues
as soon as it finds the number. A signal means success, and is written only if no other outcome is possible. The answer
follows nevertheless, and the next receiver processes it. Without a signal, a copy is completed by its answer alone.

Launches have no signals: a signal costs the device process as much time as it saves the thread that waits for a short
kernel.
"""

from __future__ import annotations

from hearth.transport.memory_segments import Segment


class Signals:
    """Signal word of one attachment: `word[0]` is the number of the request that was completed last."""

    __slots__ = ("_segment", "word")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment  # kept: the device process is notified when the segment is garbage-collected
        self.word = segment.bytes.data.cast("Q")
