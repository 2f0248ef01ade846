"""Device clock: converts device times to the host's clock.

Device time is known only as a difference between two events. Two facts relate it to host time: work starts after it was
submitted, and has ended when its completion is noticed. Every command thereby narrows the host time of the reference
event from both sides. The earliest remaining time is used; the command with the quickest start makes it exact up to the
driver's own latency of some microseconds.

A difference loses resolution as it grows (`cudaEventElapsedTime` counts milliseconds in 32-bit floats), and the two
clocks drift. Therefore the reference is renewed; each reference begins a segment with separate bounds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Segment:
    gap: int
    """Device time since the previous reference, in nanoseconds."""
    earliest: int | None = None
    latest: int | None = None


class DeviceClock:
    """Converts device times, in nanoseconds. Device times count from the reference event of their segment."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def renew(self, gap: int) -> int:
        """Begins a segment with a new reference event, `gap` nanoseconds after the previous one (0 for the first).

        Returns the number of the segment.
        """
        self._segments.append(_Segment(gap))
        return len(self._segments) - 1

    def observe(self, segment: int, started: int, ended: int, submitted: int, noticed: int) -> None:
        """Narrows the bounds of a segment with work that ran from `started` to `ended` on the device.

        `submitted` is the host time of its submission, `noticed` the host time at which its completion was noticed.
        """
        bounds = self._segments[segment]
        earliest, latest = submitted - started, noticed - ended
        bounds.earliest = earliest if bounds.earliest is None else max(bounds.earliest, earliest)
        bounds.latest = latest if bounds.latest is None else min(bounds.latest, latest)

    def references(self) -> list[int]:
        """Returns the best known host time of each segment's reference event."""
        times: list[int] = []
        for segment in self._segments:
            if times:
                time = times[-1] + segment.gap
            else:
                time = segment.earliest if segment.earliest is not None else segment.latest or 0
            if segment.latest is not None:
                time = min(time, segment.latest)
            if segment.earliest is not None:
                time = max(time, segment.earliest)  # this bound has precedence: no work starts before it was submitted
            times.append(time)
        return times
