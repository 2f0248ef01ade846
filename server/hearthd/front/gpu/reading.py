"""The readings of a GPU at one point in time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GpuReading:
    """NVML's present readings of one GPU.

    None: NVML has no value. Units: bytes, ratios, degrees Celsius, watts, hertz.
    """

    memory_used: int | None = None
    memory_total: int | None = None
    utilization: float | None = None
    temperature: float | None = None
    power: float | None = None
    sm_clock: float | None = None
    memory_utilization: float | None = None
    """Fraction of the last sample period in which the GPU's memory was read or written."""
    encoder_utilization: float | None = None
    decoder_utilization: float | None = None
    memory_clock: float | None = None
    memory_temperature: float | None = None
    power_limit: float | None = None
    energy: float | None = None
    """Energy in joules since the driver was loaded."""
    pcie_replays: int | None = None
    nvlink_received: int | None = None
    """Payload bytes received over all NVLinks."""
    nvlink_sent: int | None = None
    ecc_corrected: int | None = None
    """Number of errors since the driver was loaded."""
    ecc_uncorrected: int | None = None
    rows_remapped_corrected: int | None = None
    """Number of memory rows that were replaced after correctable errors, in the lifetime of the GPU."""
    rows_remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    """True if a row will be replaced at the next reset."""
    remap_failed: bool | None = None
    recovery: str | None = None
    """The action that the driver requests, one of `RECOVERY`. None: the driver is too old to report one."""
    throttling: Mapping[str, bool] = field(default_factory=dict)
    """True for each reason that reduces the clocks now, by reason."""
    xids: Mapping[int, int] = field(default_factory=dict)
    """Number of reports of each Xid by the driver since this daemon started to listen."""
    lost: bool = False
    """True if the driver cannot reach the GPU any more."""

    def throttled(self, reason: str) -> bool:
        """Returns True if this reason reduces the clocks now."""
        return self.throttling.get(reason, False)


THROTTLING = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
"""Bits of nvmlClocksEventReasons*. Those of an idle GPU and of clocks that were set on purpose are left out."""
RECOVERY = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
    "system_reboot",
)  # fmt: skip
"""NVML_GPU_RECOVERY_ACTION_*, by number."""
