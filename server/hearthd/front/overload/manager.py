"""The overload manager: measures the load of the front, and decides which calls are refused.

The lag of the event loop is the delay of a timer. The median of five measurements is used, so that a pause of the
process (SIGSTOP, a suspended machine) does not count as overload. The other resources are read once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from statistics import median

import structlog
from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.config.front_limits import OverloadSettings
from hearthd.front.overload import readings
from hearthd.front.overload.policy import OverloadLevel, Trigger, refused_kind
from hearthd.shared.host_memory import share_of_host
from hearthd.shared.log import LogThrottle
from hearthd.shared.malloc import return_free_memory

log = structlog.get_logger("hearthd.overload")

TICK_S = 0.25
"""Interval, in seconds, between measurements of the event loop's lag."""
_LAGS = 5
"""Number of measurements of which the median is used: a single outlier has no effect."""
_TICKS_PER_READING = 4
"""Number of these intervals between readings of the other resources."""
_TRIM_S = 5.0
"""Minimum interval, in seconds, between attempts to return freed memory to the system while memory use is too high."""
_LOG_S = 5.0
"""Minimum interval, in seconds, between log lines about refused calls."""
_DEFAULT_MEMORY = 1 << 30
_RETRY_S = {OverloadLevel.ELEVATED: 1.0, OverloadLevel.CRITICAL: 2.0}
_KINDS = ("session", "large", "work")
_DESCRIPTIONS = {
    "loop_lag": "its event loop ran up to {:.2f} s late",
    "memory": "it held up to {:.0f} bytes of memory",
    "group_memory": "its processes used up to {:.0%} of the memory that they may have together",
    "descriptors": "up to {:.0%} of the files that it may open were open",
}


class OverloadManager(Collector):
    """The overload manager of a daemon. Belongs to the event loop."""

    def __init__(
        self,
        settings: OverloadSettings,
        *,
        read: dict[str, Callable[[], float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the manager. `read`, for tests: functions that measure each resource except the lag, by name."""
        self.triggers = {name: Trigger(*thresholds) for name, thresholds in _thresholds(settings).items()}
        self.level = OverloadLevel.CALM
        self.listeners: list[Callable[[], None]] = []
        """Called after each change of the level."""
        self._enabled = settings.enabled
        self.read = read or {
            "memory": readings.own_memory,
            "group_memory": readings.GroupMemory().read,
            "descriptors": readings.descriptors,
        }
        self._clock = clock
        self._lags = deque([0.0] * _LAGS, maxlen=_LAGS)
        """The last lags. Those before the first count as 0."""
        self._refusals: Counter[str] = Counter()
        self._log_throttle = LogThrottle(_LOG_S)
        self._trimmed_at = float("-inf")
        self._lag = Histogram(
            "hearth_front_loop_lag_seconds", "Delay of due callbacks of the front's event loop.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0), registry=None,
        )  # fmt: skip

    def change(self, settings: OverloadSettings) -> None:
        """Applies other settings, also to the last readings."""
        self._enabled = settings.enabled
        for name, thresholds in _thresholds(settings).items():
            self.triggers[name].change(*thresholds)
        self._update_level()

    async def run(self) -> None:
        """Measures periodically, until it is cancelled."""
        ticks = 0
        while True:
            scheduled = self._clock() + TICK_S
            await asyncio.sleep(TICK_S)
            self.measure(max(0.0, self._clock() - scheduled), all_resources=ticks % _TICKS_PER_READING == 0)
            ticks += 1

    def measure(self, lag: float, *, all_resources: bool) -> None:
        """Records the event loop's lag in seconds. With `all_resources`, also reads the other resources."""
        now = self._clock()
        self._lag.observe(lag)
        self._lags.append(lag)
        self.triggers["loop_lag"].update(median(self._lags), now)
        if all_resources:
            for name, read in self.read.items():
                try:
                    reading = read()
                # The control group was removed, or there is no free descriptor.
                except (OSError, ValueError, IndexError):
                    continue
                self.triggers[name].update(reading, now)
            if self.triggers["memory"].level and now - self._trimmed_at >= _TRIM_S:
                self._trimmed_at = now
                return_free_memory()
        self._update_level()

    def _update_level(self) -> None:
        level = max(trigger.level for trigger in self.triggers.values()) if self._enabled else OverloadLevel.CALM
        if level == self.level:
            return
        previous, self.level = self.level, level
        write = log.warning if level else log.info
        write("overload", load=level.name.lower(), before=previous.name.lower(), why=self.description)
        for listener in self.listeners:
            listener()

    @property
    def description(self) -> str:
        """Describes the overloaded resources with their worst readings. Empty without an overload."""
        if not self.level:
            return ""
        overloaded = (name for name, trigger in self.triggers.items() if trigger.level == self.level)
        return ", ".join(_DESCRIPTIONS[name].format(self.triggers[name].worst) for name in overloaded)

    # ---- admission ----

    def admit(self, method: str) -> Refusal | None:
        """Returns the refusal of a call of this method; None: it is served."""
        kind = refused_kind(method, self.level)
        if not kind:
            return None
        self._refusals[kind] += 1
        if self._log_throttle.due("refused", self._clock()):
            log.warning(
                "overload_refused", method=method, kind=kind, refused=self._refusals.total(), why=self.description
            )
        return Refusal(
            Reason.OVERLOADED,
            f"The daemon is overloaded and rejects {method} for now: {self.description}.",
            fix="Try again after the returned delay, or use another node; the limits are in [overload].",
            details={"level": self.level.name.lower(), "method": method},
            retry_after_s=_RETRY_S[self.level],
        )

    # ---- metrics ----

    def collect(self) -> Iterable[Metric]:
        """Returns the lag, the level, the use of each resource and the refused calls. Called at each scrape."""
        pressure = GaugeMetricFamily(
            "hearth_overload_pressure", "Use of a resource, as a share of the level that refuses new sessions.",
            labels=["resource"],
        )  # fmt: skip
        for name, trigger in self.triggers.items():
            pressure.add_metric([name], trigger.pressure)
        refusals = CounterMetricFamily(
            "hearth_overload_refusals", "Calls refused because of overload.", labels=["kind"]
        )
        for kind in _KINDS:
            refusals.add_metric([kind], self._refusals[kind])
        return [
            *self._lag.collect(),
            GaugeMetricFamily(
                "hearth_overload_level", "0: all is served; 1: no new sessions or large requests; 2: no new work.",
                value=int(self.level),
            ),
            pressure,
            refusals,
        ]  # fmt: skip


def _thresholds(settings: OverloadSettings) -> dict[str, tuple[float, float]]:
    """Returns both thresholds of each resource."""
    memory = settings.memory or min(_DEFAULT_MEMORY, share_of_host() // 2)
    return {
        "loop_lag": (settings.loop_lag, settings.loop_lag_critical),
        "memory": (memory, max(memory, settings.memory_critical or 2 * memory)),
        "group_memory": (settings.group_memory, settings.group_memory_critical),
        "descriptors": (settings.descriptors, settings.descriptors_critical),
    }
