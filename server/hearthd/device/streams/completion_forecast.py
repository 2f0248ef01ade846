"""Forecast of the completion of copies between host and device. Pure; times in seconds, sizes in bytes."""

from __future__ import annotations

import math

LEAST = 2 << 20
"""Smallest copy with a forecast, in bytes."""

MOST = 8
"""Most copies with a forecast at one time; a later copy completes after these anyway."""

_MARGIN = 16
_LEAST_MARGIN_S, _MOST_MARGIN_S = 20e-6, 250e-6
"""The margin of a forecast is the copy's time divided by `_MARGIN`, within these bounds in seconds. The loop polls from
one margin before the expected end until two margins after it."""

SHORT_S = 2e-3
"""Longest copy, in seconds, that may be polled for its whole duration, as CUDA does in a waiting thread
(cudaDeviceScheduleSpin)."""

_SLOWER = 4
"""Divisor of the weight of a slower copy, because other copies may have slowed it down, or its end was noticed late. A
faster copy replaces the estimate, as no copy is faster than the link."""


class CopyForecast:
    """The forecast of one copy: completion is expected between `begins` and `ends`.

    `begins` is one `margin` before the expected end, `ends` two margins after it.
    """

    __slots__ = ("alone", "begins", "ends", "given", "margin", "size", "way")

    def __init__(
        self, way: int, size: int, given: float, alone: bool, at: float, margin: float, short: float = 0.0
    ) -> None:
        self.way = way
        self.size = size
        self.given = given
        self.alone = alone
        """True if the copy may be used to measure the speed, because no other copy in its direction was under way."""
        self.margin = margin
        self.begins = given if at - given <= short else at - margin
        self.ends = at + 2 * margin


class CompletionForecast:
    """Forecasts for the copies of one device.

    Copies in one direction (`way`) run one after another, and in parallel with those in other directions.
    """

    def __init__(self) -> None:
        self.short = 0.0
        """Longest copy that is polled for its whole duration, in seconds."""
        self.under_way: list[CopyForecast] = []
        self._free_at: dict[int, float] = {}
        """Time at which all copies of a direction are expected to be done."""
        self._pace: dict[tuple[int, int], float] = {}
        """Seconds per byte, by direction and magnitude of the size; small copies have a relatively larger overhead."""

    def begin(self, way: int, size: int, given: float) -> CopyForecast | None:
        """Returns the forecast for a copy that was submitted at `given` and waits for no other work.

        Returns None if the copy is small, or too many forecasts exist.
        """
        if size < LEAST or len(self.under_way) >= MOST:
            return None
        alone = all(other.way != way for other in self.under_way)
        start = given if alone else max(given, self._free_at.get(way, given))
        took = size * self.pace(way, size)  # infinite if no such copy has been measured
        if took != math.inf:
            self._free_at[way] = start + took
        margin = min(_MOST_MARGIN_S, max(_LEAST_MARGIN_S, took / _MARGIN))
        foreseen = CopyForecast(way, size, given, alone, start + took, margin, self.short)
        self.under_way.append(foreseen)
        return foreseen

    def drop(self, foreseen: CopyForecast) -> None:
        """Drops the forecast of a copy that failed, or whose completion no client waits for.

        No effect on a second call, or after `completed`.
        """
        if foreseen in self.under_way:
            self.under_way.remove(foreseen)

    def completed(self, foreseen: CopyForecast, now: float) -> None:
        """Updates the estimates with a copy that is done at time `now`. No effect on a second call, or after `drop`."""
        if foreseen not in self.under_way:
            return
        self.under_way.remove(foreseen)
        if not foreseen.alone:
            return
        key = foreseen.way, foreseen.size.bit_length()
        took = now - foreseen.given
        if foreseen.begins not in (math.inf, foreseen.given) and now <= foreseen.begins + foreseen.margin / 4:
            took -= foreseen.margin  # the copy was done before the first poll
        pace = max(took, 0.0) / foreseen.size
        known = self._pace.get(key)
        self._pace[key] = pace if known is None or pace < known else known + (pace - known) / _SLOWER

    def near_completion(self, now: float) -> bool:
        """True if a copy is likely to complete at time `now`."""
        return any(each.begins <= now < each.ends for each in self.under_way)

    def ahead(self, now: float) -> float:
        """Returns the seconds until a copy is likely to complete; infinity if there is no forecast."""
        return min((each.begins - now for each in self.under_way if each.begins > now), default=math.inf)

    def pace(self, way: int, size: int) -> float:
        """Returns the seconds per byte of copies of this direction and magnitude.

        If none of this magnitude has been measured, the fastest copy of this direction counts. Returns infinity if no
        copy of this direction has been measured.
        """
        known = self._pace.get((way, size.bit_length()))
        if known is not None:
            return known
        return min((pace for (of, _), pace in self._pace.items() if of == way), default=math.inf)
