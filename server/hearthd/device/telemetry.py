"""Counters of one device process, kept on the device-handle thread, so that a snapshot is consistent."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class Telemetry:
    """Counts since the process started. Names end in their unit, as Prometheus wants them."""

    batches: int = 0
    commands: int = 0
    command_errors: int = 0
    kernel_launches: int = 0
    host_to_device_bytes: int = 0
    host_to_device_operations: int = 0
    device_to_host_bytes: int = 0
    device_to_host_operations: int = 0
    device_to_device_bytes: int = 0
    fills: int = 0
    allocations: int = 0
    allocated_bytes: int = 0
    out_of_memory: int = 0
    sync_points: int = 0
    modules_loaded: int = 0
    compile_cache_hits: int = 0
    compile_cache_misses: int = 0
    compile_failures: int = 0
    collectives: int = 0
    collective_bytes: int = 0
    profiles: int = 0

    def counters(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
