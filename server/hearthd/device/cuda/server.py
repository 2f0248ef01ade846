"""CudaServer: one NVIDIA GPU, through CuPy's low-level bindings and cuda-bindings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import cupy
from cuda.bindings import driver
from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.device.backend import launch_attributes
from hearthd.device.cuda import occupancy
from hearthd.device.cuda.compiler import CudaCompiler
from hearthd.device.cuda.conditional_nodes import ConditionalNodes, branch_features
from hearthd.device.cuda.copies import CudaCopies
from hearthd.device.cuda.errors import INVALID_DEVICE, NO_DEVICE, CudaError, checked, status_of, translate
from hearthd.device.cuda.graphs import CudaGraphs
from hearthd.device.cuda.kernel_output import KernelOutput
from hearthd.device.cuda.launch import CudaLauncher
from hearthd.device.cuda.memory import GRAIN, ArenaPool, Pool, StreamOrderedPool
from hearthd.device.cuda.nccl import NcclCommunicators
from hearthd.device.cuda.page_locks import PageLocks
from hearthd.device.cuda.sharing.copy_communicators import CopyCommunicators
from hearthd.device.cuda.sharing.shared_memory import SharedAllocations
from hearthd.device.cuda.streams import CudaStreams, HostSignals
from hearthd.device.cuda.tensor_maps import encode_tensor_map, tensor_map_features
from hearthd.device.resources.host_pool import HostPool
from hearthd.shared.device_spec import DeviceSpec

_OLDEST_DRIVER = 12040
"""Oldest supported CUDA version of the driver, 12.4 (driver 550): it has cuFuncGetParamInfo and
cuModuleEnumerateFunctions, which launch checks need."""

MEMORY_ALIGNMENT = 256
"""Alignment in bytes of every address that the driver allocates (CUDA C++ Programming Guide, "Device Memory
Accesses")."""

_PERSISTING_L2_LIMIT = 6  # cudaLimitPersistingL2CacheSize
_MAX_PERSISTING_L2 = 108  # cudaDevAttrMaxPersistingL2CacheSize
_MAX_ACCESS_POLICY_WINDOW = 109  # cudaDevAttrMaxAccessPolicyWindowSize


class CudaServer:
    """An NVIDIA GPU.

    Implements `ComputeServer`: each operation is bound to the method of the part that implements it, so that a launch
    or a copy is a single call.

    The device's primary context becomes current on the calling thread. Only that thread may call the server, except for
    `compiler`, `register_host`, `unregister_host` and the blocking methods of `communicators`.
    """

    loading_waits = True
    memory_grain = GRAIN

    def __init__(self, spec: DeviceSpec) -> None:
        """Opens device `spec.index`.

        Raises Refusal(DEVICE_NOT_FOUND), Refusal(DEVICE_UNAVAILABLE), DeviceFault.
        """
        index = spec.index
        self._wake: Callable[[], None] = lambda: None
        try:
            count = runtime.getDeviceCount()
            if not 0 <= index < count:
                raise _not_found(index, f"CUDA sees {count}")
            version = runtime.driverGetVersion()
            if version < _OLDEST_DRIVER:
                raise Refusal(
                    Reason.DEVICE_UNAVAILABLE,
                    f"The NVIDIA driver supports CUDA {_version(version)}; {_version(_OLDEST_DRIVER)} is the "
                    f"oldest supported version.",
                    fix="install driver 550 or newer",
                    details={"requested": _version(_OLDEST_DRIVER), "driver_version": _version(version)},
                )
            cupy.cuda.Device(index).use()
            runtime.free(0)  # creates the context now rather than at the first command
            self.properties = properties = _properties(index)
            properties.persisting_l2_cache_size = _set_aside_l2(
                min(spec.persisting_l2, properties.persisting_l2_cache_max_size)
            )
            has_pools = "memory_pools" in properties.features
            pool: Pool = StreamOrderedPool(index, spec.memory_limit) if has_pools else ArenaPool(spec.memory_limit)
        except CudaError as error:
            if status_of(error) in (NO_DEVICE, INVALID_DEVICE):
                raise _not_found(index, str(error)) from error
            raise translate(error, f"opening CUDA device {index}", Reason.DEVICE_UNAVAILABLE) from error
        self._pool = pool
        page_locks = PageLocks(index)
        self._host = HostPool(spec.staging_bytes, lock=page_locks.allocate, on_grown=self._progress)
        capability = (properties.compute_capability_major, properties.compute_capability_minor)
        self.compiler = CudaCompiler(capability, (version // 1000, version % 1000 // 10))
        self.communicators = NcclCommunicators(index, capability)
        if self.communicators.available:
            properties.features.append("nccl")
        self.copy_communicators = CopyCommunicators(index)
        self._streams = CudaStreams()
        self._bind_memory(SharedAllocations(index, pool), page_locks)
        self._bind_streams(CudaCopies(index), HostSignals())
        launcher = CudaLauncher(capability)
        self._bind_code(launcher)
        conditionals = ConditionalNodes(launcher, self._streams)
        self.load_conditionals = conditionals.load
        self._bind_graphs(CudaGraphs(self, self._streams, conditionals))

    def _bind_memory(self, shared: SharedAllocations, page_locks: PageLocks) -> None:
        pool, host = self._pool, self._host
        self.allocate = pool.allocate
        self.free = pool.free
        self.memory_info = pool.info
        self.memory_held = pool.usage
        self.trim = pool.trim

        self.create_shared = shared.create
        self.export_shared = shared.export
        self.import_shared = shared.map
        self.count_shared = shared.count_in_pool
        self.release_shared = shared.release

        self.allocate_host = host.allocate
        self.host_grown = host.grown
        self.host_refusal = host.refusal
        self.host_info = host.info
        self.free_host = host.free
        self.register_host = page_locks.register
        self.unregister_host = page_locks.unregister

    def _bind_streams(self, copies: CudaCopies, signals: HostSignals) -> None:
        streams = self._streams
        self.create_stream = streams.create
        self.destroy_stream = streams.destroy
        self.record = streams.record
        self.wait = streams.wait
        self.done = streams.done
        self.elapsed_ns = streams.elapsed_ns
        self.release_event = streams.release_event

        self.upload = copies.upload
        self.download = copies.download
        self.copy = copies.copy
        self.upload_rows = copies.upload_rows
        self.download_rows = copies.download_rows
        self.copy_rows = copies.copy_rows
        self.write_now = copies.write_now
        self.read_now = copies.read_now
        self.fill = copies.fill
        self.signal_address = signals.address
        self.signal = signals.write

    def _bind_code(self, launcher: CudaLauncher) -> None:
        self.load = launcher.load
        self.unload = launcher.unload
        self.access_table = launcher.access_table
        self.launch = launcher.launch
        self.bind_launch = launcher.bind_launch
        self.has_launch_memory = launcher.has_launch_memory
        self.provide_launch_memory = launcher.provide_launch_memory
        self.flush_output = KernelOutput().flush
        self.blocks_per_multiprocessor = occupancy.blocks_per_multiprocessor
        self.max_clusters = occupancy.max_clusters
        self.suggested_block = occupancy.suggested_block
        self.encode_tensor_map = partial(encode_tensor_map, self.properties)

    def _bind_graphs(self, graphs: CudaGraphs) -> None:
        self.create_graph = graphs.create
        self.launch_graph = graphs.launch
        self.update_graph = graphs.update
        self.destroy_graph = graphs.destroy

    def on_progress(self, wake: Callable[[], None] | None) -> bool:
        """Registers `wake`, which is called when more host memory for copies is available.

        Returns False because events must be polled: CUDA reports an event only to a thread that waits, or to a host
        function, which would block the stream.
        """
        self._wake = wake if wake is not None else lambda: None
        return False

    def close(self) -> None:
        """Frees what can be freed; never raises. The context is not destroyed, because other users may hold it."""
        for part in (self.communicators, self.copy_communicators, self._streams, self._pool, self._host):
            with suppress(Exception):
                part.close()

    def _progress(self) -> None:
        """Wakes the device-handle thread. Any thread."""
        self._wake()  # read at each call, because `on_progress` replaces it


def _properties(index: int) -> node_pb2.DeviceProperties:
    props = runtime.getDeviceProperties(index)
    major, minor = props["major"], props["minor"]
    features = ["memory_pools"] if runtime.deviceGetAttribute(runtime.cudaDevAttrMemoryPoolsSupported, index) else []
    if props["cooperativeLaunch"]:
        features.append("cooperative_launch")
    if major >= 9:
        features.append("clusters")
    features += launch_attributes.features(major)
    features += tensor_map_features(major)
    features += branch_features(runtime.driverGetVersion())
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
        access_policy_max_window_size=runtime.deviceGetAttribute(_MAX_ACCESS_POLICY_WINDOW, index),
        persisting_l2_cache_max_size=runtime.deviceGetAttribute(_MAX_PERSISTING_L2, index),
    )


def _set_aside_l2(size: int) -> int:
    """Sets aside a part of the L2 cache for persisting accesses; returns its size, which the driver may round."""
    if not size:
        return 0
    runtime.deviceSetLimit(_PERSISTING_L2_LIMIT, size)
    return int(runtime.deviceGetLimit(_PERSISTING_L2_LIMIT))


def _uuid(index: int) -> str:
    """Returns the UUID in the form of nvidia-smi and NVML.

    Calls the driver, because CuPy's property ends at the first zero byte.
    """
    get_uuid = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
    (device,) = checked(driver.cuDeviceGet(index))
    (uuid,) = checked(get_uuid(device))
    digits = bytes(uuid.bytes).hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _version(number: int) -> str:
    """Returns a CUDA version as text: 13020 is "13.2"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _not_found(index: int, reason: str) -> Refusal:
    return Refusal(
        Reason.DEVICE_NOT_FOUND,
        f"CUDA device {index} was requested; {reason}.",
        fix="name a device that nvidia-smi lists, and check CUDA_VISIBLE_DEVICES",
        details={"requested": index},
    )
