"""Prometheus metrics of the collectives that this front matches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hearth_proto.reasons import Reason
from hearthd.front.collectives.coordinator import Coordinator

_REASONS = {
    Reason.COLLECTIVE_MISMATCH: "mismatch",
    Reason.COLLECTIVE_TIMEOUT: "timeout",
    Reason.COMMUNICATOR_FAILED: "communicator",
    Reason.SESSION_EXPIRED: "session",
}
_STATES = ("joining", "idle", "busy")


class CollectiveMetrics(Collector):
    """Metrics of collectives, read at collection time."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics of communicators, failures and waiting operations. Called at each scrape."""
        communicators = self._coordinator.communicators
        states = Counter(
            "joining" if not comm.is_ready else "idle" if comm.is_idle else "busy" for comm in communicators
        )
        live = GaugeMetricFamily("hearth_communicators", "Live communicators, by state.", labels=["state"])
        for state in _STATES:
            live.add_metric([state], states[state])
        failures = CounterMetricFamily(
            "hearth_collective_failures", "Collective operations that did not run or did not complete, by reason.",
            labels=["reason"],
        )  # fmt: skip
        failed = self._coordinator.failed
        for reason, label in _REASONS.items():
            failures.add_metric([label], failed[reason])
        yield live
        yield failures
        yield CounterMetricFamily(
            "hearth_communicator_aborts", "Communicators aborted after a failure.",
            value=communicators.aborts,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "hearth_collectives_waiting", "Collective operations waiting for ranks.",
            value=len(self._coordinator.matcher),
        )  # fmt: skip
