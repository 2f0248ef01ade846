"""CudaServer: one NVIDIA GPU, through CuPy's low-level bindings and cuda-bindings."""

from __future__ import annotations

from contextlib import suppress

import cupy
from cuda.bindings import driver
from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.device.cuda.compiler import CudaCompiler
from hearthd.device.cuda.errors import INVALID_DEVICE, NO_DEVICE, CudaError, checked, translate
from hearthd.device.cuda.graphs import CudaGraphOperations
from hearthd.device.cuda.host import CudaHostPool
from hearthd.device.cuda.launch import CudaLaunchOperations
from hearthd.device.cuda.memory import ArenaPool, MemoryOperations, Pool, StreamOrderedPool
from hearthd.device.cuda.nccl import NcclCommunicators
from hearthd.device.cuda.occupancy import OccupancyOperations
from hearthd.device.cuda.shared_memory import CudaSharedMemoryOperations
from hearthd.device.cuda.streams import StreamOperations
from hearthd.device.cuda.tensor_maps import TensorMapOperations
from hearthd.shared.device_spec import DeviceSpec

_OLDEST_DRIVER = 12040
"""CUDA 12.4 (driver 550): cuFuncGetParamInfo and cuModuleEnumerateFunctions, on which launch checks rest."""

MEMORY_ALIGNMENT = 256
"""Bytes, of every address that the driver allocates (CUDA C++ Programming Guide, "Device Memory Accesses")."""


class CudaServer(
    MemoryOperations,
    CudaSharedMemoryOperations,
    StreamOperations,
    CudaLaunchOperations,
    OccupancyOperations,
    TensorMapOperations,
    CudaGraphOperations,
):
    """Implements `ComputeServer`. The device's primary context becomes current on the calling thread, which stays the
    only one to call anything but `compiler` and the blocking half of `communicators`."""

    def __init__(self, spec: DeviceSpec) -> None:
        """Raises Refusal(DEVICE_NOT_FOUND), Refusal(DEVICE_UNAVAILABLE), DeviceFault."""
        StreamOperations.__init__(self)
        CudaLaunchOperations.__init__(self)
        self._index = index = spec.index
        try:
            count = runtime.getDeviceCount()
            if not 0 <= index < count:
                raise _not_found(index, f"CUDA sees {count}")
            version = runtime.driverGetVersion()
            if version < _OLDEST_DRIVER:
                raise Refusal(
                    Reason.DEVICE_UNAVAILABLE,
                    f"The NVIDIA driver supports CUDA {_version(version)}; {_version(_OLDEST_DRIVER)} is the least.",
                    fix="install driver 550 or newer",
                    details={"requested": _version(_OLDEST_DRIVER), "driver_version": _version(version)},
                )
            cupy.cuda.Device(index).use()
            runtime.free(0)  # makes the context now rather than at the first command
            self._properties = _properties(index)
            pooled = runtime.deviceGetAttribute(runtime.cudaDevAttrMemoryPoolsSupported, index)
            self.pool: Pool = StreamOrderedPool(index, spec.memory_limit) if pooled else ArenaPool(spec.memory_limit)
        except CudaError as error:
            if getattr(error, "status", 0) in (NO_DEVICE, INVALID_DEVICE):
                raise _not_found(index, str(error)) from error
            raise translate(error, f"opening CUDA device {index}", Reason.DEVICE_UNAVAILABLE) from error
        self.host = CudaHostPool(spec.staging_bytes, on_grown=self.wake)
        capability = (self._properties.compute_capability_major, self._properties.compute_capability_minor)
        self.capability = capability
        self._compiler = CudaCompiler(capability, (version // 1000, version % 1000 // 10))
        self._communicators = NcclCommunicators(index, capability)
        if self._communicators.available:
            self._properties.features.append("nccl")

    @property
    def properties(self) -> node_pb2.DeviceProperties:
        return self._properties

    @property
    def compiler(self) -> CudaCompiler:
        return self._compiler

    @property
    def communicators(self) -> NcclCommunicators:
        return self._communicators

    def close(self) -> None:
        """Frees what can be freed and never raises. The context goes with the process: others may hold it."""
        for end in (self._communicators.close, self.close_streams, self.pool.close, self.host.close):
            with suppress(Exception):
                end()


def _properties(index: int) -> node_pb2.DeviceProperties:
    props = runtime.getDeviceProperties(index)
    major, minor = props["major"], props["minor"]
    features = ["memory_pools"] if runtime.deviceGetAttribute(runtime.cudaDevAttrMemoryPoolsSupported, index) else []
    if props["cooperativeLaunch"]:
        features.append("cooperative_launch")
    if major >= 9:
        features += ["clusters", "tensor_maps"]
    return node_pb2.DeviceProperties(
        name=props["name"].decode(errors="replace"),
        backend="cuda",
        uuid=_uuid(index),
        compute_capability_major=major,
        compute_capability_minor=minor,
        total_memory=props["totalGlobalMem"],
        multiprocessor_count=props["multiProcessorCount"],
        warp_size=props["warpSize"],
        max_threads_per_block=props["maxThreadsPerBlock"],
        max_block_dim=props["maxThreadsDim"],
        max_grid_dim=props["maxGridSize"],
        shared_mem_per_block=props["sharedMemPerBlock"],
        shared_mem_per_block_optin=props["sharedMemPerBlockOptin"],
        max_threads_per_multiprocessor=props["maxThreadsPerMultiProcessor"],
        max_blocks_per_multiprocessor=props["maxBlocksPerMultiProcessor"],
        registers_per_block=props["regsPerBlock"],
        l2_cache_bytes=props["l2CacheSize"],
        clock_rate_khz=props["clockRate"],
        driver_version=_version(runtime.driverGetVersion()),
        runtime_version=_version(runtime.runtimeGetVersion()),
        features=features,
        memory_alignment=MEMORY_ALIGNMENT,
    )


def _uuid(index: int) -> str:
    """As nvidia-smi and NVML write it. CuPy's property ends at the first zero byte, so the driver is asked."""
    ask = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
    (device,) = checked(driver.cuDeviceGet(index))
    (uuid,) = checked(ask(device))
    digits = bytes(uuid.bytes).hex()  # type: ignore[attr-defined]
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _version(number: int) -> str:
    """CUDA writes 13.2 as 13020."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _not_found(index: int, why: str) -> Refusal:
    return Refusal(
        Reason.DEVICE_NOT_FOUND,
        f"CUDA device {index} was asked for; {why}.",
        fix="name a device that nvidia-smi lists, and check CUDA_VISIBLE_DEVICES",
        details={"requested": index},
    )
