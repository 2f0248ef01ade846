"""Levels of overload with hysteresis, and the calls that are refused at each level. Pure: the clock is passed in."""

from __future__ import annotations

import enum

RELEASE = 0.9
"""Fraction of a threshold below which the reading must fall for its level to end."""
HOLD_S = 2.0
"""Time, in seconds, for which the reading must stay below."""


class OverloadLevel(enum.IntEnum):
    """The levels of load of the front."""

    CALM = 0
    ELEVATED = 1
    """New sessions, groups and large requests are refused."""
    CRITICAL = 2
    """New work of open sessions is refused as well, except for work that ends something, frees something or only
    reads."""


class Trigger:
    """The level of one resource.

    It rises immediately. It falls one step at a time, when the reading has stayed well below the threshold for some
    time, so that a reading that oscillates around a threshold changes the level only once.
    """

    def __init__(self, elevated: float, critical: float) -> None:
        """Creates the trigger. `elevated` and `critical` are the thresholds, in the unit of the readings."""
        self.thresholds = {OverloadLevel.ELEVATED: elevated, OverloadLevel.CRITICAL: critical}
        self.level = OverloadLevel.CALM
        self.reading = 0.0
        self.worst = 0.0
        """The highest reading since the level was last CALM."""
        self._below_since: float | None = None
        """The time since which the reading has been low enough for the level to end. None: it is not."""

    @property
    def pressure(self) -> float:
        """The last reading as a fraction of the first threshold. From 1 on, new sessions are refused."""
        return self.reading / self.thresholds[OverloadLevel.ELEVATED]

    def update(self, reading: float, now: float) -> OverloadLevel:
        """Returns the level after a reading at the time `now`."""
        self.reading = reading
        self.worst = max(self.worst, reading) if self.level else reading
        reached = self._reached_level()
        if reached > self.level:
            self.level, self._below_since = reached, None
        elif self.level and reading < RELEASE * self.thresholds[self.level]:
            if self._below_since is None:
                self._below_since = now
            elif now - self._below_since >= HOLD_S:
                self.level, self._below_since = OverloadLevel(self.level - 1), None
        else:
            self._below_since = None
        return self.level

    def change(self, elevated: float, critical: float) -> None:
        """Sets other thresholds, and the level that the last reading has with them, without hysteresis."""
        self.thresholds = {OverloadLevel.ELEVATED: elevated, OverloadLevel.CRITICAL: critical}
        self.level, self._below_since = self._reached_level(), None

    def _reached_level(self) -> OverloadLevel:
        return max(
            (level for level, threshold in self.thresholds.items() if self.reading >= threshold),
            default=OverloadLevel.CALM,
        )


REFUSED_ELEVATED = {
    "OpenSession": "session",
    "CreateGroup": "session",
    "Upload": "large",
    "Download": "large",
    "LoadModule": "large",
}
"""Methods that are refused from `ELEVATED` on, with the kind that metrics use. Bulk data over lanes and stripes does
not pass through the front, and is not among them."""
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
"""Methods that are refused at `CRITICAL`. Collectives are not, because a refused rank would block the ranks that were
admitted. Attached streams continue; their windows limit what they send."""


_REFUSED: dict[OverloadLevel, dict[str, str]] = {
    OverloadLevel.CALM: {},
    OverloadLevel.ELEVATED: REFUSED_ELEVATED,
    OverloadLevel.CRITICAL: REFUSED_CRITICAL,
}


def refused_kind(method: str, level: OverloadLevel) -> str:
    """Returns the kind of a method that is refused at this level; empty: it is served."""
    return _REFUSED[level].get(method, "")
