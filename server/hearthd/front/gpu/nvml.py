"""NVML: the GPUs of the node and their readings. This is the only NVIDIA interface that the front uses."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import threading
from collections.abc import Callable, Mapping
from typing import Any

from hearthd.front.gpu.reading import RECOVERY, THROTTLING, GpuReading

__all__ = ["GpuReading", "Nvml", "cuda_count", "cupy_installed", "gpu_count"]


RECOVERY_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, a constant that older libraries do not define."""
_MAX_XIDS = 64
"""Maximum number of different Xids that are counted for each GPU. About two hundred exist, and a GPU that reports this
many is broken anyway."""


def gpu_count() -> tuple[int, str]:
    """Returns the number of GPUs of the driver; if it is 0, also the reason."""
    try:
        import pynvml
    except ImportError:
        return 0, "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return 0, f"NVML reports: {error}"
    return count, "" if count else "the driver has no GPU"


def cuda_count(gpus: int, environ: Mapping[str, str]) -> int:
    """Returns the number of devices that CUDA shows.

    `CUDA_VISIBLE_DEVICES` hides some, and is read up to its first invalid entry.
    """
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
    """Returns True if CuPy can be imported. Does not import it."""
    return importlib.util.find_spec("cupy") is not None


TIME_LIMIT_S = 2.0
"""Maximum time, in seconds, that a reading waits for another one. A driver that hangs, which may happen with a failing
GPU, thus blocks only one thread."""


class Nvml:
    """Reads GPUs by UUID; returns None if NVML is not available. `library` replaces pynvml in tests.

    Thread-safe. Values that a GPU, its driver or its mode (MIG) does not support are left out, and not requested again.
    """

    def __init__(self, library: Any = None, *, time_limit: float = TIME_LIMIT_S) -> None:
        """`time_limit`: seconds that a reading waits for another one."""
        self._time_limit = time_limit
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._unsupported: dict[str, set[str]] = {}
        self._events: Any = None
        self._xids: dict[str, dict[int, int]] = {}
        self._lock = threading.Lock()
        with contextlib.suppress(Exception):
            nvml = library or importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml

    def read(self, uuid: str) -> GpuReading | None:
        """Returns the reading of a GPU; None if NVML does not know the GPU.

        Takes some milliseconds, so it must not be called from the event loop.
        """
        if not uuid or not self._lock.acquire(timeout=self._time_limit):
            return None
        try:
            return self._read(uuid) if self._nvml is not None else None
        finally:
            self._lock.release()

    def _read(self, uuid: str) -> GpuReading | None:
        nvml = self._nvml
        try:
            handle = self._handles.get(uuid) or self._find(uuid)
        except nvml.NVMLError as error:
            return GpuReading(lost=True) if _is_lost(nvml, error) else None
        lost = False
        unsupported = self._unsupported.setdefault(uuid, set())

        def query(name: str, *arguments: Any) -> Any:
            nonlocal lost
            call = repr((name, arguments))
            function = getattr(nvml, name, None)
            if function is None or call in unsupported:
                return None
            try:
                return function(handle, *arguments)
            except nvml.NVMLError as error:
                lost = lost or _is_lost(nvml, error)
                if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                    unsupported.add(call)
                return None

        memory = query("nvmlDeviceGetMemoryInfo")
        usage = query("nvmlDeviceGetUtilizationRates")
        throttling = query("nvmlDeviceGetCurrentClocksEventReasons")
        if throttling is None:
            # The name of the function before driver 535.
            throttling = query("nvmlDeviceGetCurrentClocksThrottleReasons")
        remapped = query("nvmlDeviceGetRemappedRows") or (None, None, None, None)
        volatile = nvml.NVML_VOLATILE_ECC
        fields = self._fields(query)
        return GpuReading(
            memory_used=memory and int(memory.used),
            memory_total=memory and int(memory.total),
            utilization=usage and usage.gpu / 100,
            memory_utilization=usage and usage.memory / 100,
            encoder_utilization=_percent(query("nvmlDeviceGetEncoderUtilization")),
            decoder_utilization=_percent(query("nvmlDeviceGetDecoderUtilization")),
            temperature=_scaled(query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU), 1),
            memory_temperature=fields.get(nvml.NVML_FI_DEV_MEMORY_TEMP),
            power=_scaled(query("nvmlDeviceGetPowerUsage"), 1e-3),
            power_limit=_scaled(query("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            energy=_scaled(query("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
            sm_clock=_scaled(query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM), 1e6),
            memory_clock=_scaled(query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM), 1e6),
            pcie_replays=query("nvmlDeviceGetPcieReplayCounter"),
            nvlink_received=_kibibytes(fields.get(nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)),
            nvlink_sent=_kibibytes(fields.get(nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)),
            ecc_corrected=query("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile),
            ecc_uncorrected=query("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile),
            rows_remapped_corrected=remapped[0],
            rows_remapped_uncorrected=remapped[1],
            remap_pending=None if remapped[2] is None else bool(remapped[2]),
            remap_failed=None if remapped[3] is None else bool(remapped[3]),
            recovery=_recovery(fields.get(RECOVERY_FIELD)),
            throttling={} if throttling is None else {name: bool(throttling & bit) for name, bit in THROTTLING.items()},
            xids=self._xids_of(uuid),
            lost=lost,
        )

    def close(self) -> None:
        """Shuts NVML down; later readings are None. Gives up after `time_limit` seconds if a reading is under way."""
        if not self._lock.acquire(timeout=self._time_limit):
            return  # another thread waits for the driver; it ends with the process
        nvml, self._nvml = self._nvml, None
        self._lock.release()
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                if self._events is not None:
                    nvml.nvmlEventSetFree(self._events)
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _find(self, uuid: str) -> Any:
        """Returns the handle of a GPU, and registers for its Xids."""
        nvml = self._nvml
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        handle = nvml.nvmlDeviceGetHandleByUUID(name)
        self._handles[uuid] = handle
        with contextlib.suppress(nvml.NVMLError):
            self._events = self._events or nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
            self._xids[uuid] = {}
        return handle

    def _fields(self, query: Callable[..., Any]) -> dict[int, Any]:
        """Returns the values of the fields that are read together, as far as NVML has them."""
        nvml = self._nvml
        fields = (
            nvml.NVML_FI_DEV_MEMORY_TEMP,
            RECOVERY_FIELD,
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
        )
        values = query("nvmlDeviceGetFieldValues", fields) or ()
        return {value.fieldId: _value(nvml, value) for value in values if value.nvmlReturn == nvml.NVML_SUCCESS}

    def _xids_of(self, uuid: str) -> Mapping[int, int]:
        """Reads the Xids that the driver has reported for any GPU.

        Returns the number of reports of each Xid for this GPU.
        """
        nvml = self._nvml
        for _ in range(1000 if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:  # a timeout: there are no more events
                break
            self._count_xid(event)
        return dict(self._xids.get(uuid, {}))

    def _count_xid(self, event: Any) -> None:
        nvml = self._nvml
        try:
            uuid = str(nvml.nvmlDeviceGetUUID(event.device)).removeprefix("GPU-")
        except nvml.NVMLError:
            return
        for name, counts in self._xids.items():
            xid = int(event.eventData)
            if name.removeprefix("GPU-") == uuid and (xid in counts or len(counts) < _MAX_XIDS):
                counts[xid] = counts.get(xid, 0) + 1


ALL_LINKS = 0xFFFFFFFF
"""The scope of a field that sums all NVLinks of a GPU."""


def _is_lost(nvml: Any, error: Any) -> bool:
    return bool(getattr(error, "value", None) == nvml.NVML_ERROR_GPU_IS_LOST)


def _value(nvml: Any, entry: Any) -> Any:
    members = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    member = members.get(entry.valueType)
    return None if member is None else getattr(entry.value, member)


def _recovery(number: Any) -> str | None:
    return RECOVERY[number] if isinstance(number, int) and 0 <= number < len(RECOVERY) else None


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value * factor)


def _percent(value: Any) -> float | None:
    """Returns the utilization from a pair of utilization and sample period."""
    return None if value is None else value[0] / 100


def _kibibytes(value: Any) -> int | None:
    return None if value is None else int(value) << 10
