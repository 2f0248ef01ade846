"""Prometheus families of NVML's readings.

A family that no GPU supports is left out. The label `device` is the ordinal; `hearth_device_info` has its UUID.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hearthd.front.gpu.reading import RECOVERY, GpuReading

_GAUGES = {
    "memory_used": ("hearth_gpu_memory_used_bytes", "Device memory in use, by all processes."),
    "memory_total": ("hearth_gpu_memory_total_bytes", "Total device memory."),
    "utilization": ("hearth_gpu_utilization_ratio", "Share of the last sample period with a kernel running."),
    "memory_utilization": (
        "hearth_gpu_memory_utilization_ratio",
        "Share of the last sample period in which its memory was read or written.",
    ),
    "encoder_utilization": ("hearth_gpu_encoder_utilization_ratio", "Share of time that the video encoder was busy."),
    "decoder_utilization": ("hearth_gpu_decoder_utilization_ratio", "Share of time that the video decoder was busy."),
    "temperature": ("hearth_gpu_temperature_celsius", "Temperature of the GPU."),
    "memory_temperature": ("hearth_gpu_memory_temperature_celsius", "Temperature of the GPU's memory."),
    "power": ("hearth_gpu_power_watts", "Power drawn."),
    "power_limit": ("hearth_gpu_power_limit_watts", "Power limit in force."),
    "sm_clock": ("hearth_gpu_sm_clock_hertz", "Clock of the multiprocessors."),
    "memory_clock": ("hearth_gpu_memory_clock_hertz", "Clock of the memory."),
    "remap_pending": (
        "hearth_gpu_row_remap_pending", "1 while a row of its memory waits for a reset to be remapped, else 0.",
    ),
    "remap_failed": ("hearth_gpu_row_remap_failed", "1 if the remapping of a row of its memory has failed, else 0."),
}  # fmt: skip
_COUNTERS = {
    "energy": ("hearth_gpu_energy_joules", "Energy used since the driver was loaded."),
    "pcie_replays": ("hearth_gpu_pcie_replays", "PCIe packets that were resent."),
    "nvlink_received": ("hearth_gpu_nvlink_received_bytes", "Payload received over all NVLinks."),
    "nvlink_sent": ("hearth_gpu_nvlink_sent_bytes", "Payload sent over all NVLinks."),
}
_LABELLED: tuple[tuple[Callable[..., Any], str, str, str, Callable[[GpuReading], Mapping[Any, int | None]]], ...] = (
    (CounterMetricFamily, "hearth_gpu_ecc_errors", "ECC errors since the driver was loaded.", "kind",
     lambda reading: {"corrected": reading.ecc_corrected, "uncorrected": reading.ecc_uncorrected}),
    (GaugeMetricFamily, "hearth_gpu_remapped_rows",
     "Rows of the GPU's memory remapped in its lifetime, by the kind of error.", "kind",
     lambda reading: {
         "corrected": reading.rows_remapped_corrected, "uncorrected": reading.rows_remapped_uncorrected,
     }),
    (GaugeMetricFamily, "hearth_gpu_throttled", "1 while this reason keeps the clocks down, else 0.", "reason",
     lambda reading: reading.throttling),
    (CounterMetricFamily, "hearth_gpu_xid_errors",
     "Xid errors reported by the driver since the daemon started to listen.", "xid",
     lambda reading: dict(sorted(reading.xids.items()))),
    (GaugeMetricFamily, "hearth_gpu_recovery_action",
     "1 for the recovery action that the driver requests for the GPU, else 0.", "action",
     lambda reading: {} if reading.recovery is None else {action: action == reading.recovery for action in RECOVERY}),
)  # fmt: skip
"""Kind, name and help of each family with a label in addition to the device, this label, and its values."""


def families(readings: Mapping[int, GpuReading], sick: Collection[int] = ()) -> Iterator[Metric]:
    """Yields the families that have samples.

    `readings`: the readings by ordinal. `sick`: ordinals of the devices that are fenced because of their readings.
    """
    for metric in every_family(readings, sick):
        if metric.samples:
            yield metric


def every_family(
    readings: Mapping[int, GpuReading] = MappingProxyType({}), sick: Collection[int] = ()
) -> Iterator[Metric]:
    """Yields all families, including those without a sample."""
    for field, (name, text) in _GAUGES.items():
        yield _plain(GaugeMetricFamily(name, text, labels=["device"]), field, readings)
    for field, (name, text) in _COUNTERS.items():
        yield _plain(CounterMetricFamily(name, text, labels=["device"]), field, readings)
    for family, name, text, label, values in _LABELLED:
        metric = family(name, text, labels=["device", label])
        for ordinal, reading in readings.items():
            for key, value in values(reading).items():
                if value is not None:
                    metric.add_metric([str(ordinal), str(key)], value)
        yield metric
    healthy = GaugeMetricFamily(
        "hearth_gpu_healthy",
        "0 while the device is fenced because its GPU needs a reset or a replacement, else 1.",
        labels=["device"],
    )
    for ordinal in readings:
        healthy.add_metric([str(ordinal)], int(ordinal not in sick))
    yield healthy


def _plain(metric: GaugeMetricFamily | CounterMetricFamily, field: str, readings: Mapping[int, GpuReading]) -> Metric:
    for ordinal, reading in readings.items():
        if (value := getattr(reading, field)) is not None:
            metric.add_metric([str(ordinal)], float(value))
    return metric


NAMES = frozenset(family.name for family in every_family())
"""The names of all possible families, those of counters without `_total`."""
