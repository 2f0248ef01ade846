"""CpuServer: the ComputeServer for machines without a GPU. Kernels are the same source, compiled for the CPU."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Callable
from pathlib import Path

from hearth_proto.v1 import node_pb2
from hearthd.device.backend.resources import MemoryInfo
from hearthd.device.backend.server import DeviceFault
from hearthd.device.cpu import occupancy
from hearthd.device.cpu.collective.communicators import CpuCommunicators
from hearthd.device.cpu.compiler import CpuCompiler
from hearthd.device.cpu.copies import CpuCopyOperations
from hearthd.device.cpu.graphs import CpuGraphOperations
from hearthd.device.cpu.launch import CpuLaunchOperations
from hearthd.device.cpu.libraries import LibraryMaker
from hearthd.device.cpu.memory import CpuHostPool, CpuMemory, Heap
from hearthd.device.cpu.module import MAX_BLOCK, MAX_GRID
from hearthd.device.cpu.shared_memory import CpuSharedMemoryOperations
from hearthd.device.cpu.streams import CpuEvent, CpuStream
from hearthd.device.resources.budget import GRANULARITY
from hearthd.shared.device_spec import DeviceSpec

ALIGNMENT = 256
MAX_THREADS = occupancy.MAX_BLOCK
SHARED_MEM = 48 << 10
SHARED_MEM_OPTIN = 227 << 10
"""Static and opt-in shared memory of a block: an H100's, so that a kernel that fits here fits there."""

COMPUTE_CAPABILITY = (7, 0)
"""That of `__CUDA_ARCH__` in kernels compiled here: programs then take their paths without inline PTX."""


class CpuServer(CpuCopyOperations, CpuSharedMemoryOperations, CpuLaunchOperations, CpuGraphOperations):
    """One virtual device. Streams are threads; events wake the device-handle thread."""

    def __init__(self, spec: DeviceSpec, libraries: LibraryMaker | None = None) -> None:
        """`libraries` makes the backend's own; None: this process's toolchain."""
        self._spec = spec
        self._wake: Callable[[], None] = lambda: None
        self._streams: list[CpuStream] = []
        self._host = CpuHostPool(spec.staging_bytes)
        self._heap = Heap(spec.memory_limit or _host_memory() // 4)
        self._properties = _properties(spec, self._heap.limit)
        self._compiler = CpuCompiler(spec.cache_dir)
        maker: Callable[[], LibraryMaker] = self._compiler.toolchain if libraries is None else lambda: libraries
        self._communicators = CpuCommunicators(maker)
        CpuLaunchOperations.__init__(self, maker, self._properties.multiprocessor_count)

    @property
    def properties(self) -> node_pb2.DeviceProperties:
        return self._properties

    @property
    def compiler(self) -> CpuCompiler:
        return self._compiler

    @property
    def communicators(self) -> CpuCommunicators:
        return self._communicators

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def on_progress(self, wake: Callable[[], None] | None) -> bool:
        self._wake = wake if wake is not None else lambda: None
        return True

    def _progress(self) -> None:
        self._wake()  # looked up each time: streams may be older than whoever asks to be woken

    # ---- memory ----

    def allocate(self, size: int, stream: CpuStream) -> CpuMemory:
        return self._heap.allocate(size)

    def free(self, memory: CpuMemory, stream: CpuStream) -> None:
        stream.submit(lambda: self._heap.free(memory))
        self._heap.promise(memory)

    def memory_info(self) -> MemoryInfo:
        return self._heap.info()

    def memory_held(self) -> tuple[int, int]:
        return self._heap.in_use, self._heap.in_use

    @property
    def memory_grain(self) -> int:
        return GRANULARITY

    def trim(self) -> None:
        self._heap.trim()

    # ---- streams and events ----

    def create_stream(self, priority: int = 0) -> CpuStream:
        stream = CpuStream(f"stream-{len(self._streams)}", self._progress)
        self._streams.append(stream)
        return stream

    def destroy_stream(self, stream: CpuStream) -> None:
        stream.close()

    def record(self, stream: CpuStream, *, timing: bool = False) -> CpuEvent:
        event = CpuEvent()
        stream.record(event)
        return event

    def wait(self, stream: CpuStream, event: CpuEvent) -> None:
        if not event.done:
            stream.submit(event.wait)

    def done(self, event: CpuEvent) -> bool:
        for stream in self._streams:
            if stream.failure is not None:
                failure, stream.failure = stream.failure, None
                raise DeviceFault(f"{type(failure).__name__}: {failure}")
        return event.done

    def elapsed_ns(self, start: CpuEvent, end: CpuEvent) -> int:
        return end.at_ns - start.at_ns

    def release_event(self, event: CpuEvent) -> None:
        pass  # the last reference is enough


def _host_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _properties(spec: DeviceSpec, memory: int) -> node_pb2.DeviceProperties:
    cores = spec.cpu_threads or len(os.sched_getaffinity(0))
    return node_pb2.DeviceProperties(
        name=f"{_cpu_name()} (virtual device {spec.index})",
        backend="cpu",
        uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{platform.node()}/cpu/{spec.index}")),
        compute_capability_major=COMPUTE_CAPABILITY[0],
        compute_capability_minor=COMPUTE_CAPABILITY[1],
        total_memory=memory,
        multiprocessor_count=cores,
        warp_size=occupancy.WARP_SIZE,
        max_threads_per_block=MAX_THREADS,
        max_block_dim=MAX_BLOCK,
        max_grid_dim=MAX_GRID,
        shared_mem_per_block=SHARED_MEM,
        shared_mem_per_block_optin=SHARED_MEM_OPTIN,
        max_threads_per_multiprocessor=occupancy.THREADS,
        max_blocks_per_multiprocessor=occupancy.BLOCKS,
        registers_per_block=0,
        driver_version=platform.release(),
        runtime_version=platform.python_version(),
        features=["cooperative_launch"],
        memory_alignment=ALIGNMENT,
    )
