"""CpuServer: the ComputeServer for machines without a GPU. It compiles kernels from the same source for the CPU."""

from __future__ import annotations

import ctypes
import os
import platform
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hearth_proto.reasons import Refusal
from hearth_proto.v1 import node_pb2
from hearthd.device.backend import launch_attributes, tensor_map
from hearthd.device.backend.compiler import Image
from hearthd.device.backend.graph_nodes import (
    BRANCHES,
    ConditionalNode,
    Dim,
    GraphNode,
    KernelNode,
    LaunchAttributes,
    NodeOrder,
)
from hearthd.device.backend.resources import Function, HostInfo, MemoryInfo, Module
from hearthd.device.backend.server import DeviceFault
from hearthd.device.cpu import occupancy, racecheck
from hearthd.device.cpu.collective.communicators import CpuCommunicators
from hearthd.device.cpu.compiler import CpuCompiler
from hearthd.device.cpu.copies import fill_with, move_rows, rows_at
from hearthd.device.cpu.graphs import CpuGraph, node_work
from hearthd.device.cpu.guards import CpuGuard, make_guard
from hearthd.device.cpu.launch import CpuLauncher, no_clusters
from hearthd.device.cpu.libraries import LibraryMaker
from hearthd.device.cpu.memory import ALIGNMENT, CpuHostBuffer, CpuHostPool, CpuMemory, Heap
from hearthd.device.cpu.module import MAX_BLOCK, MAX_GRID, MAX_THREADS
from hearthd.device.cpu.shared_memory import CpuSharedMemory, SharedMemorySegments
from hearthd.device.cpu.streams import CpuEvent, CpuStream
from hearthd.device.resources.budget import GRANULARITY
from hearthd.shared.device_spec import DeviceSpec

SHARED_MEM = 48 << 10
SHARED_MEM_OPTIN = 227 << 10
"""Static and opt-in shared memory of a block in bytes: those of an H100, so that a kernel that fits here also fits
there."""

MAX_ACCESS_WINDOW = 128 << 20
"""Largest access-policy window, in bytes: about that of the GPUs that have them."""
COMPUTE_CAPABILITY = (7, 0)
"""Compute capability that matches `__CUDA_ARCH__` in kernels compiled here; programs then choose code paths without
inline PTX."""


class CpuServer:
    """A virtual device. Streams are threads; completed events wake the device-handle thread."""

    memory_grain = GRANULARITY
    loading_waits = False

    def __init__(self, spec: DeviceSpec, maker: LibraryMaker | None = None) -> None:
        """`maker` builds the backend's own libraries; None: this process's toolchain does."""
        self._spec = spec
        self._wake: Callable[[], None] = lambda: None
        self.streams: list[CpuStream] = []
        """All streams that were created, in the order of creation."""
        self._host = CpuHostPool(spec.staging_bytes)
        self._heap = Heap(spec.memory_limit or _host_memory() // 4)
        self.properties = _properties(spec, self._heap.limit)
        self.compiler = CpuCompiler(spec.cache_dir)
        maker = maker or self.compiler.toolchain()
        self.communicators = self.copy_communicators = CpuCommunicators(maker)
        self._segments = SharedMemorySegments(self._heap)
        self._launcher = CpuLauncher(maker, self.properties.multiprocessor_count)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        self.compiler.close()

    def on_progress(self, wake: Callable[[], None] | None) -> bool:
        self._wake = wake if wake is not None else lambda: None
        return True

    def _progress(self) -> None:
        self._wake()  # read at each call, because `on_progress` replaces it

    # ---- memory ----

    def allocate(self, size: int, stream: CpuStream) -> CpuMemory:
        return self._heap.allocate(size)

    def free(self, memory: CpuMemory, stream: CpuStream) -> None:
        """Counts the memory as free immediately; the stream's thread frees it."""
        stream.submit(lambda: self._heap.free(memory))
        self._heap.count_as_free(memory)

    def memory_info(self) -> MemoryInfo:
        return self._heap.info()

    def memory_held(self) -> tuple[int, int]:
        return self._heap.in_use, self._heap.in_use

    def trim(self) -> None:
        self._heap.trim()

    # ---- memory that other processes map ----

    def create_shared(self, size: int, *, writable: bool = False) -> CpuSharedMemory:
        return self._segments.create(size, writable=writable)

    def export_shared(self, memory: CpuSharedMemory) -> int:
        return self._segments.export(memory)

    def import_shared(self, file: int, size: int) -> CpuSharedMemory:
        return self._segments.map(file, size)

    def count_shared(self, memory: CpuSharedMemory) -> None:
        self._segments.count_in_pool(memory)

    def release_shared(self, memory: CpuSharedMemory) -> None:
        self._segments.release(memory)

    # ---- copies: host memory is ordinary memory, so it never runs out except at the staging limit ----

    def allocate_host(self, size: int) -> CpuHostBuffer | None:
        return self._host.allocate(size)

    def host_grown(self) -> bool:
        return False

    def host_refusal(self, size: int) -> Refusal | None:
        return None

    def host_info(self) -> HostInfo:
        return HostInfo(self._host.reserved, self._host.in_use)

    def free_host(self, buffer: CpuHostBuffer) -> None:
        self._host.free(buffer)

    def register_host(self, address: int, size: int) -> None:
        pass  # a stream's thread can copy from and to any memory

    def unregister_host(self, address: int, size: int) -> None:
        pass

    def signal_address(self, address: int) -> int:
        return address

    def signal(self, address: int, value: int, stream: CpuStream) -> None:
        def write() -> None:
            if stream.failure is None:
                ctypes.c_uint64.from_address(address).value = value

        stream.submit(write)

    def upload(self, destination: int, source: CpuHostBuffer, offset: int, size: int, stream: CpuStream) -> None:
        stream.submit(lambda: ctypes.memmove(destination, source.address + offset, size))

    def download(self, destination: CpuHostBuffer, offset: int, source: int, size: int, stream: CpuStream) -> None:
        stream.submit(lambda: ctypes.memmove(destination.address + offset, source, size))

    def copy(self, destination: int, source: int, size: int, stream: CpuStream) -> None:
        stream.submit(lambda: ctypes.memmove(destination, source, size))

    def upload_rows(
        self, destination: int, pitch: int, source: CpuHostBuffer, offset: int, width: int, rows: int, stream: CpuStream
    ) -> None:
        stream.submit(lambda: move_rows(destination, pitch, source.address + offset, width, width, rows))

    def download_rows(
        self, destination: CpuHostBuffer, offset: int, source: int, pitch: int, width: int, rows: int, stream: CpuStream
    ) -> None:
        stream.submit(lambda: move_rows(destination.address + offset, width, source, pitch, width, rows))

    def copy_rows(
        self,
        destination: int,
        destination_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: CpuStream,
    ) -> None:
        stream.submit(lambda: move_rows(destination, destination_pitch, source, source_pitch, width, rows))

    def write_now(self, destination: int, pitch: int, data: memoryview, width: int, rows: int) -> None:
        import numpy as np

        rows_at(destination, pitch, width, rows)[...] = np.frombuffer(data, np.uint8).reshape(rows, width)

    def read_now(self, into: memoryview, source: int, pitch: int, width: int, rows: int) -> None:
        import numpy as np

        np.frombuffer(into, np.uint8).reshape(rows, width)[...] = rows_at(source, pitch, width, rows)

    def fill(self, address: int, pattern: bytes, size: int, stream: CpuStream) -> None:
        stream.submit(lambda: fill_with(address, pattern, size))

    # ---- streams and events ----

    def create_stream(self, priority: int = 0) -> CpuStream:
        stream = CpuStream(f"stream-{len(self.streams)}", self._progress)
        self.streams.append(stream)
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
        """True if the event has completed. Raises DeviceFault for a failure on any stream, not only on the event's."""
        for stream in self.streams:
            if stream.failure is not None:
                failure, stream.failure = stream.failure, None
                raise DeviceFault(f"{type(failure).__name__}: {failure}")
        return event.done

    def elapsed_ns(self, start: CpuEvent, end: CpuEvent) -> int:
        return end.at_ns - start.at_ns

    def release_event(self, event: CpuEvent) -> None:
        pass  # freed with the last reference

    # ---- crash records (`hearthd.device.backend.server.KeepsCrashRecord`) ----

    def keep_crash_record(self, file: int) -> None:
        self._launcher.crashes.start(file)

    def output_pipes(self) -> tuple[int, int]:
        return self._launcher.crashes.output_pipes()

    def note_launches(self, stream: CpuStream, launched: Sequence[tuple[int, str, str]]) -> None:
        stream.launched = launched

    def race_refusal(self, stream: CpuStream) -> Callable[[], Refusal | None]:
        """Implements `hearthd.device.backend.server.ChecksRaces`."""
        races: list[racecheck.Race] = []
        stream.submit(lambda: races.extend(stream.races))
        return lambda: racecheck.refusal(races) if races else None

    def guard(self, size: int, offset: int, array_bytes: int) -> CpuGuard | None:
        """Implements `hearthd.device.backend.server.GuardsMemory`."""
        runtime = self._launcher.runtime
        return None if runtime is None else make_guard(runtime, size, offset, array_bytes)

    # ---- code ----

    def has_launch_memory(self, _function: Function, _prints: bool) -> bool:
        return True

    def provide_launch_memory(self, _function: Function, _prints: bool) -> None:
        pass

    def load(self, image: Image) -> Module:
        return self._launcher.load(image)

    def unload(self, module: Module) -> None:
        pass  # its code may still be on the stacks of other streams; it is unmapped with the last reference

    def flush_output(self) -> None:
        pass  # each launch flushes at its end

    def bind_launch(
        self, function: Function, grid: Dim, block: Dim, shared_mem: int, stream: CpuStream, params: bytearray
    ) -> Callable[[], object]:
        return partial(self.launch, function, grid, block, shared_mem, stream, params)

    def launch(
        self,
        function: Function,
        grid: Dim,
        block: Dim,
        shared_mem: int,
        stream: CpuStream,
        params: bytes | bytearray,
        attributes: LaunchAttributes | None = None,
    ) -> None:
        self._launcher.launch(function, grid, block, shared_mem, stream, params, attributes)

    def blocks_per_multiprocessor(self, function: Function, threads: int, shared_mem: int) -> int:
        return self._launcher.blocks_per_multiprocessor(function, threads, shared_mem)

    def max_clusters(self, function: Function, cluster: Dim, block: Dim, shared_mem: int) -> int:
        raise no_clusters(function.name)

    def suggested_block(self, function: Function, shared_mem: int) -> int:
        return self._launcher.suggested_block(function, shared_mem)

    def encode_tensor_map(self, spec: tensor_map.TensorMapSpec, address: int) -> bytes:
        raise tensor_map.missing_feature("the CPU backend")

    # ---- graphs ----

    def create_graph(self, nodes: Sequence[GraphNode], orders: Sequence[NodeOrder] | None = None) -> CpuGraph:
        # Nodes run one after the other in the order of their indices, which every order of the nodes allows.
        return CpuGraph(nodes, [[] if isinstance(node, ConditionalNode) else node_work(self, node) for node in nodes])

    def load_conditionals(self) -> None:
        pass  # the thread of a stream evaluates the conditions

    def launch_graph(self, graph: CpuGraph, stream: CpuStream, times: int = 1) -> None:
        work = graph.work()
        self._launcher.note_session(stream)

        def run() -> None:
            for action in work:
                action()

        for _ in range(times):
            stream.submit(run)

    def update_graph(self, graph: CpuGraph, index: int, node: KernelNode) -> None:
        graph.replace(index, node_work(self, node))

    def destroy_graph(self, graph: CpuGraph) -> None:
        pass  # freed with the last reference


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
        features=["cooperative_launch", BRANCHES, *launch_attributes.features(9)],  # attributes that change no result
        access_policy_max_window_size=MAX_ACCESS_WINDOW,
        memory_alignment=ALIGNMENT,
    )
