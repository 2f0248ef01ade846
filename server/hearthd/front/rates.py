"""Rates of counters over the last seconds, and their history over the last minutes. Pure: the time is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

WINDOW_S = 10.0
"""Time, in seconds, over which a rate is computed. Shorter while fewer samples exist, longer if no sample was taken in
between."""
SAMPLE_INTERVAL_S = 0.5
"""Minimum interval between kept samples, in seconds. An earlier sample replaces the last one, which limits their
number."""
CURRENT_S = 3.0
"""Age, in seconds, up to which the last sample counts as present. Device processes report every two seconds."""

HISTORY_S = 300.0
"""Time, in seconds, for which a history keeps rates."""
HISTORY_INTERVAL_S = 1.0
"""Minimum interval between two entries of a history, in seconds."""

Number = int | float


class Rates:
    """Rates of counters that never decrease."""

    def __init__(self) -> None:
        self.samples: deque[tuple[float, Mapping[str, Number]]] = deque()
        """The samples that are kept, oldest first, each with its time."""

    def sample(self, now: float, counts: Mapping[str, Number]) -> None:
        """Adds the values of the counters at the time `now`, which must not be earlier than the last one."""
        samples = self.samples
        if len(samples) > 1 and now - samples[-2][0] < SAMPLE_INTERVAL_S:
            samples.pop()
        samples.append((now, counts))
        while len(samples) > 2 and now - samples[1][0] >= WINDOW_S:
            samples.popleft()

    def per_second(self, now: float) -> dict[str, float]:
        """Returns each counter's rate per second; empty until there are two samples.

        A counter that appeared later is assumed to have started from 0.
        """
        if len(self.samples) < 2:
            return {}
        (start, first), (end, last) = self.samples[0], self.samples[-1]
        seconds = (end if now - end < CURRENT_S else now) - start
        if seconds <= 0:
            return {}
        return {name: max(0.0, (value - first.get(name, 0)) / seconds) for name, value in last.items()}


class RateHistory:
    """The rates of the last minutes.

    It has no timer: an entry is added with a report of a device process, which comes every two seconds, or more often
    while a status page is open. The number of entries is bounded.
    """

    def __init__(self) -> None:
        self._entries: deque[tuple[float, dict[str, float]]] = deque(maxlen=int(HISTORY_S / HISTORY_INTERVAL_S))

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, now: float, rates: Rates) -> None:
        """Adds the present rates, if there are any and the last entry is at least `HISTORY_INTERVAL_S` old."""
        if self._entries and now - self._entries[-1][0] < HISTORY_INTERVAL_S:
            return
        current = rates.per_second(now)
        if current:
            self._entries.append((now, current))

    def since(self, now: float) -> list[tuple[float, dict[str, float]]]:
        """Returns the entries of the last `HISTORY_S` seconds, oldest first, each with its age in seconds."""
        return [(now - time, rates) for time, rates in self._entries if now - time <= HISTORY_S]
