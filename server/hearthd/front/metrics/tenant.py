"""Prometheus families of tenants: their usage, their limits, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hearthd.front.sessions.session import SessionEnd
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.sessions.tenant_accounts import SESSIONS_SHARE, TenantAccount
from hearthd.front.supervisor import gauges
from hearthd.front.supervisor.supervisor import Supervisor
from hearthd.front.tenancy.tenants import Quotas

_NOW: tuple[tuple[str, str, Callable[[TenantAccount], float]], ...] = (
    ("sessions", "Open sessions.", lambda account: len(account.sessions)),
    ("queued_commands", "Batches and calls not yet executed.", lambda account: account.queue.commands),
    ("queued_bytes", "Bytes of batches and calls not yet executed.", lambda account: account.queue.bytes),
    ("weight", "Weight of the tenant in the sharing of device time.", lambda account: account.tenant.weight),
)
_LIMITS: tuple[tuple[str, str, Callable[[Quotas], float]], ...] = (
    ("device_memory_limit_bytes", "Limit on its device memory, on the smallest device.",
     lambda quotas: quotas.device_bytes),
    ("pinned_memory_limit_bytes", "Limit on its page-locked host memory for each device.",
     lambda quotas: quotas.pinned_bytes),
    ("durable_limit_bytes", "Limit on the host memory for snapshots of its durable buffers.",
     lambda quotas: quotas.durable_bytes),
    ("sessions_limit", "Limit on its open sessions.", lambda quotas: quotas.sessions),
    ("handles_limit", "Limit on the handles of its sessions in one device process.", lambda quotas: quotas.handles),
    ("published_limit", "Limit on its published buffers on each device.", lambda quotas: quotas.published),
    ("queued_commands_limit", "Limit on its queued batches and calls; more wait.",
     lambda quotas: quotas.queued_commands),
    ("queued_limit_bytes", "Limit on the bytes of its queued batches and calls.", lambda quotas: quotas.queued_bytes),
    ("device_limit_seconds", "Limit on the device time that it may use.", lambda quotas: quotas.gpu_seconds),
)  # fmt: skip


def families(supervisor: Supervisor, sessions: SessionTable) -> Iterator[Metric]:
    """Yields the families of all tenants that have had a session since the daemon started."""
    labels = ["tenant"]
    accounts = list(sessions.accounts)
    for name, text, value in _NOW:
        metric = GaugeMetricFamily(f"hearth_tenant_{name}", text, labels=labels)
        for account in accounts:
            metric.add_metric([account.tenant.name], value(account))
        yield metric
    smallest_memory = min((device.memory_total for device in supervisor), default=0)
    for name, text, limit in _LIMITS:
        metric = GaugeMetricFamily(f"hearth_tenant_{name}", f"{text} Absent: no limit.", labels=labels)
        for account in accounts:
            quotas = account.tenant.quotas
            if allowed := limit(replace(quotas, device_bytes=quotas.on_device(smallest_memory))):
                metric.add_metric([account.tenant.name], allowed)
        yield metric
    seconds = CounterMetricFamily("hearth_tenant_device_seconds", "Device time used by the tenant.", labels=labels)
    opened = CounterMetricFamily("hearth_sessions_opened", "Sessions opened.", labels=labels)
    closed = CounterMetricFamily(
        "hearth_sessions_closed", "Sessions that ended, by the cause.", labels=["tenant", "reason"]
    )
    refused = CounterMetricFamily(
        "hearth_tenant_quota_refusals", "Sessions and calls refused by a quota of the front, by the name of the quota.",
        labels=["tenant", "quota"],
    )  # fmt: skip
    for account in accounts:
        name = account.tenant.name
        seconds.add_metric([name], account.device_ns / 1e9)
        opened.add_metric([name], account.opened)
        for reason in SessionEnd:
            closed.add_metric([name, reason], account.closed[reason])
        for quota in ("sessions", "gpu_seconds", SESSIONS_SHARE):
            refused.add_metric([name, quota], account.refused[quota])
    yield from (seconds, opened, closed, refused, _granted(supervisor), _processes_refused(supervisor))


def _processes_refused(supervisor: Supervisor) -> Metric:
    metric = CounterMetricFamily(
        "hearth_tenant_process_refusals", "Device processes refused to a tenant that already had its share of them.",
        labels=["device", "tenant"],
    )  # fmt: skip
    for device in supervisor:
        for tenant, count in sorted(device.share_refusals.items()):
            metric.add_metric([str(device.ordinal), tenant], count)
    return metric


def _granted(supervisor: Supervisor) -> Metric:
    metric = GaugeMetricFamily(
        "hearth_memory_granted_bytes", "Device memory that the device processes of a tenant may hold.",
        labels=["device", "tenant"],
    )  # fmt: skip
    for device in supervisor:
        granted: dict[str, int] = {}
        for worker in device.workers:
            tenant = gauges.label(worker)
            granted[tenant] = granted.get(tenant, 0) + device.memory.granted(worker.generation)
        for tenant, size in sorted(granted.items()):
            metric.add_metric([str(device.ordinal), tenant], size)
    return metric
