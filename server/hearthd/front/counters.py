"""Counters of one device, summed over its processes: totals that never decrease.

A device process counts from 0. Its last known counts are kept when it ends, and the counts of the next process are
added. A process that crashes loses what it has counted since its last report. The front requests a report with every
ping, and a process that exits after a device fault sends a last one by itself.
"""

from __future__ import annotations

import bisect
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Number = int | float


@dataclass
class HistogramCounts:
    """A histogram of durations.

    `bounds_ns`: upper bounds of the buckets, in nanoseconds. `counts`: the count of each bucket, then that of values
    above the last bound. `sum_ns`: the sum of all values.
    """

    bounds_ns: tuple[int, ...]
    counts: list[int]
    sum_ns: int

    @staticmethod
    def up_to(bounds_s: tuple[float, ...]) -> HistogramCounts:
        """Returns an empty histogram with these upper bounds."""
        return HistogramCounts(tuple(int(bound * 1e9) for bound in bounds_s), [0] * (len(bounds_s) + 1), 0)

    def observe(self, seconds: float) -> None:
        """Adds one duration, in seconds. A negative duration counts as 0."""
        nanoseconds = max(0, int(seconds * 1e9))
        self.counts[bisect.bisect_left(self.bounds_ns, nanoseconds)] += 1
        self.sum_ns += nanoseconds


@dataclass
class Counts:
    """Counters by name, commands and errors by operation, errors also by reason and quota, and histograms by name."""

    counters: dict[str, Number] = field(default_factory=dict)
    operations: dict[str, Number] = field(default_factory=dict)
    errors: dict[str, Number] = field(default_factory=dict)
    histograms: dict[str, HistogramCounts] = field(default_factory=dict)
    reasons: dict[str, Number] = field(default_factory=dict)
    quotas: dict[str, Number] = field(default_factory=dict)

    @staticmethod
    def of(snapshot: Mapping[str, Any]) -> Counts:
        """Returns the usable entries of a device process's report, and ignores the others."""
        return Counts(
            dict(numbers(snapshot.get("counters"))),
            dict(numbers(snapshot.get("operations"))),
            dict(numbers(snapshot.get("errors"))),
            dict(_histograms(snapshot.get("histograms"))),
            dict(numbers(snapshot.get("reasons"))),
            dict(numbers(snapshot.get("quotas"))),
        )

    def merged(self, other: Counts) -> Counts:
        """Returns the sum of both. If the bounds of two histograms of one name differ, that of `other` is taken."""
        return Counts(
            _sum(self.counters, other.counters),
            _sum(self.operations, other.operations),
            _sum(self.errors, other.errors),
            _merge_histograms(self.histograms, other.histograms),
            _sum(self.reasons, other.reasons),
            _sum(self.quotas, other.quotas),
        )


SHARED_TENANT = "default"
"""The tenant to which a process's counts are attributed if the process serves no particular tenant."""
_MAX_ENDED = 64


class DeviceTotals:
    """Totals of one device over all its processes, of which several may run at a time."""

    def __init__(self) -> None:
        self._ended: dict[str, Counts] = {}
        self._reported: dict[int, Counts] = {}
        self._tenants: dict[int, str] = {}
        self._ended_generations: deque[int] = deque(maxlen=_MAX_ENDED)

    def set_tenant(self, generation: int, tenant: str) -> None:
        """Attributes the counts of this generation's process to the tenant."""
        self._tenants[generation] = tenant or SHARED_TENANT

    def observe(self, generation: int, snapshot: Mapping[str, Any]) -> None:
        """Notes the counts that this generation's process has reported.

        Late reports of a process that has ended are ignored.
        """
        if generation not in self._ended_generations:
            self._reported[generation] = Counts.of(snapshot)

    def add_final(self, generation: int) -> None:
        """Adds the last counts of a process that has ended to the totals."""
        self._ended_generations.append(generation)
        tenant = self._tenants.pop(generation, SHARED_TENANT)
        last = self._reported.pop(generation, None)
        if last is not None:
            self._ended[tenant] = self._ended.get(tenant, Counts()).merged(last)

    def by_tenant(self) -> dict[str, Counts]:
        """Returns the totals of each tenant, with the last known counts of running processes."""
        totals = dict(self._ended)
        for generation, counts in sorted(self._reported.items()):
            tenant = self._tenants.get(generation, SHARED_TENANT)
            totals[tenant] = totals.get(tenant, Counts()).merged(counts)
        return totals

    def sums(self, names: Iterable[str]) -> dict[str, Number]:
        """Returns the totals of some counters over all tenants. Faster than `counts`."""
        all_counts = [*self._ended.values(), *self._reported.values()]
        return {name: sum(counts.counters.get(name, 0) for counts in all_counts) for name in names}

    def counts(self) -> Counts:
        """Returns the totals of all tenants together."""
        total = Counts()
        for counts in self.by_tenant().values():
            total = total.merged(counts)
        return total


def numbers(values: object) -> Iterator[tuple[str, Number]]:
    """Yields the entries of a mapping that consist of a valid metric name and a number."""
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, int | float) and not isinstance(value, bool) and _NAME.fullmatch(str(name)):
            yield str(name), value


def _histograms(values: object) -> Iterator[tuple[str, HistogramCounts]]:
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if not (_NAME.fullmatch(str(name)) and isinstance(value, Mapping)):
            continue
        bounds, counts, total = value.get("bounds_ns"), value.get("counts"), value.get("sum_ns")
        if not (isinstance(bounds, list) and isinstance(counts, list) and isinstance(total, int)):
            continue
        if len(counts) != len(bounds) + 1 or not all(isinstance(number, int) for number in (*bounds, *counts)):
            continue
        yield str(name), HistogramCounts(tuple(bounds), list(counts), total)


def _sum(first: Mapping[str, Number], second: Mapping[str, Number]) -> dict[str, Number]:
    total = dict(first)
    for name, value in second.items():
        total[name] = total.get(name, 0) + value
    return total


def _merge_histograms(
    first: Mapping[str, HistogramCounts], second: Mapping[str, HistogramCounts]
) -> dict[str, HistogramCounts]:
    merged = dict(first)
    for name, histogram in second.items():
        existing = merged.get(name)
        if existing is None or existing.bounds_ns != histogram.bounds_ns:
            merged[name] = histogram
        else:
            counts = [a + b for a, b in zip(existing.counts, histogram.counts, strict=True)]
            merged[name] = HistogramCounts(existing.bounds_ns, counts, existing.sum_ns + histogram.sum_ns)
    return merged
