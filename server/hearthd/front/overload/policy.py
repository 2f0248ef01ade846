"""Levels of overload, with hysteresis; and which calls are refused at which. Pure: the clock is passed in."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from statistics import median

RELEASE = 0.9
"""A level ends when the reading is below this part of its threshold."""
HOLD_S = 2.0
"""Seconds that a reading has to stay there."""


class OverloadLevel(enum.IntEnum):
    """Load levels of the front."""

    CALM = 0
    ELEVATED = 1
    """No new sessions, groups or large requests."""
    CRITICAL = 2
    """No new work of open sessions either, but work that ends, gives something back or only reads."""


class Trigger:
    """The level of one resource. It rises at once, and falls one step at a time when the reading has stayed well below
    the threshold: a reading that swings about a threshold changes the level once."""

    def __init__(self, elevated: float, critical: float, release: float = RELEASE, hold: float = HOLD_S) -> None:
        """`elevated` and `critical`: the thresholds, in the unit of the readings."""
        self.thresholds = {OverloadLevel.ELEVATED: elevated, OverloadLevel.CRITICAL: critical}
        self.level = OverloadLevel.CALM
        self.reading = 0.0
        self.worst = 0.0
        """The highest reading since the level was last calm."""
        self._release = release
        self._hold = hold
        self._below: float | None = None
        """Since when the reading has been below what ends the level."""

    @property
    def pressure(self) -> float:
        """The last reading as a share of the first threshold: 1 where new sessions are refused."""
        return self.reading / self.thresholds[OverloadLevel.ELEVATED]

    def update(self, reading: float, now: float) -> OverloadLevel:
        """The level after a reading at the time `now`."""
        self.reading = reading
        self.worst = max(self.worst, reading) if self.level else reading
        reached = self._reached()
        if reached > self.level:
            self.level, self._below = reached, None
        elif self.level and reading < self._release * self.thresholds[self.level]:
            if self._below is None:
                self._below = now
            elif now - self._below >= self._hold:
                self.level, self._below = OverloadLevel(self.level - 1), None
        else:
            self._below = None
        return self.level

    def change(self, elevated: float, critical: float) -> None:
        """Takes other thresholds, and the level that the last reading has by them, without hysteresis."""
        self.thresholds = {OverloadLevel.ELEVATED: elevated, OverloadLevel.CRITICAL: critical}
        self.level, self._below = self._reached(), None

    def _reached(self) -> OverloadLevel:
        return max(
            (level for level, least in self.thresholds.items() if self.reading >= least), default=OverloadLevel.CALM
        )


class MedianFilter:
    """The median of the last few readings: one that stands out, after a pause of the whole process for instance, counts
    for nothing."""

    def __init__(self, size: int = 5) -> None:
        self._readings = [0.0] * size
        self._next = 0

    def add(self, reading: float) -> float:
        self._readings[self._next] = reading
        self._next = (self._next + 1) % len(self._readings)
        return median(self._readings)


REFUSED_ELEVATED = {
    "OpenSession": "session",
    "CreateGroup": "session",
    "Upload": "large",
    "Download": "large",
    "LoadModule": "large",
}
"""Methods that are refused from `ELEVATED` on, with the kind that metrics name. Bulk data that goes past the front, on
lanes and stripes, is not among them."""
REFUSED_CRITICAL = REFUSED_ELEVATED | dict.fromkeys(
    (
        "Allocate",
        "AttachBuffer",
        "BeginCapture",
        "Copy",
        "CreateStream",
        "CreateTensorMap",
        "Dispatch",
        "Execute",
        "ExportIpc",
        "Fill",
        "JoinGroup",
        "Launch",
        "LaunchGraph",
        "LaunchPrepared",
        "Prepare",
        "Publish",
        "Read",
        "StartProfile",
        "StartTrace",
        "UpdateGraph",
        "Write",
    ),
    "work",
)
"""Methods that are refused at `CRITICAL`. Collectives are not: one rank that is refused holds up the others, which came
through. Streams that are attached go on; their windows bound what they may send."""


def refused(method: str, level: OverloadLevel) -> str:
    """The kind of a method that is refused at this level; empty: it is served."""
    methods: dict[str, str] = {}
    if level >= OverloadLevel.CRITICAL:
        methods = REFUSED_CRITICAL
    elif level >= OverloadLevel.ELEVATED:
        methods = REFUSED_ELEVATED
    return methods.get(method, "")


def highest(triggers: Iterable[Trigger]) -> OverloadLevel:
    """The level of all resources together."""
    return max((each.level for each in triggers), default=OverloadLevel.CALM)
