"""Prometheus metrics: the front's own counters, and the answers of device processes and NVML at each scrape.

`deploy/prometheus/METRICS.md` lists all metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from hearthd.front.counters import Counts
from hearthd.front.gpu.reading import GpuReading
from hearthd.front.metrics import device as device_metrics
from hearthd.front.metrics import gpu, node
from hearthd.front.metrics import tenant as tenant_metrics
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.gauges import Gauges
from hearthd.front.supervisor.supervisor import Supervisor
from hearthd.front.tenancy.tenants import EVERYONE, Tenant, sees_tenant

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Metrics:
    """Counts calls and bytes as they happen, and assembles the metrics of a scrape."""

    def __init__(self) -> None:
        # Removes the creation time that would accompany every counter and is not needed.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.certificate_expires: Callable[[], float | None] = lambda: None
        """Returns the Unix time until which clients accept the present certificate. None: there is no certificate."""
        self.forkserver_losses: Callable[[], int] = lambda: 0
        """Returns the number of unexpected ends of the forkserver."""
        ProcessCollector(registry=self.registry)
        labels = ("grpc_service", "grpc_method")
        self._started = Counter("grpc_server_started", "Calls started.", labels, registry=self.registry)
        self._handled = Counter(
            "grpc_server_handled", "Calls completed, by status code.", (*labels, "grpc_code"), registry=self.registry
        )
        self._seconds = Histogram(
            "grpc_server_handling_seconds", "Time from the start of a call to its end.", labels, buckets=_BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self._refusals = Counter(
            "hearth_call_refusals", "Calls that were refused or failed, by reason code.", ("grpc_method", "reason"),
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
        self._lanes = Counter(
            "hearth_lanes_opened", "Connections of lanes handed over to device processes.", registry=self.registry
        )
        self._lane_refusals = Counter(
            "hearth_lane_refusals", "Connections refused as lanes, by reason.", ("reason",), registry=self.registry
        )
        self._lanes_unused = Counter(
            "hearth_lanes_unused", "Lanes that ended before any batch arrived on them.", registry=self.registry
        )
        self._bulk = Counter(
            "hearth_bulk_connections", "Connections for bulk data handed over to device processes.", ("kind",),
            registry=self.registry,
        )  # fmt: skip
        self._batches_inc = batches.inc
        self._execute_in, self._execute_out = received.labels("execute").inc, sent.labels("execute").inc
        self._transfer_in, self._transfer_out = received.labels("transfer").inc, sent.labels("transfer").inc

    def authentication_failed(self) -> None:
        """Counts `hearth_authentication_failures`."""
        self._auth_failures.inc()

    def call_started(self, service: str, method: str) -> None:
        """Counts `grpc_server_started`; see `rpc.server_call.CallObserver`."""
        self._started.labels(service, method).inc()

    def call_refused(self, service: str, method: str, reason: str) -> None:
        """Counts `hearth_call_refusals` by method and reason code."""
        self._refusals.labels(method, reason).inc()

    def call_handled(self, service: str, method: str, code: str, seconds: float) -> None:
        """Counts `grpc_server_handled` by status code, and adds the call's duration in seconds to the histogram."""
        self._handled.labels(service, method, code).inc()
        self._seconds.labels(service, method).observe(seconds)

    def connection_passed_on(self, kind: str) -> None:
        """Counts `hearth_lanes_opened` for a lane, and `hearth_bulk_connections` for every other kind."""
        if kind == "lane":
            self._lanes.inc()
        else:
            self._bulk.labels(kind).inc()

    def lane_refused(self, reason: str) -> None:
        """Counts `hearth_lane_refusals` by reason; see `lanes.ticket_port.PortObserver`."""
        self._lane_refusals.labels(reason).inc()

    def lane_unused(self) -> None:
        """Counts `hearth_lanes_unused`: a lane that ended before any batch arrived on it."""
        self._lanes_unused.inc()

    def execute_traffic(self, batches: int, received: int, sent: int) -> None:
        """Counts batches with the bytes received for them; if `batches` is 0, the bytes of a response."""
        if batches:
            self._batches_inc(batches)
            self._execute_in(received)
        else:
            self._execute_out(sent)

    def transfer_traffic(self, received: int, sent: int) -> None:
        """Counts the data bytes of Upload, Download, Write and Read, in either direction."""
        if received:
            self._transfer_in(received)
        if sent:
            self._transfer_out(sent)

    def families(
        self,
        supervisor: Supervisor,
        sessions: SessionTable,
        stats: Mapping[device_metrics.DeviceTenant, Gauges],
        readings: Mapping[int, GpuReading],
        viewer: Tenant = EVERYONE,
    ) -> list[Metric]:
        """Returns all metrics: the front's own counters, then those collected for this scrape.

        Samples with tenants are included as far as `viewer` may see them. Must be called in the event loop; `render`
        need not be.
        """
        families = [*self.registry.collect(), *node.families(supervisor, sessions), *self._certificate()]
        families.append(
            CounterMetricFamily(
                "hearth_forkserver_losses", "Unexpected ends of the process from which device processes are forked.",
                value=self.forkserver_losses(),
            )
        )  # fmt: skip
        families += tenant_metrics.families(supervisor, sessions)
        used_names = frozenset(family.name for family in families) | gpu.NAMES
        families += device_metrics.families(_totals(supervisor), stats, used_names)
        families += device_metrics.duration_families({device.ordinal: device.durations for device in supervisor})
        families += gpu.families(readings, {device.ordinal for device in supervisor if device.sick})
        if not viewer.observes:
            for family in families:
                family.samples = [
                    sample for sample in family.samples if _is_visible(viewer, family.name, sample.labels)
                ]
            families = [family for family in families if family.samples]
        return families

    @staticmethod
    def render(families: Iterable[Metric], accept: str = "") -> tuple[bytes, str]:
        """Returns the page and its content type.

        It is in OpenMetrics if the Accept header `accept` selects it, otherwise in Prometheus's text format. Takes some
        milliseconds for every thousand samples, and may be called in a thread.
        """
        encode, content_type = encoder_of(accept)
        return encode(_Families(families)), content_type

    def _certificate(self) -> Iterator[Metric]:
        expires = self.certificate_expires()
        if expires is not None:
            yield GaugeMetricFamily(
                "hearth_certificate_expiry_timestamp_seconds", "Unix time at which the daemon's certificate expires.",
                value=expires,
            )  # fmt: skip


def encoder_of(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Returns the encoder that an Accept header selects, and its content type."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is not a number
        return choose_encoder("")


def _totals(supervisor: Supervisor) -> dict[device_metrics.DeviceTenant, Counts]:
    return {
        (device.ordinal, tenant): counts
        for device in supervisor
        for tenant, counts in device.totals.by_tenant().items()
    }


_SHARED_FAMILIES = frozenset(
    ("hearth_build_info", "hearth_ready", "hearth_draining", "hearth_device_info", "hearth_device_up",
     "hearth_device_fenced", "hearth_certificate_expiry_timestamp_seconds")
)  # fmt: skip
"""Families without a tenant that reveal nothing about other tenants' activity."""


def _is_visible(viewer: Tenant, family: str, labels: Mapping[str, str]) -> bool:
    """Returns True if a sample may be shown to the viewer.

    The sample must belong to the viewer or to no tenant, and to a device that the viewer may use. Totals of all tenants
    are not shown, because the activity of other tenants could be computed as a difference.
    """
    allowed = sees_tenant(viewer, labels["tenant"]) if "tenant" in labels else family in _SHARED_FAMILIES
    return allowed and ("device" not in labels or viewer.sees(int(labels["device"])))


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families
