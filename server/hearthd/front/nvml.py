"""NVML: which GPUs there are and what they read. The only thing that the front knows of NVIDIA."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reading:
    """What NVML says of one GPU now; None where it does not say. Base units: bytes, ratio, degrees, watts, hertz."""

    memory_used: int | None = None
    memory_total: int | None = None
    utilization: float | None = None
    temperature: float | None = None
    power: float | None = None
    sm_clock: float | None = None


def gpu_count() -> tuple[int, str]:
    """How many GPUs the driver has; where none, why."""
    try:
        import pynvml
    except ImportError:
        return 0, "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return 0, f"NVML says: {error}"
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        return count, "" if count else "the driver has no GPU"
    except pynvml.NVMLError as error:
        return 0, f"NVML says: {error}"
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def cuda_count(gpus: int, environ: Mapping[str, str]) -> int:
    """How many devices CUDA shows: `CUDA_VISIBLE_DEVICES` hides some, and ends at its first invalid entry."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    count = 0
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isascii() and entry.isdigit():
            if int(entry) >= gpus:
                break
        elif not entry.startswith(("GPU-", "MIG-")):
            break
        count += 1
    return count


def cupy_installed() -> bool:
    """Whether CuPy could be imported; it is not imported here."""
    return importlib.util.find_spec("cupy") is not None


class Nvml:
    """Readings by UUID; answers nothing where there is no NVML."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml

    def read(self, uuid: str) -> Reading | None:
        """One GPU's reading; None where NVML does not know it. Takes about a millisecond: not for the event loop."""
        if self._nvml is None or not uuid:
            return None
        nvml = self._nvml
        handle = self._handles.get(uuid)
        if handle is None:
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            try:
                handle = self._handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(name)
            except nvml.NVMLError:
                return None

        def ask(question: Callable[[], Any]) -> Any:
            try:
                return question()
            except nvml.NVMLError:
                return None

        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        usage = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        clock = ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        return Reading(
            memory_used=memory and int(memory.used),
            memory_total=memory and int(memory.total),
            utilization=None if usage is None else usage.gpu / 100,
            temperature=ask(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            power=None if power is None else power / 1000,
            sm_clock=None if clock is None else clock * 1e6,
        )

    def close(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml = None
