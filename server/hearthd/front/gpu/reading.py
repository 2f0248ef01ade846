"""The readings of a GPU at one time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GpuReading:
    """NVML's readings of one GPU now; None: NVML has no value. Base units: bytes, ratio, degrees, watts, hertz."""

    memory_used: int | None = None
    memory_total: int | None = None
    utilization: float | None = None
    temperature: float | None = None
    power: float | None = None
    sm_clock: float | None = None
    memory_utilization: float | None = None
    """Share of the last sample period in which its memory was read or written."""
    encoder_utilization: float | None = None
    decoder_utilization: float | None = None
    memory_clock: float | None = None
    memory_temperature: float | None = None
    power_limit: float | None = None
    energy: float | None = None
    """Joules since the driver was loaded."""
    pcie_replays: int | None = None
    nvlink_received: int | None = None
    """Bytes of payload over all its links."""
    nvlink_sent: int | None = None
    ecc_corrected: int | None = None
    """Since the driver was loaded."""
    ecc_uncorrected: int | None = None
    rows_remapped_corrected: int | None = None
    """Rows of its memory that were replaced after errors that could be corrected, in its life."""
    rows_remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    """A row is to be replaced at the next reset."""
    remap_failed: bool | None = None
    recovery: str | None = None
    """The action that the driver asks for, one of `RECOVERY`; older drivers name none."""
    throttling: Mapping[str, bool] = field(default_factory=dict)
    """Reasons that may keep the clocks down; True: it does now."""
    xids: Mapping[int, int] = field(default_factory=dict)
    """The number of reports of each Xid by the driver since this daemon has listened."""
    lost: bool = False
    """The driver cannot reach it any more."""

    def throttled(self, reason: str) -> bool:
        """Returns True if this reason keeps the clocks down now."""
        return self.throttling.get(reason, False)


THROTTLING = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
"""Bits of nvmlClocksEventReasons*; those of an idle GPU and of clocks set on purpose are no trouble."""
RECOVERY = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
    "system_reboot",
)  # fmt: skip
"""NVML_GPU_RECOVERY_ACTION_*, by number."""
