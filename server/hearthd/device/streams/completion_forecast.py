"""Forecast of the completion of copies between host and device. Pure; times in seconds, sizes in bytes."""

from __future__ import annotations

import math

MIN_SIZE = 2 << 20
"""Smallest copy with a forecast, in bytes."""

MAX_FORECASTS = 8
"""Most copies with a forecast at one time; a later copy completes after these anyway."""

_MARGIN = 16
_MIN_MARGIN_S, _MAX_MARGIN_S = 20e-6, 250e-6
"""The margin of a forecast is the copy's time divided by `_MARGIN`, within these bounds in seconds. The loop polls from
one margin before the expected end until two margins after it."""

SHORT_S = 2e-3
"""Longest copy, in seconds, that may be polled for its whole duration, as CUDA does in a waiting thread
(cudaDeviceScheduleSpin)."""

_SLOWER = 4
"""Divisor of the weight of a slower copy, because other copies may have slowed it down, or its end was noticed late. A
faster copy replaces the estimate, as no copy is faster than the link."""


class CopyForecast:
    """The forecast of one copy: completion is expected between `window_start` and `window_end`.

    `window_start` is one `margin` before the expected end, `window_end` two margins after it.
    """

    __slots__ = ("alone", "direction", "margin", "size", "submitted_at", "window_end", "window_start")

    def __init__(
        self,
        direction: int,
        size: int,
        submitted_at: float,
        alone: bool,
        expected_end: float,
        margin: float,
        short: float = 0.0,
    ) -> None:
        self.direction = direction
        self.size = size
        self.submitted_at = submitted_at
        self.alone = alone
        """True if the copy may be used to measure the speed, because no other copy in its direction was under way."""
        self.margin = margin
        self.window_start = submitted_at if expected_end - submitted_at <= short else expected_end - margin
        self.window_end = expected_end + 2 * margin


class CompletionForecast:
    """Forecasts for the copies of one device.

    Copies in one direction run one after another, and in parallel with those in other directions.
    """

    def __init__(self) -> None:
        self.short = 0.0
        """Longest copy that is polled for its whole duration, in seconds."""
        self.under_way: list[CopyForecast] = []
        self._free_at: dict[int, float] = {}
        """Time at which all copies of a direction are expected to be done."""
        self._pace: dict[tuple[int, int], float] = {}
        """Seconds per byte, by direction and magnitude of the size; small copies have a relatively larger overhead."""

    def begin(self, direction: int, size: int, submitted_at: float) -> CopyForecast | None:
        """Returns the forecast for a copy that was submitted at `submitted_at` and waits for no other work.

        Returns None if the copy is small, or too many forecasts exist.
        """
        if size < MIN_SIZE or len(self.under_way) >= MAX_FORECASTS:
            return None
        alone = all(other.direction != direction for other in self.under_way)
        start = submitted_at if alone else max(submitted_at, self._free_at.get(direction, submitted_at))
        duration = size * self.pace(direction, size)  # infinite if no such copy has been measured
        if duration != math.inf:
            self._free_at[direction] = start + duration
        margin = min(_MAX_MARGIN_S, max(_MIN_MARGIN_S, duration / _MARGIN))
        forecast = CopyForecast(direction, size, submitted_at, alone, start + duration, margin, self.short)
        self.under_way.append(forecast)
        return forecast

    def drop(self, forecast: CopyForecast) -> None:
        """Drops the forecast of a copy that failed, or whose completion no client waits for.

        No effect on a second call, or after `completed`.
        """
        if forecast in self.under_way:
            self.under_way.remove(forecast)

    def completed(self, forecast: CopyForecast, now: float) -> None:
        """Updates the estimates with a copy that is done at time `now`. No effect on a second call, or after `drop`."""
        if forecast not in self.under_way:
            return
        self.under_way.remove(forecast)
        if not forecast.alone:
            return
        key = forecast.direction, forecast.size.bit_length()
        duration = now - forecast.submitted_at
        if (
            forecast.window_start not in (math.inf, forecast.submitted_at)
            and now <= forecast.window_start + forecast.margin / 4
        ):
            duration -= forecast.margin  # the copy was done before the first poll
        pace = max(duration, 0.0) / forecast.size
        measured = self._pace.get(key)
        self._pace[key] = pace if measured is None or pace < measured else measured + (pace - measured) / _SLOWER

    def near_completion(self, now: float) -> bool:
        """True if a copy is likely to complete at time `now`."""
        return bool(self.under_way) and any(
            forecast.window_start <= now < forecast.window_end for forecast in self.under_way
        )

    def seconds_until_next(self, now: float) -> float:
        """Returns the seconds until a copy is likely to complete; infinity if there is no forecast."""
        return min(
            (forecast.window_start - now for forecast in self.under_way if forecast.window_start > now),
            default=math.inf,
        )

    def pace(self, direction: int, size: int) -> float:
        """Returns the seconds per byte of copies of this direction and magnitude.

        If none of this magnitude has been measured, the fastest copy of this direction counts. Returns infinity if no
        copy of this direction has been measured.
        """
        measured = self._pace.get((direction, size.bit_length()))
        if measured is not None:
            return measured
        return min((pace for (key, _), pace in self._pace.items() if key == direction), default=math.inf)
