"""Prometheus metrics: what the front counts, and what the device processes and NVML answer at scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from hearthd import version
from hearthd.front import device_metrics
from hearthd.front.gauges import Gauges
from hearthd.front.nvml import Reading
from hearthd.front.sessions import SessionTable
from hearthd.front.supervisor import SERVING, Supervisor
from hearthd.front.tenants import EVERYONE, Right, Tenant, sees_tenant

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

_OWN = frozenset({
    "hearth_build_info", "hearth_sessions", "hearth_draining", "hearth_device_up", "hearth_device_generation",
    "hearth_device_restarts", "hearth_gpu_memory_used_bytes", "hearth_gpu_memory_total_bytes",
    "hearth_gpu_utilization_ratio", "hearth_gpu_temperature_celsius", "hearth_gpu_power_watts",
    "hearth_gpu_sm_clock_hertz", "hearth_tenant_sessions", "hearth_tenant_device_seconds",
    "hearth_tenant_queued_commands", "hearth_tenant_queued_bytes", "hearth_audit_lost_events", "hearth_communicators",
    "hearth_collective_failures", "hearth_communicator_aborts", "hearth_collectives_waiting", "hearth_lanes",
    "hearth_lanes_opened", "hearth_lane_refusals", "hearth_bulk_connections",
})  # fmt: skip


class Metrics:
    """Counts calls and bytes as they happen."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("grpc_service", "grpc_method")
        self._started = Counter("grpc_server_started", "Calls begun.", labels, registry=self.registry)
        self._handled = Counter(
            "grpc_server_handled", "Calls ended, by status code.", (*labels, "grpc_code"), registry=self.registry
        )
        self._seconds = Histogram(
            "grpc_server_handling_seconds", "From the begin of a call to its end.", labels, buckets=_BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self._auth_failures = Counter(
            "hearth_authentication_failures", "Calls with missing or wrong credentials.", registry=self.registry
        )
        stream = ("stream",)
        received = Counter(
            "hearth_front_received_bytes", "Bytes received on Execute and transfer streams.", stream,
            registry=self.registry,
        )  # fmt: skip
        sent = Counter(
            "hearth_front_sent_bytes", "Bytes sent on Execute and transfer streams.", stream, registry=self.registry
        )
        batches = Counter("hearth_front_batches", "Batches passed to device processes.", registry=self.registry)
        self._lanes = Counter("hearth_lanes_opened", "Lanes that were handed over.", registry=self.registry)
        self._lane_refusals = Counter(
            "hearth_lane_refusals", "Connections that became no lane.", ("reason",), registry=self.registry
        )
        self._bulk = Counter(
            "hearth_bulk_connections", "Connections for bulk data that were handed over.", ("kind",),
            registry=self.registry,
        )  # fmt: skip
        self._batches_inc = batches.inc
        self._execute_in, self._execute_out = received.labels("execute").inc, sent.labels("execute").inc
        self._transfer_in, self._transfer_out = received.labels("transfer").inc, sent.labels("transfer").inc

    def authentication_failed(self) -> None:
        self._auth_failures.inc()

    def call_started(self, service: str, method: str) -> None:
        self._started.labels(service, method).inc()

    def call_handled(self, service: str, method: str, code: str, seconds: float) -> None:
        self._handled.labels(service, method, code).inc()
        self._seconds.labels(service, method).observe(seconds)

    def connection_passed_on(self, kind: str) -> None:
        if kind == "lane":
            self._lanes.inc()
        else:
            self._bulk.labels(kind).inc()

    def lane_refused(self, reason: str) -> None:
        self._lane_refusals.labels(reason).inc()

    def execute_traffic(self, batches: int, received: int, sent: int) -> None:
        if batches:
            self._batches_inc(batches)
            self._execute_in(received)
        else:
            self._execute_out(sent)

    def transfer_traffic(self, received: int, sent: int) -> None:
        if received:
            self._transfer_in(received)
        if sent:
            self._transfer_out(sent)

    def exposition(
        self,
        supervisor: Supervisor,
        sessions: SessionTable,
        stats: Mapping[device_metrics.Place, Gauges],
        readings: Mapping[int, Reading],
        viewer: Tenant = EVERYONE,
    ) -> bytes:
        """The whole page: own counters, then what was asked for this scrape. What names tenants is shown as far as
        `viewer` may know of them."""
        page = CollectorRegistry()
        totals = {
            (device.ordinal, tenant): counts
            for device in supervisor
            for tenant, counts in device.totals.by_tenant().items()
        }
        families = [*_own(supervisor, sessions), *_of_tenants(sessions)]
        families += [*device_metrics.families(totals, stats, _OWN), *_of_nvml(readings)]
        if not viewer.may(Right.ADMIN):
            for family in families:
                family.samples = [each for each in family.samples if sees_tenant(viewer, each.labels.get("tenant", ""))]
        page.register(_Families(families))
        return generate_latest(self.registry) + generate_latest(page)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _own(supervisor: Supervisor, sessions: SessionTable) -> Iterator[Metric]:
    info = GaugeMetricFamily("hearth_build_info", "Version of the daemon.", labels=["version"])
    info.add_metric([version()], 1)
    yield info
    yield GaugeMetricFamily("hearth_sessions", "Open sessions.", value=len(sessions))
    yield GaugeMetricFamily("hearth_draining", "1 while the daemon drains.", value=int(sessions.draining))
    lanes = sum(channel.laned for session in sessions for channel in session.channels.values())
    yield GaugeMetricFamily("hearth_lanes", "Lanes that are open.", value=lanes)
    up = GaugeMetricFamily("hearth_device_up", "1 while the device serves.", labels=["device"])
    generation = GaugeMetricFamily(
        "hearth_device_generation", "Number of the process that serves the device.", labels=["device"]
    )
    restarts = CounterMetricFamily(
        "hearth_device_restarts", "Device processes lost, by reason.", labels=["device", "reason"]
    )
    for device in supervisor:
        label = str(device.ordinal)
        up.add_metric([label], int(device.state == SERVING))
        generation.add_metric([label], device.generation)
        for reason, count in sorted(device.restarts.items()):
            restarts.add_metric([label, reason], count)
    yield from (up, generation, restarts)


def _of_tenants(sessions: SessionTable) -> Iterator[Metric]:
    labels = ["tenant"]
    opened = GaugeMetricFamily("hearth_tenant_sessions", "Open sessions.", labels=labels)
    seconds = CounterMetricFamily("hearth_tenant_device_seconds", "Time of devices that was used.", labels=labels)
    commands = GaugeMetricFamily("hearth_tenant_queued_commands", "Batches and calls not yet executed.", labels=labels)
    queued = GaugeMetricFamily("hearth_tenant_queued_bytes", "Their bytes.", labels=labels)
    for account in sessions.accounts:
        name = [account.tenant.name]
        opened.add_metric(name, len(account.sessions))
        seconds.add_metric(name, account.device_ns / 1e9)
        commands.add_metric(name, account.queue.commands)
        queued.add_metric(name, account.queue.bytes)
    yield from (opened, seconds, commands, queued)
    yield CounterMetricFamily(
        "hearth_audit_lost_events", "Events that the audit log could not take.", value=sessions.audit.lost
    )


def _of_nvml(readings: Mapping[int, Reading]) -> Iterator[Metric]:
    for field, name, text in (
        ("memory_used", "hearth_gpu_memory_used_bytes", "Device memory in use, by all processes."),
        ("memory_total", "hearth_gpu_memory_total_bytes", "Device memory."),
        ("utilization", "hearth_gpu_utilization_ratio", "Share of the last sample period with a kernel running."),
        ("temperature", "hearth_gpu_temperature_celsius", "Temperature of the GPU."),
        ("power", "hearth_gpu_power_watts", "Power drawn."),
        ("sm_clock", "hearth_gpu_sm_clock_hertz", "Clock of the multiprocessors."),
    ):
        metric = GaugeMetricFamily(name, text, labels=["device"])
        for ordinal, reading in readings.items():
            value = getattr(reading, field)
            if value is not None:
                metric.add_metric([str(ordinal)], value)
        if metric.samples:
            yield metric
