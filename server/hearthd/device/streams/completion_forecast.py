"""Forecast of the completion of copies between host and device. Pure; seconds and bytes."""

from __future__ import annotations

import math

LEAST = 2 << 20
"""Smallest copy with a forecast, in bytes."""

MOST = 8
"""Copies with a forecast at a time; the end of a copy behind them follows theirs."""

_MARGIN = 16
_LEAST_MARGIN_S, _MOST_MARGIN_S = 20e-6, 250e-6
"""Divisor of a copy's time, and bounds of the result: the loop polls from that time before the expected end until twice
as long after it."""

SHORT_S = 2e-3
"""Longest copy that may be polled all the time, as CUDA does in a waiting thread (cudaDeviceScheduleSpin)."""

_SLOWER = 4
"""Divisor of the weight of a slower copy: others may have slowed it down, or its end was noticed late. A faster one
replaces the estimate, as no copy is faster than the link."""


class CopyForecast:
    """The forecast of one copy: it ends between `begins` and `ends`, with `margin` before the earliest end."""

    __slots__ = ("alone", "begins", "ends", "given", "margin", "size", "way")

    def __init__(
        self, way: int, size: int, given: float, alone: bool, at: float, margin: float, short: float = 0.0
    ) -> None:
        self.way = way
        self.size = size
        self.given = given
        self.alone = alone
        """True if the copy measures how long such a copy takes: none was under way in its direction."""
        self.margin = margin
        self.begins = given if at - given <= short else at - margin
        self.ends = at + 2 * margin


class CompletionForecast:
    """Forecasts for the copies of one device. Copies of one direction (`way`) run one after another, and beside those
    of others."""

    def __init__(self) -> None:
        self.short = 0.0
        """Longest copy that is polled all the time, in seconds."""
        self.under_way: list[CopyForecast] = []
        self._free_at: dict[int, float] = {}
        """Time at which all copies of a direction are expected to be done."""
        self._pace: dict[tuple[int, int], float] = {}
        """Seconds per byte, by direction and magnitude: the overhead of small copies is not the link's."""

    def begin(self, way: int, size: int, given: float) -> CopyForecast | None:
        """Forecasts a copy that was submitted and waits for no other work; None: no forecast."""
        if size < LEAST or len(self.under_way) >= MOST:
            return None
        alone = all(other.way != way for other in self.under_way)
        start = given if alone else max(given, self._free_at.get(way, given))
        took = size * self.pace(way, size)  # infinite: nothing is known
        if took != math.inf:
            self._free_at[way] = start + took
        margin = min(_MOST_MARGIN_S, max(_LEAST_MARGIN_S, took / _MARGIN))
        foreseen = CopyForecast(way, size, given, alone, start + took, margin, self.short)
        self.under_way.append(foreseen)
        return foreseen

    def drop(self, foreseen: CopyForecast) -> None:
        """Drops the forecast of a copy that failed, or whose end has no waiter. A second call, or one after `came`, has
        no effect."""
        if foreseen in self.under_way:
            self.under_way.remove(foreseen)

    def came(self, foreseen: CopyForecast, now: float) -> None:
        """Takes note that the copy is done. A second call, or one after `drop`, has no effect."""
        if foreseen not in self.under_way:
            return
        self.under_way.remove(foreseen)
        if not foreseen.alone:
            return
        key = foreseen.way, foreseen.size.bit_length()
        took = now - foreseen.given
        if foreseen.begins not in (math.inf, foreseen.given) and now <= foreseen.begins + foreseen.margin / 4:
            took -= foreseen.margin  # it was done before the first poll
        pace = max(took, 0.0) / foreseen.size
        known = self._pace.get(key)
        self._pace[key] = pace if known is None or pace < known else known + (pace - known) / _SLOWER

    def near(self, now: float) -> bool:
        """True if the end of a copy is likely now."""
        return any(each.begins <= now < each.ends for each in self.under_way)

    def ahead(self, now: float) -> float:
        """Returns the seconds until the end of a copy is likely; infinite: there is no forecast."""
        return min((each.begins - now for each in self.under_way if each.begins > now), default=math.inf)

    def pace(self, way: int, size: int) -> float:
        """Returns the seconds per byte that copies of this direction and magnitude take; without any of this magnitude,
        those of the fastest in this direction. Infinite: no copy of this direction has been measured."""
        known = self._pace.get((way, size.bit_length()))
        if known is not None:
            return known
        return min((pace for (of, _), pace in self._pace.items() if of == way), default=math.inf)
