"""Prometheus families of the node and of the states of its devices."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hearth_proto import PROTOCOL_MAX, VERSION
from hearthd.front.rpc import node_status
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.exit_cause import LABELS
from hearthd.front.supervisor.supervisor import FENCED, SERVING, Supervisor


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


def _devices(supervisor: Supervisor) -> Iterator[Metric]:
    labels = ["device"]
    info = GaugeMetricFamily(
        "hearth_device_info", "1; the labels describe the device.", labels=["device", "name", "uuid", "backend"]
    )
    up = GaugeMetricFamily("hearth_device_up", "1 while the device serves, else 0.", labels=labels)
    fenced = GaugeMetricFamily(
        "hearth_device_fenced",
        "1 while the device is fenced and no process is started for it; /readyz names the cause.",
        labels=labels,
    )
    generation = GaugeMetricFamily(
        "hearth_device_generation",
        "Generation of the process that serves the device; each new process increments it.",
        labels=labels,
    )
    processes = GaugeMetricFamily("hearth_device_processes", "Processes that serve the device.", labels=labels)
    silence = GaugeMetricFamily(
        "hearth_device_silence_seconds", "Time since the last answer to a ping, of the most silent device process.",
        labels=labels,
    )  # fmt: skip
    restarts = CounterMetricFamily(
        "hearth_device_restarts", "Device processes lost, by reason.", labels=["device", "reason"]
    )
    for device in supervisor:
        label = str(device.ordinal)
        properties = device.properties
        info.add_metric([label, properties.name, properties.uuid, properties.backend], 1)
        up.add_metric([label], int(device.state == SERVING))
        fenced.add_metric([label], int(device.state == FENCED))
        generation.add_metric([label], device.generation)
        processes.add_metric([label], len(device.running))
        silence.add_metric([label], max(0.0, time.monotonic() - device.last_pong))
        for reason in sorted(LABELS | device.restarts.keys()):
            restarts.add_metric([label, reason], device.restarts.get(reason, 0))
    yield from (info, up, fenced, generation, processes, silence, restarts)
