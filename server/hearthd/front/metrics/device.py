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

Place = tuple[int, str]
"""A device's ordinal and a tenant."""

_HELP = {
    "batches": "Batches executed.",
    "cancelled": "Single calls that were dropped, before they had begun, because their client was gone.",
    "device_busy_ns": "Time in which the device had work.",
    "slices": "Turns on the device, while several sessions wanted it.",
    "kernel_launches": "Kernels handed to the driver by launches, each repetition counted.",
    "validated_launches": "Launches between red zones.",
    "graph_launches": "Replays of graphs.",
    "prepared_launches": "Launches out of prepared lists.",
    "dispatches": "Dispatches: inputs up, kernel, outputs down in one command.",
    "scheduled_threads": "Threads of the kernels launched: grid times block.",
    "occupancy_measured_launches": "Launches whose kernel's occupancy is known.",
    "occupancy_sum": "Sum of their occupancies, 10000 each for a full multiprocessor; divide by "
    "hearth_occupancy_measured_launches_total for the mean.",
    "host_to_device_bytes": "Bytes copied to the device.",
    "host_to_device_operations": "Copies to the device.",
    "device_to_host_bytes": "Bytes copied from the device.",
    "device_to_host_operations": "Copies from the device.",
    "device_to_device_bytes": "Bytes copied within the device.",
    "device_to_device_operations": "Copies within the device.",
    "fills": "Fills of device memory.",
    "filled_bytes": "Bytes filled.",
    "allocations": "Buffers given memory.",
    "allocated_bytes": "Bytes allocated, as requested.",
    "frees": "Buffers whose memory was given back.",
    "freed_bytes": "Bytes given back, as requested.",
    "checkpoints": "Snapshots of durable buffers that were complete.",
    "checkpointed_bytes": "Bytes copied to the host for them.",
    "restored_buffers": "Durable buffers brought back after a loss.",
    "persistent_hits": "Allocations served from what a session keeps in a PERSISTENT window.",
    "out_of_memory": "Requests for memory that were refused.",
    "sync_points": "Syncs: a client waits for the device.",
    "timed_dispatches": "Dispatches with device times.",
    "timed_upload_ns": "Device time of their uploads.",
    "timed_kernel_ns": "Device time of their kernels.",
    "timed_download_ns": "Device time of their downloads.",
    "timed_wall_ns": "Their time in the device process, from arrival to answer.",
    "timed_enqueue_ns": "Of it, until all was handed to the device.",
    "timed_wait_ns": "Of it, waiting for the device.",
    "modules_loaded": "Modules loaded into the device's context.",
    "modules_unloaded": "Modules unloaded.",
    "loads_refused": "Modules, and first launches, that were refused when they had waited for launch.load_timeout.",
    "compile_cache_hits": "Modules whose code was there already.",
    "compile_cache_misses": "Modules that were compiled.",
    "compile_failures": "Modules that do not compile.",
    "compile_crashes": "Compiles in which the compiler itself ended, or went past its limits.",
    "brokers_lost": "Brokers of device processes that ended, and were replaced where their keeper was there.",
    "collectives": "Collective operations launched.",
    "collective_bytes": "Bytes of each rank's part of them.",
    "collectives_failed": "Collective operations that were launched, and given up with their communicator.",
    "joins_abandoned": "Communicators that were given up while a rank still waited for its peers to join.",
    "kernel_timeouts": "Kernels that ran past their limit, and were ended with their device process.",
    "device_process_cpu_ns": "CPU time of device processes.",
    "profiles": "Profiles that ended well.",
    "profiles_void": "Profiles in which something failed.",
    "traces": "Traces reported.",
    "trace_events": "Commands in them.",
    "trace_events_dropped": "Commands that came when a trace was full.",
    "output_bytes": "Bytes that kernels printed and their sessions were sent.",
    "output_unattributed_bytes": "Bytes that kernels printed and that went to the log: several sessions may have.",
    "output_dropped_bytes": "Bytes that kernels printed beyond what is kept.",
    "sessions": "Sessions with state on the device.",
    "sessions_leaving": "Sessions that were closed and whose work, or what they held, has not come to its end.",
    "buffers": "Live buffers.",
    "modules": "Live modules.",
    "graphs": "Live graphs, those being recorded among them.",
    "prepared_lists": "Live lists of prepared launches.",
    "buffers_published": "Buffers that are published, or were and are still attached.",
    "buffers_attached": "Attached buffers of others.",
    "commands_waiting": "Commands that wait in the device process for what they need.",
    "streams": "CUDA streams in use.",
    "streams_kept_back": "CUDA streams withheld from reuse: work of a session that left has run on them for a second.",
    "loads_waiting": "Modules that wait to be loaded, and first launches, until no kernel runs.",
    "load_wait_longest_ns": "How long the first of the loads that wait has been waiting; 0: there is none.",
    "memory_in_use_bytes": "Bytes in buffers, as requested.",
    "memory_reserved_bytes": "Bytes held by the device process's pool.",
    "memory_free_bytes": "Bytes free on the device.",
    "memory_total_bytes": "Bytes of the device.",
    "staging_bytes": "Host memory in copies under way.",
    "segments": "Segments of memory that clients share with the device process.",
    "segment_bytes": "Bytes in them.",
    "chunks_in_slots": "Chunks of downloads over gRPC that the front had from memory shared with the device process.",
    "chunk_slots": "Places for chunks in that memory.",
    "chunk_slots_in_use": "Those that a copy is on its way to, or that the front has not emptied.",
    "stripes": "Connections of clients for bulk data.",
    "profiles_open": "Profiles that have not ended.",
    "traces_running": "Sessions that are being traced.",
    "durable_bytes": "Host memory for copies of durable buffers.",
    "buffers_exported": "Buffers that are, or were, exported to other processes by CUDA IPC and are still lent.",
    "device_process_resident_memory_bytes": "Host memory of device processes that is in RAM.",
    "pinned_bytes": "Page-locked host memory held for copies.",
}

_HISTOGRAMS = {
    "batch_execution": "Time that the device-handle thread spends on a batch.",
    "queue_delay": "From a command's arrival in the device process to its being handed to the device.",
    "launch_completion": "From a launch's being handed to the device to its end, its time in the stream's queue "
    "included. Sampled: the first launch of each stream, then at most one in 128 commands, or in 32 waits.",
    "compile": "Time to compile a module that was in no cache.",
    "sync_wait": "From a sync to the end of the work before it.",
    "transfer": "How long host memory is held by a piece of a copy to or from the device: until the copy is done.",
    "loop_turn": "Time between two looks of the device-handle thread for what has arrived, sleep not counted.",
}

_LABELLED = frozenset({
    "hearth_commands", "hearth_command_errors", "hearth_command_failures", "hearth_quota_refusals",
    "hearth_transfer_bytes", "hearth_device_start_seconds", "hearth_device_recovery_seconds",
})  # fmt: skip
"""Families that are not a counter or gauge of the same name."""
_MOVED = re.compile(r"(?P<direction>upload|download)_(?P<path>[a-z_]+)_bytes")
_FAMILY = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


def families(
    totals: Mapping[Place, Counts], stats: Mapping[Place, Mapping[str, Number]], taken: frozenset[str]
) -> Iterator[Metric]:
    """Yields the families of every device and tenant: totals, and the gauges of the processes that answered. `taken`:
    names of other families."""
    failed = "Commands that failed, were skipped, or were answered with what failed before them"
    commands = {place: counts.operations for place, counts in totals.items()}
    yield _labelled("commands", "Commands that arrived.", ["operation"], commands)
    errors = {place: counts.errors for place, counts in totals.items()}
    yield _labelled("command_errors", f"{failed}.", ["operation"], errors)
    reasons = {place: counts.reasons for place, counts in totals.items()}
    yield _labelled("command_failures", f"{failed}, by reason code.", ["reason"], reasons)
    quotas = {place: counts.quotas for place, counts in totals.items()}
    yield _labelled("quota_refusals", "Commands that a quota refused, by its name.", ["quota"], quotas)
    moved = {place: _moved(counts) for place, counts in totals.items()}
    text = "Bytes that clients sent (upload) or fetched (download), by the way they took."
    yield _labelled("transfer_bytes", text, ["direction", "path"], moved)
    taken |= _LABELLED
    counters = {place: dict(_others(counts)) for place, counts in totals.items()}
    yield from _plain("counter", counters, taken)
    yield from _plain("gauge", stats, taken)
    yield from _histograms({place: counts.histograms for place, counts in totals.items()})


def of_processes(devices: Mapping[int, ProcessDurations]) -> Iterator[Metric]:
    """Yields the times that each device needed to start a process, and to replace a lost process."""
    starts = HistogramMetricFamily(
        "hearth_device_start_seconds", "From the launch of a device process until it is ready.", labels=["device"]
    )
    recoveries = HistogramMetricFamily(
        "hearth_device_recovery_seconds", "From the loss of a device process until whom it served are served again.",
        labels=["device"],
    )  # fmt: skip
    for ordinal, times in devices.items():
        for family, known in ((starts, times.starts), (recoveries, times.recoveries)):
            family.add_metric([str(ordinal)], _cumulated(known), known.sum_ns / 1e9)
    yield from (starts, recoveries)


def _moved(counts: Counts) -> dict[str, Number]:
    """Returns the transferred bytes. Each key is the direction and the path, separated by a space."""
    return {
        f"{match['direction']} {match['path']}": value
        for name, value in counts.counters.items()
        if (match := _MOVED.fullmatch(name))
    }


def _others(counts: Counts) -> Iterator[tuple[str, Number]]:
    """Yields the counters that need no labels except device and tenant."""
    for name, value in counts.counters.items():
        if name not in ("commands", "command_errors") and not _MOVED.fullmatch(name):
            yield name, value


def _labelled(name: str, text: str, labels: list[str], by_place: Mapping[Place, Mapping[str, Number]]) -> Metric:
    """Returns a counter with labels in addition to device and tenant. The words of each key are the values of these
    labels."""
    metric = CounterMetricFamily(f"hearth_{name}", text, labels=["device", "tenant", *labels])
    for (ordinal, tenant), counts in by_place.items():
        for words, value in sorted(counts.items()):
            metric.add_metric([str(ordinal), tenant, *words.split()], value)
    return metric


def _plain(kind: str, by_place: Mapping[Place, Mapping[str, Number]], taken: frozenset[str]) -> Iterator[Metric]:
    names: dict[str, list[tuple[Place, Number]]] = {}
    for place, values in by_place.items():
        for name, value in values.items():
            names.setdefault(name.removesuffix("_total"), []).append((place, value))
    family: Callable[..., Any] = _FAMILY[kind]
    for name, samples in sorted(names.items()):
        text = _HELP.get(name, f"Of the device process: {name.replace('_', ' ')}.")
        scale: float = 1
        exported = name
        if name.endswith("_ns"):
            exported, scale = f"{name.removesuffix('_ns')}_seconds", 1e-9
        full = f"hearth_{exported}"
        if full in taken or exported.startswith("front_"):
            # The name of a family of the front would appear twice on the page, which would make the page invalid.
            full = f"hearth_device_process_{exported}"
        metric = family(full, text, labels=["device", "tenant"])
        for (ordinal, tenant), value in samples:
            metric.add_metric([str(ordinal), tenant], value * scale)
        yield metric


def _histograms(by_place: Mapping[Place, Mapping[str, HistogramCounts]]) -> Iterator[Metric]:
    for name in sorted({name for histograms in by_place.values() for name in histograms}):
        text = _HISTOGRAMS.get(name, f"Of the device process: {name.replace('_', ' ')}.")
        metric = HistogramMetricFamily(f"hearth_{name}_seconds", text, labels=["device", "tenant"])
        for (ordinal, tenant), histograms in by_place.items():
            if name in histograms:
                known = histograms[name]
                metric.add_metric([str(ordinal), tenant], _cumulated(known), known.sum_ns / 1e9)
        yield metric


def _cumulated(histogram: HistogramCounts) -> list[tuple[str, float]]:
    bounds = [*(str(bound / 1e9) for bound in histogram.bounds_ns), "+Inf"]
    sum_so_far = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        sum_so_far += count
        found.append((bound, sum_so_far))
    return found
