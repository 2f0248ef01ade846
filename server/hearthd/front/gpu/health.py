"""The health of a GPU, from NVML's readings. Pure.

A GPU with a fault is fenced; the other GPUs of its node continue to serve.

A fault is a condition for which NVIDIA's documents require a reset of the GPU, a restart of the machine or a
replacement; work on such a GPU hangs, fails or computes wrong results. Xids caused by programs (13, 31, 43, 45, ...:
for example an invalid pointer in a kernel) are not faults of the GPU: they end a device process, which is replaced.
Newer drivers report the action that a GPU needs; for older ones Xids are used. Sources: "GPU memory error management"
(https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/, "Error recovery and response flags": a pending remapping does
not preclude new work) and the Xid catalog (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hearthd.front.gpu.reading import GpuReading

FATAL_XIDS: Mapping[int, str] = MappingProxyType({
    46: "the GPU stopped processing",
    62: "its internal microcontroller halted",
    64: "a row of its memory could not be remapped",
    79: "it has fallen off the bus",
    95: "an uncontained ECC error: what it computes may be wrong",
    119: "its system processor (GSP) does not answer",
    120: "its system processor (GSP) failed",
    140: "an ECC error that it did not recover from",
})  # fmt: skip
"""Xids after which at least a reset is necessary. 48 (a double-bit error) is not among them, because 64, 94 or 95
follows it, and 94 means that the error was contained."""
RECOVERIES: Mapping[str, str] = MappingProxyType({
    "gpu_reset": "nvidia-smi --gpu-reset",
    "bus_reset": "a reset of its bus",
    "node_reboot": "restart the machine",
    "system_reboot": "restart the machine",
})  # fmt: skip
"""Actions that are necessary before the GPU can be used again. Other actions that a driver requests can wait until work
has ended."""


def hardware_fault(reading: GpuReading, ignored: Mapping[int, int] = MappingProxyType({})) -> str:
    """Returns the reason why the GPU must not be given work; empty if it is healthy.

    `ignored`: how often each Xid had been reported when an operator last restarted the device.
    """
    if reading.lost:
        return "the driver has lost the GPU; restart the machine"
    action = reading.recovery or ""
    if action in RECOVERIES:
        return f"the driver requests {action}: {RECOVERIES[action]}, then restart the device"
    for xid, text in FATAL_XIDS.items() if reading.recovery is None else ():
        if reading.xids.get(xid, 0) > ignored.get(xid, 0):
            return f"Xid {xid}: {text}; reset the GPU (nvidia-smi --gpu-reset) and restart the device"
    if reading.remap_failed:
        return "rows of its memory could not be remapped; the GPU must be replaced"
    return ""


def problems(reading: GpuReading) -> list[str]:
    """Returns the problems of a working GPU that an operator should know."""
    texts = []
    if reading.recovery not in (None, "none"):
        texts.append(f"the driver requests {reading.recovery}")
    if reading.remap_pending:
        texts.append("rows of its memory wait to be remapped, which a reset does")
    if reading.ecc_uncorrected:
        texts.append(f"{reading.ecc_uncorrected} uncorrectable ECC errors since the driver was loaded")
    if reading.throttled("hw_thermal_slowdown"):
        texts.append("it is too hot and has slowed down")
    if reading.throttled("hw_power_brake_slowdown"):
        texts.append("its power supply makes it slow down")
    return texts
