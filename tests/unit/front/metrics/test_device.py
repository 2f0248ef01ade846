"""Counters of a device that outlive its processes, and the validation of their reports."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from hearthd.front.counters import Counts, DeviceTotals
from hearthd.front.metrics import device
from hearthd.front.supervisor import gauges

FAMILIES = {
    f"hearth_{name}"
    for name in [
        "allocated_bytes_total",
        "allocations_total",
        "batch_execution_seconds",
        "batches_total",
        "cancelled_total",
        "checkpointed_bytes_total",
        "checkpoints_total",
        "chunks_in_slots_total",
        "collective_bytes_total",
        "collectives_failed_total",
        "collectives_total",
        "command_errors_total",
        "command_failures_total",
        "commands_total",
        "brokers_lost_total",
        "compile_cache_hits_total",
        "compile_cache_misses_total",
        "compile_crashes_total",
        "compile_failures_total",
        "compile_seconds",
        "device_busy_seconds_total",
        "device_process_cpu_seconds_total",
        "device_to_device_bytes_total",
        "device_to_device_operations_total",
        "device_to_host_bytes_total",
        "device_to_host_operations_total",
        "dispatches_total",
        "filled_bytes_total",
        "fills_total",
        "freed_bytes_total",
        "frees_total",
        "graph_launches_total",
        "host_to_device_bytes_total",
        "host_to_device_operations_total",
        "joins_abandoned_total",
        "kernel_launches_total",
        "kernel_timeouts_total",
        "launch_completion_seconds",
        "loads_refused_total",
        "loop_turn_seconds",
        "modules_loaded_total",
        "modules_unloaded_total",
        "occupancy_measured_launches_total",
        "occupancy_sum_total",
        "out_of_memory_total",
        "output_bytes_total",
        "output_dropped_bytes_total",
        "output_unattributed_bytes_total",
        "persistent_hits_total",
        "prepared_launches_total",
        "profiles_total",
        "profiles_void_total",
        "queue_delay_seconds",
        "quota_refusals_total",
        "restored_buffers_total",
        "scheduled_threads_total",
        "slices_total",
        "sync_points_total",
        "sync_wait_seconds",
        "timed_dispatches_total",
        "timed_download_seconds_total",
        "timed_enqueue_seconds_total",
        "timed_kernel_seconds_total",
        "timed_upload_seconds_total",
        "timed_wait_seconds_total",
        "timed_wall_seconds_total",
        "trace_events_dropped_total",
        "trace_events_total",
        "traces_total",
        "transfer_bytes_total",
        "transfer_seconds",
        "validated_launches_total",
    ]
}
"""Metric families of the counters and histograms of a device process."""


def snapshot(value: int) -> dict[str, Any]:
    return {
        "counters": {"launches": value, "timed_wall_ns": value * 10**9},
        "operations": {"launch": value, "sync": 1},
        "errors": {"launch": value // 2},
        "histograms": {"sync_wait": {"bounds_ns": [1000, 2000], "counts": [value, 0, 1], "sum_ns": value}},
    }


def test_a_new_process_counts_on_top_of_the_last() -> None:
    totals = DeviceTotals()
    totals.observe(1, snapshot(5))
    totals.observe(1, snapshot(7))
    assert totals.counts().counters["launches"] == 7
    totals.observe(2, snapshot(1))
    counts = totals.counts()
    assert counts.counters["launches"] == 8 and counts.operations == {"launch": 8, "sync": 2}
    assert counts.errors == {"launch": 3}
    assert counts.histograms["sync_wait"].counts == [8, 0, 2] and counts.histograms["sync_wait"].sum_ns == 8


def test_the_longest_wait_of_several_processes_is_that_of_one() -> None:
    each = [
        {"loads_waiting": 1, "load_wait_longest_ns": 5, "memory_free_bytes": 9},
        {"loads_waiting": 2, "load_wait_longest_ns": 3, "memory_free_bytes": 8},
    ]
    assert gauges.combine(each) == {"loads_waiting": 3, "load_wait_longest_ns": 5, "memory_free_bytes": 8}


def test_late_reports_of_an_older_process_are_ignored() -> None:
    totals = DeviceTotals()
    totals.observe(1, snapshot(5))
    totals.observe(2, snapshot(1))
    totals.add_final(1)
    totals.observe(1, snapshot(9))
    assert totals.counts().counters["launches"] == 6


def test_concurrent_processes_are_summed_and_each_counts_for_its_tenant() -> None:
    totals = DeviceTotals()
    totals.set_tenant(1, "x")
    totals.set_tenant(2, "y")
    totals.observe(1, snapshot(5))
    totals.observe(2, snapshot(1))
    totals.observe(1, snapshot(6))
    totals.add_final(2)
    totals.set_tenant(3, "y")
    totals.observe(3, snapshot(2))
    assert totals.counts().counters["launches"] == 9
    assert {tenant: counts.counters["launches"] for tenant, counts in totals.by_tenant().items()} == {"x": 6, "y": 3}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100)), min_size=1))
def test_totals_never_go_down(steps: list[tuple[int, int]]) -> None:
    totals = DeviceTotals()
    generation, value, before = 1, 0, 0.0
    for restart, more in steps:
        if restart == 0:
            totals.add_final(generation)
            generation, value = generation + 1, 0
        value += more
        totals.observe(generation, snapshot(value))
        now = totals.counts().counters["launches"]
        assert now >= before
        before = now


def test_invalid_counter_values_are_omitted() -> None:
    counts = Counts.of(
        {
            "counters": {"good": 1, "bad name": 2, "text": "3", "true": True, "none": None, "f": 1.5},
            "operations": [1, 2],
            "errors": None,
            "histograms": {
                "short": {"bounds_ns": [1, 2], "counts": [1], "sum_ns": 1},
                "text": {"bounds_ns": [1], "counts": ["1", 2], "sum_ns": 1},
                "no dict": 5,
                "missing": {},
            },
        }
    )
    assert counts == Counts({"good": 1, "f": 1.5})
    assert Counts.of({}) == Counts()


def test_other_buckets_replace_the_old_ones() -> None:
    """A daemon that was updated in place has processes of both versions."""
    totals = DeviceTotals()
    totals.observe(1, snapshot(5))
    totals.observe(2, {"histograms": {"sync_wait": {"bounds_ns": [5000], "counts": [1, 2], "sum_ns": 3}}})
    assert totals.counts().histograms["sync_wait"].counts == [1, 2]


# ---- metrics page ----


class Page(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def page(
    totals: dict[int, Counts], stats: dict[int, dict[str, Any]] | None = None, taken: frozenset[str] = frozenset()
) -> str:
    registry = CollectorRegistry()
    registry.register(
        Page(
            list(
                device.families(
                    {(ordinal, "default"): counts for ordinal, counts in totals.items()},
                    {(ordinal, "default"): gauges for ordinal, gauges in (stats or {}).items()},
                    taken,
                )
            )
        )
    )
    return generate_latest(registry).decode()


def test_names_units_and_labels() -> None:
    text = page({0: Counts.of(snapshot(4)), 1: Counts.of(snapshot(2))}, {0: {"sessions": 3}})
    found = {
        (
            sample.name,
            sample.labels["device"],
            sample.labels.get("operation", sample.labels.get("le", "")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["tenant"] == "default"
    }
    assert found["hearth_launches_total", "0", ""] == 4 and found["hearth_launches_total", "1", ""] == 2
    assert found["hearth_timed_wall_seconds_total", "0", ""] == 4.0
    assert (
        found["hearth_commands_total", "0", "launch"] == 4 and found["hearth_command_errors_total", "0", "launch"] == 2
    )
    assert found["hearth_sessions", "0", ""] == 3 and ("hearth_sessions", "1", "") not in found
    buckets = [found["hearth_sync_wait_seconds_bucket", "0", le] for le in ("1e-06", "2e-06", "+Inf")]
    assert buckets == [4, 4, 5] and found["hearth_sync_wait_seconds_count", "0", ""] == 5
    assert found["hearth_sync_wait_seconds_sum", "0", ""] == 4e-9


def test_no_family_twice() -> None:
    counts = Counts({"sessions": 1, "front_batches": 2, "commands": 9, "x_total": 3}, {"launch": 1}, {"launch": 0})
    text = page({0: counts}, taken=frozenset({"hearth_sessions"}))
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    assert "hearth_device_process_sessions_total" in names and "hearth_device_process_front_batches_total" in names
    assert "hearth_x_total" in names and "hearth_x_total_total" not in names


def test_every_counter_of_a_device_process_is_described() -> None:
    from hearthd.device.platform.telemetry import Telemetry

    telemetry = Telemetry()
    telemetry.register(["read"])
    answer = telemetry.snapshot()
    for line in page({0: Counts.of(answer)}).splitlines():
        assert not (line.startswith("# HELP") and "Of the device process:" in line), line


def test_fields_of_a_device_process_have_their_published_families() -> None:
    """Dashboards and alerts use these names, so entries are only added."""
    from hearthd.device.platform.telemetry import Telemetry

    telemetry = Telemetry()
    telemetry.register(["read"])
    text = page({0: Counts.of(telemetry.snapshot())})
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == FAMILIES
