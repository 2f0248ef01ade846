"""Device times on the host's clock.

The device's clock is known only by differences between events. What ties it to the host's is what cannot be otherwise:
work starts after it was submitted, and has ended when its end is seen. Every command narrows the host time of the
reference event from both sides; of what is left the earliest is taken, which the quickest start of all commands makes
exact to within the driver's own latency, some microseconds.

A difference loses its resolution as it grows (`cudaEventElapsedTime` counts milliseconds in 32-bit floats), and the two
clocks drift, so the reference is renewed: each begins a segment with separate bounds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Segment:
    gap: int
    """Device time since the reference before it."""
    earliest: int | None = None
    latest: int | None = None


class DeviceClock:
    """Conversion of device times, in nanoseconds. Device times count from their segment's reference event."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def renew(self, gap: int) -> int:
        """A reference event `gap` after the one before begins a segment; its number. The first one's gap is 0."""
        self._segments.append(_Segment(gap))
        return len(self._segments) - 1

    def observe(self, segment: int, started: int, ended: int, submitted: int, seen: int) -> None:
        """Work from `started` to `ended` on the device was submitted, and seen to be done, at these host times."""
        known = self._segments[segment]
        earliest, latest = submitted - started, seen - ended
        known.earliest = earliest if known.earliest is None else max(known.earliest, earliest)
        known.latest = latest if known.latest is None else min(known.latest, latest)

    def references(self) -> list[int]:
        """The host time of every segment's reference event, as far as it is known by now."""
        times: list[int] = []
        for segment in self._segments:
            if times:
                time = times[-1] + segment.gap
            else:
                time = segment.earliest if segment.earliest is not None else segment.latest or 0
            if segment.latest is not None:
                time = min(time, segment.latest)
            if segment.earliest is not None:
                time = max(time, segment.earliest)  # nothing starts before it was submitted, whatever else is said
            times.append(time)
        return times
