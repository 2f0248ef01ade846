"""Prometheus families of the node and of the states of its devices."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hearth_proto import PROTOCOL_MAX, VERSION
from hearthd.front.rpc import node_status
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.exit_cause import LABELS
from hearthd.front.supervisor.supervisor import FENCED, SERVING, Device, Supervisor


def families(supervisor: Supervisor, sessions: SessionTable) -> Iterator[Metric]:
    """Yields the families with the present state of the node."""
    info = GaugeMetricFamily(
        "hearth_build_info", "1; the labels hold the versions of the daemon, of its newest protocol and of Python.",
        labels=["version", "protocol", "python"],
    )  # fmt: skip
    info.add_metric([VERSION, str(PROTOCOL_MAX), platform.python_version()], 1)
    yield info
    ready = node_status.ready(supervisor, sessions.refuses_new)
    yield GaugeMetricFamily("hearth_ready", "1 while /readyz reports ready, else 0.", value=int(ready))
    yield GaugeMetricFamily("hearth_draining", "1 while the daemon drains, else 0.", value=int(sessions.draining))
    yield GaugeMetricFamily("hearth_sessions", "Open sessions.", value=len(sessions))
    connected = sum(session.connections > 0 for session in sessions)
    yield GaugeMetricFamily(
        "hearth_sessions_connected", "Open sessions with a stream or a call in progress; leases keep the others.",
        value=connected,
    )  # fmt: skip
    lanes = sum(channel.has_lane for session in sessions for channel in session.channels.values())
    yield GaugeMetricFamily("hearth_lanes", "Open lanes.", value=lanes)
    yield CounterMetricFamily(
        "hearth_audit_lost_events", "Events that could not be written to the audit log.", value=sessions.audit.lost
    )
    entries, anchored = sessions.audit.entries
    yield GaugeMetricFamily("hearth_audit_entries", "Number of the last entry of the audit log.", value=entries)
    yield GaugeMetricFamily(
        "hearth_audit_anchored_entries", "Number of the last entry that is anchored outside the log (audit.anchor).",
        value=anchored,
    )  # fmt: skip
    yield from _devices(supervisor)


_DEVICE_GAUGES: tuple[tuple[str, str, Callable[[Device], float]], ...] = (
    ("up", "1 while the device serves, else 0.", lambda device: device.state == SERVING),
    ("fenced", "1 while the device is fenced and no process is started for it; /readyz names the cause.",
     lambda device: device.state == FENCED),
    ("generation", "Generation of the process that serves the device; each new process increments it.",
     lambda device: device.generation),
    ("processes", "Processes that serve the device.", lambda device: len(device.running)),
    ("silence_seconds", "Time since the last answer to a ping, of the most silent device process.",
     lambda device: max(0.0, time.monotonic() - device.last_pong)),
)  # fmt: skip


def _devices(supervisor: Supervisor) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "hearth_device_info", "1; the labels describe the device.", labels=["device", "name", "uuid", "backend"]
    )
    for device in supervisor:
        properties = device.properties
        info.add_metric([str(device.ordinal), properties.name, properties.uuid, properties.backend], 1)
    yield info
    for name, text, value in _DEVICE_GAUGES:
        metric = GaugeMetricFamily(f"hearth_device_{name}", text, labels=["device"])
        for device in supervisor:
            metric.add_metric([str(device.ordinal)], value(device))
        yield metric
    restarts = CounterMetricFamily(
        "hearth_device_restarts", "Device processes lost, by reason.", labels=["device", "reason"]
    )
    for device in supervisor:
        for reason in sorted(LABELS | device.restarts.keys()):
            restarts.add_metric([str(device.ordinal), reason], device.restarts.get(reason, 0))
    yield restarts
