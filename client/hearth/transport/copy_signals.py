"""What a device writes for a client of the same host as soon as a copy is done: the number of the request that waits
for that, into memory that both share.

The daemon's answer to the same comes later: the device process has to see the end first, and to say so. Who looks for
the answer (`hearth.transport.spin_wait`) looks here, too, and goes on with what it finds. A signal says that all went
well, and it is written only where nothing else could come of it any more; the answer comes nonetheless, and is taken by
whoever receives next. Where there is no signal, it is as it would be without.

Launches do without: what a signal takes of the device process is as much as it saves who waits for a short kernel.
"""

from __future__ import annotations

from hearth.transport.memory_segments import Segment


class Signals:
    """Of one attachment: `word[0]` is the number of a request that is done, the last that was written there."""

    __slots__ = ("_segment", "word")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment  # the daemon is told when nobody has it any more
        self.word = segment.bytes.data.cast("Q")
