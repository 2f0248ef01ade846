"""Forecast of the completion of copies between host and device. Pure; seconds and bytes."""

from __future__ import annotations

import math

LEAST = 2 << 20
"""Bytes of a copy for which that is worth it."""

MOST = 8
"""Copies that are foreseen at a time: those behind them come when these have."""

_MARGIN = 16
_LEAST_MARGIN_S, _MOST_MARGIN_S = 20e-6, 250e-6
"""So small a part of a copy's time, within these bounds, it is asked for before its end, and twice as long behind."""

SHORT_S = 2e-3
"""A copy that takes no longer may be asked for all the time, as CUDA does where it is waited for
(cudaDeviceScheduleSpin)."""

_SLOWER = 4
"""A slower copy counts for so small a part: others may have slowed it down, or it was noticed late. A faster one counts
at once, for none is faster than the link."""


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
        """Whether it tells how long such a copy takes."""
        self.margin = margin
        self.begins = given if at - given <= short else at - margin
        self.ends = at + 2 * margin


class CompletionForecast:
    """Forecasts for the copies of one device. Copies of one direction (`way`) run one after another, and beside those
    of others."""

    def __init__(self) -> None:
        self.short = 0.0
        """Copies that take no longer are asked for all the time."""
        self.under_way: list[CopyForecast] = []
        self._free_at: dict[int, float] = {}
        """When all that goes a way is likely to be done."""
        self._pace: dict[tuple[int, int], float] = {}
        """Seconds for a byte, by way and magnitude: what small copies cost more is not the link's."""

    def begin(self, way: int, size: int, given: float) -> CopyForecast | None:
        """A copy that nothing has to be done before was given to the device; None: it is not foreseen."""
        if size < LEAST or len(self.under_way) >= MOST:
            return None
        alone = all(other.way != way for other in self.under_way)
        start = given if alone else max(given, self._free_at.get(way, given))
        took = size * self._pace_of(way, size)  # infinite: nothing is known
        if took != math.inf:
            self._free_at[way] = start + took
        margin = min(_MOST_MARGIN_S, max(_LEAST_MARGIN_S, took / _MARGIN))
        foreseen = CopyForecast(way, size, given, alone, start + took, margin, self.short)
        self.under_way.append(foreseen)
        return foreseen

    def drop(self, foreseen: CopyForecast) -> None:
        """It failed, or nobody looks for it any more. A second time, or after `came`, does nothing."""
        if foreseen in self.under_way:
            self.under_way.remove(foreseen)

    def came(self, foreseen: CopyForecast, now: float) -> None:
        """It is done. A second time, or after `drop`, does nothing."""
        if foreseen not in self.under_way:
            return
        self.under_way.remove(foreseen)
        if not foreseen.alone:
            return
        key = foreseen.way, foreseen.size.bit_length()
        took = now - foreseen.given
        if foreseen.begins not in (math.inf, foreseen.given) and now <= foreseen.begins + foreseen.margin / 4:
            took -= foreseen.margin  # it was done before anybody looked
        pace = max(took, 0.0) / foreseen.size
        known = self._pace.get(key)
        self._pace[key] = pace if known is None or pace < known else known + (pace - known) / _SLOWER

    def near(self, now: float) -> bool:
        """Whether the end of one is likely now."""
        return any(each.begins <= now < each.ends for each in self.under_way)

    def ahead(self, now: float) -> float:
        """How long until the end of one is likely; infinite: nothing is foreseen."""
        return min((each.begins - now for each in self.under_way if each.begins > now), default=math.inf)

    def _pace_of(self, way: int, size: int) -> float:
        """Of copies as large, else of the fastest."""
        known = self._pace.get((way, size.bit_length()))
        if known is not None:
            return known
        return min((pace for (of, _), pace in self._pace.items() if of == way), default=math.inf)
