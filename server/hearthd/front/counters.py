"""Counters of one device, summed over its processes: totals that never decrease.

A device process counts from 0. Its last known counts are kept when it ends, and the counts of the next process are
added. A process that crashes loses what it has counted since its last report. The front asks for a report with every
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
    def up_to(seconds: tuple[float, ...]) -> HistogramCounts:
        """Returns an empty histogram with these upper bounds."""
        return HistogramCounts(tuple(int(bound * 1e9) for bound in seconds), [0] * (len(seconds) + 1), 0)

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
            _join(self.histograms, other.histograms),
            _sum(self.reasons, other.reasons),
            _sum(self.quotas, other.quotas),
        )


EVERYBODY = "default"
"""The tenant to which a process's counts are attributed if the process serves no particular tenant."""
_REMEMBERED = 64


class DeviceTotals:
    """Totals of one device over all its processes, of which several may run at a time."""

    def __init__(self) -> None:
        self._before: dict[str, Counts] = {}
        self._last: dict[int, Counts] = {}
        self._tenants: dict[int, str] = {}
        self._over: deque[int] = deque(maxlen=_REMEMBERED)

    def set_tenant(self, generation: int, tenant: str) -> None:
        """Attributes the counts of this generation's process to the tenant."""
        self._tenants[generation] = tenant or EVERYBODY

    def observe(self, generation: int, snapshot: Mapping[str, Any]) -> None:
        """Notes the counts that this generation's process has reported.

        Late reports of a process that has ended are ignored.
        """
        if generation not in self._over:
            self._last[generation] = Counts.of(snapshot)

    def add_final(self, generation: int) -> None:
        """Adds the last counts of a process that has ended to the totals."""
        self._over.append(generation)
        tenant = self._tenants.pop(generation, EVERYBODY)
        last = self._last.pop(generation, None)
        if last is not None:
            self._before[tenant] = self._before.get(tenant, Counts()).merged(last)

    def by_tenant(self) -> dict[str, Counts]:
        """Returns the totals of each tenant, with the last known counts of running processes."""
        found = dict(self._before)
        for generation, last in sorted(self._last.items()):
            tenant = self._tenants.get(generation, EVERYBODY)
            found[tenant] = found.get(tenant, Counts()).merged(last)
        return found

    def sums(self, names: Iterable[str]) -> dict[str, Number]:
        """Returns the totals of some counters over all tenants. Faster than `counts`."""
        every = [*self._before.values(), *self._last.values()]
        return {name: sum(counts.counters.get(name, 0) for counts in every) for name in names}

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
        if len(counts) != len(bounds) + 1 or not all(isinstance(each, int) for each in (*bounds, *counts)):
            continue
        yield str(name), HistogramCounts(tuple(bounds), list(counts), total)


def _sum(one: Mapping[str, Number], other: Mapping[str, Number]) -> dict[str, Number]:
    total = dict(one)
    for name, value in other.items():
        total[name] = total.get(name, 0) + value
    return total


def _join(one: Mapping[str, HistogramCounts], other: Mapping[str, HistogramCounts]) -> dict[str, HistogramCounts]:
    joined = dict(one)
    for name, more in other.items():
        known = joined.get(name)
        if known is None or known.bounds_ns != more.bounds_ns:
            joined[name] = more
        else:
            counts = [a + b for a, b in zip(known.counts, more.counts, strict=True)]
            joined[name] = HistogramCounts(known.bounds_ns, counts, known.sum_ns + more.sum_ns)
    return joined
