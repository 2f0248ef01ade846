"""Prometheus families of the counters of device processes: names, units, help and labels.

Every sample has the labels `device` (the ordinal) and `tenant` (the tenant that the process serves, or `default` if it
serves all tenants).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from hearthd.front.counters import Counts, HistogramCounts, Number
from hearthd.front.supervisor.durations import ProcessDurations

DeviceTenant = tuple[int, str]
"""The ordinal of a device, and the name of a tenant."""

_HELP = {
    "batches": "Batches executed.",
    "cancelled": "Single calls dropped before they began, because their client had disconnected.",
    "device_busy_ns": "Time that the device had work.",
    "slices": "Scheduling turns of sessions on the device, while several sessions had work for it.",
    "kernel_launches": "Kernels that launches submitted to the driver; each repetition counts.",
    "validated_launches": "Launches in validate mode, on copies of their buffers between red zones.",
    "graph_launches": "Launches of graphs.",
    "prepared_launches": "Launches from prepared lists.",
    "dispatches": "Dispatches: one command that uploads inputs, runs the kernel and downloads outputs.",
    "scheduled_threads": "Threads of the launched kernels: grid size times block size.",
    "occupancy_measured_launches": "Launches of kernels with a known occupancy.",
    "occupancy_sum": "Sum of their occupancies, 10000 each for a full multiprocessor; divide by "
    "hearth_occupancy_measured_launches_total for the mean.",
    "host_to_device_bytes": "Bytes copied to the device.",
    "host_to_device_operations": "Copies to the device.",
    "device_to_host_bytes": "Bytes copied from the device.",
    "device_to_host_operations": "Copies from the device.",
    "device_to_device_bytes": "Bytes copied within the device.",
    "device_to_device_operations": "Copies within the device.",
    "fills": "Fill operations on device memory.",
    "filled_bytes": "Bytes of device memory written by fills.",
    "allocations": "Allocations of buffers.",
    "allocated_bytes": "Bytes allocated for buffers, as requested.",
    "frees": "Frees of buffers.",
    "freed_bytes": "Bytes freed with buffers, as requested at their allocation.",
    "checkpoints": "Completed snapshots of durable buffers.",
    "checkpointed_bytes": "Bytes copied to the host for snapshots of durable buffers.",
    "restored_buffers": "Durable buffers restored after the loss of a device process.",
    "persistent_hits": "Allocations served from memory that a session keeps in PERSISTENT allocation mode.",
    "out_of_memory": "Allocations and dispatches refused for lack of memory.",
    "sync_points": "Sync commands: a client waits until the device has completed its work.",
    "timed_dispatches": "Dispatches that measured device times.",
    "timed_upload_ns": "Device time of the uploads of timed dispatches.",
    "timed_kernel_ns": "Device time of the kernels of timed dispatches.",
    "timed_download_ns": "Device time of the downloads of timed dispatches.",
    "timed_wall_ns": "Time of timed dispatches in the device process, from arrival to answer.",
    "timed_enqueue_ns": "Part of the time of timed dispatches until all work was submitted to the device.",
    "timed_wait_ns": "Part of the time of timed dispatches spent waiting for the device.",
    "modules_loaded": "Modules loaded into the device's context.",
    "modules_unloaded": "Modules unloaded from the device's context.",
    "loads_refused": "Module loads and first launches refused after waiting for launch.load_timeout.",
    "compile_cache_hits": "Modules whose compiled code was in a cache.",
    "compile_cache_misses": "Modules that were in no cache and were compiled.",
    "compile_failures": "Modules that failed to compile.",
    "compile_crashes": "Compilations in which the compiler process crashed or exceeded its limits.",
    "brokers_lost": "Brokers of device processes that ended unexpectedly; each is replaced if its keeper still runs.",
    "collectives": "Collective operations launched.",
    "collective_bytes": "Bytes of each rank's part of the launched collective operations.",
    "collectives_failed": "Collective operations that were launched and then aborted with their communicator.",
    "joins_abandoned": "Communicators aborted while a rank waited for its peers to join.",
    "kernel_timeouts": "Kernels that exceeded their time limit and were ended with their device process.",
    "device_process_cpu_ns": "CPU time of device processes.",
    "profiles": "Profiles that ended with a result.",
    "profiles_void": "Profiles that ended without a result.",
    "traces": "Traces that ended and were sent to their client.",
    "trace_events": "Commands recorded in traces.",
    "trace_events_dropped": "Commands not recorded because their trace was full.",
    "output_bytes": "Bytes printed by kernels and sent to their sessions.",
    "output_unattributed_bytes": "Bytes printed by kernels and written to the log: their session is not known.",
    "output_dropped_bytes": "Bytes printed by kernels and dropped: more than is kept between two syncs.",
    "sessions": "Sessions with state on the device.",
    "sessions_leaving": "Closed sessions whose work still runs, or whose resources are not yet released.",
    "buffers": "Live buffers.",
    "modules": "Live modules.",
    "graphs": "Live graphs, including those being recorded.",
    "prepared_lists": "Live lists of prepared launches.",
    "buffers_published": "Published buffers, and unpublished ones that are still attached.",
    "buffers_attached": "Buffers attached from other sessions.",
    "commands_waiting": "Commands waiting in the device process for what they depend on.",
    "streams": "CUDA streams in use.",
    "streams_kept_back": "CUDA streams withheld from reuse, because work of a closed session runs on them.",
    "loads_waiting": "Module loads and first launches waiting until no kernel runs.",
    "load_wait_longest_ns": "Time that the oldest waiting load has waited; 0: no load waits.",
    "memory_in_use_bytes": "Bytes of live buffers, as requested.",
    "memory_reserved_bytes": "Bytes held by the device process's memory pool, in use or not.",
    "memory_free_bytes": "Free memory of the device.",
    "memory_total_bytes": "Total memory of the device.",
    "staging_bytes": "Host memory used by copies in progress.",
    "segments": "Shared-memory segments of clients that the device process has mapped.",
    "segment_bytes": "Bytes of the shared-memory segments of clients.",
    "chunks_in_slots": "Chunks of gRPC downloads that the front read from memory shared with the device process.",
    "chunk_slots": "Slots for chunks of downloads in the memory shared by front and device process.",
    "chunk_slots_in_use": "Slots with a copy in progress, or with data that the front has not read.",
    "stripes": "Open TCP connections of clients for bulk data (stripes).",
    "profiles_open": "Open profiles.",
    "traces_running": "Sessions that are being traced.",
    "durable_bytes": "Host memory used by snapshots of durable buffers.",
    "buffers_exported": "Buffers exported to other processes by CUDA IPC and not yet released.",
    "device_process_resident_memory_bytes": "Resident host memory of device processes.",
    "pinned_bytes": "Page-locked host memory held for copies.",
}

_HISTOGRAMS = {
    "batch_execution": "Time that the device-handle thread spends on a batch.",
    "queue_delay": "Time from a command's arrival in the device process to its submission to the device.",
    "launch_completion": "From a launch's being handed to the device to its end, its time in the stream's queue "
    "included. Sampled: the first launch of each stream, then at most one in 128 commands, or in 32 waits.",
    "compile": "Time to compile a module that was in no cache.",
    "sync_wait": "Time from a sync to the completion of the work before it.",
    "transfer": "Time that a piece of a copy to or from the device holds host memory, until the copy is complete.",
    "loop_turn": "Time between two polls of the device-handle thread for arrived frames, without sleep.",
}

_TRANSFERRED = re.compile(r"(?P<direction>upload|download)_(?P<path>[a-z_]+)_bytes")


def families(
    totals: Mapping[DeviceTenant, Counts],
    stats: Mapping[DeviceTenant, Mapping[str, Number]],
    used_names: frozenset[str],
) -> Iterator[Metric]:
    """Yields the families of every device and tenant: totals, and the gauges of the processes that answered.

    `used_names`: names of other families, which these must not have.
    """
    for name, text, labels, select in _LABELLED:
        yield _labelled(name, text, labels, {key: select(counts) for key, counts in totals.items()})
    used_names |= _LABELLED_NAMES
    counters = {key: dict(_unlabelled(counts)) for key, counts in totals.items()}
    yield from _unlabelled_families(CounterMetricFamily, counters, used_names)
    yield from _unlabelled_families(GaugeMetricFamily, stats, used_names)
    yield from _histograms({key: counts.histograms for key, counts in totals.items()})


def duration_families(devices: Mapping[int, ProcessDurations]) -> Iterator[Metric]:
    """Yields the times that each device needed to start a process, and to replace a lost process."""
    starts = HistogramMetricFamily(
        "hearth_device_start_seconds", "Time from the start of a device process until it is ready.", labels=["device"]
    )
    recoveries = HistogramMetricFamily(
        "hearth_device_recovery_seconds", "Time from the loss of a device process until its sessions are served again.",
        labels=["device"],
    )  # fmt: skip
    for ordinal, times in devices.items():
        for family, histogram in ((starts, times.starts), (recoveries, times.recoveries)):
            family.add_metric([str(ordinal)], _cumulative_buckets(histogram), histogram.sum_ns / 1e9)
    yield from (starts, recoveries)


def _transferred(counts: Counts) -> dict[str, Number]:
    """Returns the transferred bytes. Each key is the direction and the path, separated by a space."""
    return {
        f"{match['direction']} {match['path']}": value
        for name, value in counts.counters.items()
        if (match := _TRANSFERRED.fullmatch(name))
    }


_FAILED = "Commands that failed, were skipped, or were answered with an earlier error"
_LABELLED: tuple[tuple[str, str, list[str], Callable[[Counts], Mapping[str, Number]]], ...] = (
    ("commands", "Commands that arrived.", ["operation"], lambda counts: counts.operations),
    ("command_errors", f"{_FAILED}.", ["operation"], lambda counts: counts.errors),
    ("command_failures", f"{_FAILED}, by reason code.", ["reason"], lambda counts: counts.reasons),
    ("quota_refusals", "Commands refused by a quota, by the name of the quota.", ["quota"],
     lambda counts: counts.quotas),
    ("transfer_bytes", "Bytes that clients sent (upload) or fetched (download), by the path of the transfer.",
     ["direction", "path"], _transferred),
)  # fmt: skip
"""Name, help, further labels and values of the counters with labels in addition to device and tenant."""
_LABELLED_NAMES = frozenset(
    (*(f"hearth_{name}" for name, *_ in _LABELLED), "hearth_device_start_seconds", "hearth_device_recovery_seconds")
)
"""Families that are not a counter or gauge of the same name."""


def _unlabelled(counts: Counts) -> Iterator[tuple[str, Number]]:
    """Yields the counters that need no labels except device and tenant."""
    for name, value in counts.counters.items():
        if name not in ("commands", "command_errors") and not _TRANSFERRED.fullmatch(name):
            yield name, value


def _labelled(name: str, text: str, labels: list[str], by_key: Mapping[DeviceTenant, Mapping[str, Number]]) -> Metric:
    """Returns a counter with labels in addition to device and tenant.

    The words of each key are the values of these labels.
    """
    metric = CounterMetricFamily(f"hearth_{name}", text, labels=["device", "tenant", *labels])
    for (ordinal, tenant), counts in by_key.items():
        for words, value in sorted(counts.items()):
            metric.add_metric([str(ordinal), tenant, *words.split()], value)
    return metric


def _unlabelled_families(
    family: Callable[..., Any], by_key: Mapping[DeviceTenant, Mapping[str, Number]], used_names: frozenset[str]
) -> Iterator[Metric]:
    names: dict[str, list[tuple[DeviceTenant, Number]]] = {}
    for key, values in by_key.items():
        for name, value in values.items():
            names.setdefault(name.removesuffix("_total"), []).append((key, value))
    for name, samples in sorted(names.items()):
        text = _HELP.get(name, f"Of the device process: {name.replace('_', ' ')}.")
        scale: float = 1
        exported = name
        if name.endswith("_ns"):
            exported, scale = f"{name.removesuffix('_ns')}_seconds", 1e-9
        full = f"hearth_{exported}"
        if full in used_names or exported.startswith("front_"):
            # The name of a family of the front would appear twice on the page, which would make the page invalid.
            full = f"hearth_device_process_{exported}"
        metric = family(full, text, labels=["device", "tenant"])
        for (ordinal, tenant), value in samples:
            metric.add_metric([str(ordinal), tenant], value * scale)
        yield metric


def _histograms(by_key: Mapping[DeviceTenant, Mapping[str, HistogramCounts]]) -> Iterator[Metric]:
    for name in sorted({name for histograms in by_key.values() for name in histograms}):
        text = _HISTOGRAMS.get(name, f"Of the device process: {name.replace('_', ' ')}.")
        metric = HistogramMetricFamily(f"hearth_{name}_seconds", text, labels=["device", "tenant"])
        for (ordinal, tenant), histograms in by_key.items():
            if name in histograms:
                histogram = histograms[name]
                metric.add_metric([str(ordinal), tenant], _cumulative_buckets(histogram), histogram.sum_ns / 1e9)
        yield metric


def _cumulative_buckets(histogram: HistogramCounts) -> list[tuple[str, float]]:
    bounds = [*(str(bound / 1e9) for bound in histogram.bounds_ns), "+Inf"]
    cumulative = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        cumulative += count
        buckets.append((bound, cumulative))
    return buckets
