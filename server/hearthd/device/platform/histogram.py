"""Latencies in fixed logarithmic buckets: one integer increment to observe, monotone counts to export."""

from __future__ import annotations

from dataclasses import dataclass, field

BUCKETS = 27
"""Finite buckets: 1 us, 2 us, 4 us, ... 67.1 s."""

BOUNDS_NS: tuple[int, ...] = tuple(1000 << index for index in range(BUCKETS))
"""Upper bounds, inclusive as Prometheus's `le` is, in nanoseconds; what is longer falls into one more bucket."""


def bucket(ns: int) -> int:
    """The bucket of a duration in nanoseconds; what is below 1 us, a clock's step back among it, into the first."""
    return min(((ns - 1) // 1000).bit_length(), BUCKETS) if ns > 0 else 0


@dataclass
class Histogram:
    """How often each latency was met. `counts` are those of the buckets, not cumulated; the last is beyond all."""

    counts: list[int] = field(default_factory=lambda: [0] * (BUCKETS + 1))
    sum_ns: int = 0

    def observe(self, ns: int) -> None:
        if ns > 0:
            self.sum_ns += ns
            at = ((ns - 1) // 1000).bit_length()  # as `bucket` has it, without its cost: this is on everybody's path
            self.counts[at if at < BUCKETS else BUCKETS] += 1
        else:
            self.counts[0] += 1

    def snapshot(self, more_at_once: int = 0) -> dict[str, object]:
        """What travels to the front; `more_at_once` observations of 0 are added that nobody took the time to count."""
        counts = list(self.counts)
        counts[0] += more_at_once
        return {"bounds_ns": list(BOUNDS_NS), "counts": counts, "sum_ns": self.sum_ns}
