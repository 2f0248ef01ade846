"""Counters and latencies of one device process, kept on the device-handle thread, so that a snapshot is consistent.

Latencies are counted in fixed logarithmic buckets: observing one is a single integer increment, and the exported counts
never decrease.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.platform.tally import read

BUCKETS = 27
"""Number of finite buckets: 1 us, 2 us, 4 us, ... 67.1 s."""

BOUNDS_NS: tuple[int, ...] = tuple(1000 << index for index in range(BUCKETS))
"""Upper bounds of the buckets in nanoseconds, inclusive like Prometheus's `le`; longer durations fall into one more
bucket."""

OTHER = "other"
"""Name under which commands of unknown kinds are counted, so that clients cannot create labels."""


@dataclass
class Histogram:
    """Histogram of latencies.

    `counts` has the number of observations in each bucket, not cumulative; the last bucket is unbounded.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (BUCKETS + 1))
    sum_ns: int = 0

    def observe(self, ns: int) -> None:
        """Counts a latency in nanoseconds.

        Latencies below 1 us, including negative ones after a clock step, belong to the first bucket.
        """
        if ns > 0:
            self.sum_ns += ns
            index = ((ns - 1) // 1000).bit_length()
            self.counts[index if index < BUCKETS else BUCKETS] += 1
        else:
            self.counts[0] += 1

    def snapshot(self, immediate: int = 0) -> dict[str, object]:
        """Returns the histogram for the front, with `immediate` additional observations of 0."""
        counts = list(self.counts)
        counts[0] += immediate
        return {"bounds_ns": list(BOUNDS_NS), "counts": counts, "sum_ns": self.sum_ns}


def resident_bytes() -> int:
    """Returns the resident memory of this process, in bytes; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@dataclass
class Telemetry:
    """Counts since the process started. Names end in their unit; `_ns` values are exported in seconds.

    The fields of type `int` are counters, which never decrease.
    """

    batches: int = 0
    device_busy_ns: int = 0
    """Time during which sessions had work on the device, as far as that was known."""
    slices: int = 0
    """Number of slices that were measured because several sessions used the device."""
    cancelled: int = 0
    """Calls that were cancelled because their clients no longer waited for them."""
    launched: int = 0
    """Tally of the launches that were submitted to the driver, with their threads and their occupancy; see `tally`."""
    validated_launches: int = 0
    graph_launches: int = 0
    prepared_launches: int = 0
    dispatches: int = 0
    host_to_device_bytes: int = 0
    host_to_device_operations: int = 0
    device_to_host_bytes: int = 0
    device_to_host_operations: int = 0
    device_to_device_bytes: int = 0
    device_to_device_operations: int = 0
    fills: int = 0
    filled_bytes: int = 0
    allocations: int = 0
    allocated_bytes: int = 0
    frees: int = 0
    freed_bytes: int = 0
    persistent_hits: int = 0
    checkpoints: int = 0
    checkpointed_bytes: int = 0
    restored_buffers: int = 0
    upload_inline_bytes: int = 0
    """Bytes that clients sent, by path: within the command, in chunks over gRPC, over stripes, in shared memory."""
    upload_chunks_bytes: int = 0
    upload_stripes_bytes: int = 0
    upload_shared_memory_bytes: int = 0
    download_inline_bytes: int = 0
    download_chunks_bytes: int = 0
    download_stripes_bytes: int = 0
    download_shared_memory_bytes: int = 0
    chunks_in_slots: int = 0
    """Chunks of downloads that were passed to the front through shared memory."""
    out_of_memory: int = 0
    sync_points: int = 0
    timed_dispatches: int = 0
    timed_upload_ns: int = 0
    timed_kernel_ns: int = 0
    timed_download_ns: int = 0
    timed_wall_ns: int = 0
    timed_enqueue_ns: int = 0
    timed_wait_ns: int = 0
    modules_loaded: int = 0
    modules_unloaded: int = 0
    loads_refused: int = 0
    """Loads that were refused because the device did not become idle in time."""
    compile_cache_hits: int = 0
    compile_cache_misses: int = 0
    compile_failures: int = 0
    compile_crashes: int = 0
    brokers_lost: int = 0
    """Brokers that ended while the process was running; see `hearthd.device.broker`."""
    collectives: int = 0
    collective_bytes: int = 0
    collectives_failed: int = 0
    """Collectives that had been launched and were aborted together with their communicator."""
    joins_abandoned: int = 0
    """Communicators that were abandoned while this process waited for its peers to join."""
    kernel_timeouts: int = 0
    """Kernels that exceeded their time limit; at most one, because the process then ends."""
    profiles: int = 0
    profiles_void: int = 0
    traces: int = 0
    trace_events: int = 0
    trace_events_dropped: int = 0
    output_bytes: int = 0
    output_dropped_bytes: int = 0
    output_unattributed_bytes: int = 0

    operations: dict[str, int] = field(default_factory=dict)
    """Commands that arrived, by kind."""
    errors: dict[str, int] = field(default_factory=dict)
    """Commands that failed, were skipped, or were answered with an earlier failure, by kind."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Commands in `errors` by reason code (`hearth_proto.reasons.Reason`)."""
    quotas: dict[str, int] = field(default_factory=lambda: {"device_bytes": 0, "handles": 0, OTHER: 0})
    """Commands refused because of a quota, by name of the quota if the refusal contains it."""

    batch_execution: Histogram = field(default_factory=Histogram)
    queue_delay: Histogram = field(default_factory=Histogram)
    """Delay of commands that had to wait in the device process before they could be submitted."""
    launch_completion: Histogram = field(default_factory=Histogram)
    """Latency of some launches; see `hearthd.device.streams.track.IDLE_PERIODS`."""
    compile: Histogram = field(default_factory=Histogram)
    sync_wait: Histogram = field(default_factory=Histogram)
    transfer: Histogram = field(default_factory=Histogram)
    loop_turn: Histogram = field(default_factory=Histogram)

    def register(self, operations: Iterable[str]) -> None:
        """Registers the kinds of commands that are served, which are counted by name, starting at 0."""
        for name in (*operations, "launch", OTHER):
            self.operations.setdefault(name, 0)
            self.errors.setdefault(name, 0)

    def count(self, operation: str, times: int = 1) -> None:
        """Counts commands that have arrived."""
        operations = self.operations
        operations[operation if operation in operations else OTHER] += times

    def failed(self, operation: str, refusal: Refusal) -> None:
        """Counts a failed command, by kind, reason and quota."""
        self.errors[operation if operation in self.errors else OTHER] += 1
        self.reasons[refusal.reason] = self.reasons.get(refusal.reason, 0) + 1
        if refusal.reason is Reason.QUOTA_EXCEEDED:
            quota = refusal.details.get("quota", OTHER)
            self.quotas[quota if quota in self.quotas else OTHER] += 1

    def uploaded(self, size: int, *, striped: bool) -> None:
        """Counts a completed upload whose bytes were sent outside the command."""
        if striped:
            self.upload_stripes_bytes += size
        else:
            self.upload_chunks_bytes += size

    def dispatched(self, result: commands_pb2.DispatchResult) -> None:
        """Counts a completed dispatch, and its device times if they were measured."""
        self.dispatches += 1
        if result.HasField("kernel_ns"):
            self.timed_dispatches += 1
            self.timed_upload_ns += result.upload_ns
            self.timed_kernel_ns += result.kernel_ns
            self.timed_download_ns += result.download_ns
            self.timed_wall_ns += result.wall_ns
            self.timed_enqueue_ns += result.enqueue_ns
            self.timed_wait_ns += result.wait_ns

    @property
    def commands(self) -> int:
        """Number of commands that have arrived."""
        return sum(self.operations.values())

    def counters(self) -> dict[str, int]:
        """Returns every counter that has no label other than the device."""
        counters = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.type == "int"}
        tally = read(counters.pop("launched"))
        return {
            **counters,
            "commands": self.commands,
            "command_errors": sum(self.errors.values()),
            "device_process_cpu_ns": time.process_time_ns(),
            "kernel_launches": tally.launches,
            "scheduled_threads": tally.threads,
            "occupancy_measured_launches": tally.measured,
            "occupancy_sum": tally.occupancy,
        }

    def snapshot(self, waiting: int = 0) -> dict[str, Any]:
        """Returns all metrics. `waiting` is the number of commands that still wait and have no queue delay yet."""
        waited = sum(self.queue_delay.counts)
        return {
            "counters": self.counters(),
            "operations": dict(self.operations),
            "errors": dict(self.errors),
            "reasons": dict(self.reasons),
            "quotas": dict(self.quotas),
            "histograms": {
                "batch_execution": self.batch_execution.snapshot(),
                # The delay of a command that runs on arrival is not measured, and counts as 0.
                "queue_delay": self.queue_delay.snapshot(max(0, self.commands - waited - waiting)),
                "launch_completion": self.launch_completion.snapshot(),
                "compile": self.compile.snapshot(),
                "sync_wait": self.sync_wait.snapshot(),
                "transfer": self.transfer.snapshot(),
                "loop_turn": self.loop_turn.snapshot(),
            },
        }
