"""ComputeServer: the interface of a device. CUDA and CPU implement it; all layers above the interface are shared.

All methods are called on the device-handle thread only, return without waiting for the device, and raise

- `hearth_proto.reasons.Refusal` for a failure that does not harm the device (out of memory, a bad image, ...),
- `DeviceFault` for a failure that the device process cannot survive (a sticky CUDA error).

`Compiler.compile`, `CommunicatorFactory.unique_id`, `CommunicatorFactory.join`, `RankCommunicator.abort`,
`register_host` and `unregister_host` are the exceptions: they may block and are called on helper threads.

Addresses are device addresses as integers, sizes are in bytes, times in nanoseconds. Work on one stream runs in the
order of submission; between streams, only `wait` establishes an order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from hearth_proto.reasons import Refusal
from hearth_proto.v1 import node_pb2
from hearthd.device.backend.communicator import CommunicatorFactory
from hearthd.device.backend.compiler import Compiler, Image
from hearthd.device.backend.graph_nodes import Dim, GraphNode, KernelNode, LaunchAttributes, NodeOrder
from hearthd.device.backend.resources import (
    Event,
    Graph,
    GuardedMemory,
    HostBuffer,
    HostInfo,
    Memory,
    MemoryInfo,
    Module,
    SharedMemory,
    Stream,
)
from hearthd.device.backend.tensor_map import TensorMapSpec


class DeviceFault(Exception):
    """The device context is lost: every further call would fail, so the process must end."""


@runtime_checkable
class KeepsCrashRecord(Protocol):
    """A backend whose kernels can crash the process, and that keeps a record of their launches."""

    def keep_crash_record(self, file: int) -> None:
        """Keeps the record in this file (`hearthd.shared.crash_record`), which the backend owns from now on.

        Raises OSError, ValueError.
        """
        ...

    def output_pipes(self) -> tuple[int, int]:
        """Returns the ends of two pipes. To be called once.

        A byte arrives on the first before a kernel's fault ends the process; by then, the output of kernels has reached
        standard output. The process ends when a byte is written to the second, or shortly afterwards.
        """
        ...

    def note_launches(self, stream: Stream, launched: Sequence[tuple[int, str, str]]) -> None:
        """Sets the sequence of the stream's launches, each (position, kernel, session).

        A launch is added to the end of `launched` before it is submitted.
        """
        ...


@runtime_checkable
class ChecksRaces(Protocol):
    """A backend that can find races in a kernel's shared memory (the CPU's, with HEARTH_CPU_RACECHECK)."""

    def race_refusal(self, stream: Stream) -> Callable[[], Refusal | None]:
        """Returns a function that returns the error of the last launch on `stream`.

        The error is DATA_RACE, or None if no race was found or the kernel is not checked. To be called after the stream
        has completed the launch.
        """
        ...


@runtime_checkable
class GuardsMemory(Protocol):
    """A backend that can record kernels' accesses outside of their arrays (the CPU's)."""

    def guard(self, size: int, offset: int, array_bytes: int) -> GuardedMemory | None:
        """Returns `size` bytes for an array of `array_bytes` bytes, which begins at byte `offset` of them.

        None: the backend cannot guard the array, and ordinary memory must be used.
        """
        ...


@runtime_checkable
class InstrumentsModules(Protocol):
    """A backend that can compile kernels so that they check their accesses to memory (CUDA's)."""

    def access_table(self, module: Any) -> int:
        """Returns the device address of the module's table; see `hearthd.device.backend.access_table`.

        0: the module is not instrumented.
        """
        ...


@runtime_checkable
class ComputeServer(Protocol):
    """A device. Created, used and closed on the device-handle thread."""

    @property
    def properties(self) -> node_pb2.DeviceProperties:
        """Properties and limits of the device, which do not change."""
        ...

    @property
    def compiler(self) -> Compiler:
        """Compiler for this device. Most of its methods may block and run on other threads; see `Compiler`."""
        ...

    @property
    def communicators(self) -> CommunicatorFactory:
        """Factory of communicators for the groups that this device joins."""
        ...

    @property
    def copy_communicators(self) -> CommunicatorFactory:
        """Factory of communicators for copies between two devices, whose only operations are `send` and `recv`."""
        ...

    def close(self) -> None:
        """Frees the backend's resources at the end of the process; no other method may be called afterwards."""
        ...

    def on_progress(self, wake: Callable[[], None] | None) -> bool:
        """Registers `wake`, which is called (from any thread) when an event completes.

        Returns False if the backend cannot do so: poll `done` instead.
        """
        ...

    # memory
    def allocate(self, size: int, stream: Stream) -> Memory:
        """Allocates at least `size` bytes, which `stream` may use immediately.

        Raises Refusal(OUT_OF_MEMORY) with requested, free, reserved.
        """
        ...

    def free(self, memory: Any, stream: Stream) -> None:
        """Frees memory after the work submitted so far to `stream` (the stream that it was allocated on)."""
        ...

    def memory_info(self) -> MemoryInfo:
        """Returns the sizes of the device's memory and of this process's pool. Raises DeviceFault."""
        ...

    def memory_held(self) -> tuple[int, int]:
        """Returns the bytes of device memory held by this process's pool, and the bytes of them in use.

        Cheaper than `memory_info`.
        """
        ...

    @property
    def memory_grain(self) -> int:
        """The pool's size is always a multiple of this number of bytes."""
        ...

    def trim(self) -> None:
        """Returns the pool's unused memory to the device."""
        ...

    # memory that other processes map
    def create_shared(self, size: int, *, writable: bool = False) -> SharedMemory:
        """Allocates at least `size` bytes, not 0, that `export_shared` can export.

        Their contents are undefined. `writable`: other processes may write the memory as well; otherwise the backend
        prevents that if it can.

        Raises Refusal(OUT_OF_MEMORY), Refusal(UNSUPPORTED).
        """
        ...

    def export_shared(self, memory: Any) -> int:
        """Returns an open file, which the caller must close, with which another process can map the memory.

        The memory then outlives this process.
        """
        ...

    def import_shared(self, file: int, size: int) -> SharedMemory:
        """Maps `size` bytes that another process exported, for reading; the caller still owns the file.

        Raises the same errors as `create_shared`.
        """
        ...

    def count_shared(self, memory: Any) -> None:
        """Counts imported memory as memory of this process from now on."""
        ...

    def release_shared(self, memory: Any) -> None:
        """Unmaps the memory. The caller must have seen its last use end."""
        ...

    def allocate_host(self, size: int) -> HostBuffer | None:
        """Returns host memory for copies; None if none is free and waiting for some would block.

        Try again when `host_grown` returns True or host memory is freed.
        """
        ...

    def host_grown(self) -> bool:
        """True if, since the last call, more host memory became available or the system refused to provide more."""
        ...

    def host_refusal(self, size: int) -> Refusal | None:
        """Returns the reason why the host page-locks no more memory for now; None: wait for `host_grown`.

        If there is a reason, copies should do without page-locked memory.
        """
        ...

    def host_info(self) -> HostInfo:
        """Returns the size of the host memory for copies, and of its part in use."""
        ...

    def free_host(self, buffer: Any) -> None:
        """Frees host memory whose copies have completed."""
        ...

    def register_host(self, address: int, size: int) -> None:
        """Page-locks memory that is mapped in this process, so that it can be used for copies like a `HostBuffer`.

        Each copy must lie within the range of one call. May block; any thread. Raises if the system refuses.
        """
        ...

    def unregister_host(self, address: int, size: int) -> None:
        """Unlocks exactly the range of one `register_host`; the caller must have seen the last copy end.

        May block until no kernel runs (`loading_waits`); any thread.
        """
        ...

    def signal_address(self, address: int) -> int:
        """Returns the address of page-locked memory that `signal` takes; 0: this device writes no signals."""
        ...

    # streams and events
    def create_stream(self, priority: int = 0) -> Stream:
        """Returns a new stream. A lower `priority` is more urgent; backends may clamp or ignore it."""
        ...

    def destroy_stream(self, stream: Stream) -> None:
        """Destroys the stream. Work that was submitted to it still runs."""
        ...

    def record(self, stream: Stream, *, timing: bool = False) -> Event:
        """Returns a new event that completes when all work submitted to the stream so far has completed.

        `timing`: `elapsed_ns` will be called with the event. `release_event` gives the event back.
        """
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Makes later work on `stream` wait, on the device, for `event`."""
        ...

    def done(self, event: Event) -> bool:
        """True if the event has completed. Never waits. Raises DeviceFault if the device failed."""
        ...

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Returns the time in nanoseconds between two completed events that were recorded with timing."""
        ...

    def release_event(self, event: Event) -> None:
        """Gives the event back, completed or not; the backend may reuse it. It must not be used afterwards."""
        ...

    # copies; host memory must stay unchanged until an event recorded afterwards is done
    def upload(self, destination: int, source: Any, offset: int, size: int, stream: Stream) -> None:
        """Copies `size` bytes to the device, from byte `offset` of the host buffer `source`."""
        ...

    def download(self, destination: Any, offset: int, source: int, size: int, stream: Stream) -> None:
        """Copies `size` bytes from the device, to byte `offset` of the host buffer `destination`."""
        ...

    def copy(self, destination: int, source: int, size: int, stream: Stream) -> None:
        """Copies `size` bytes within the device."""
        ...

    def upload_rows(
        self, destination: int, pitch: int, source: Any, offset: int, width: int, rows: int, stream: Stream
    ) -> None:
        """Copies `rows` rows of `width` bytes to the device.

        The rows are contiguous in the host buffer and `pitch` bytes apart on the device; the pitch of a single row has
        no effect.
        """
        ...

    def download_rows(
        self, destination: Any, offset: int, source: int, pitch: int, width: int, rows: int, stream: Stream
    ) -> None:
        """Copies `rows` rows of `width` bytes from the device, with rows laid out as in `upload_rows`."""
        ...

    def copy_rows(
        self,
        destination: int,
        destination_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: Stream,
    ) -> None:
        """Copies `rows` rows of `width` bytes within the device. Pitches are in bytes, and as in `upload_rows`."""
        ...

    def write_now(self, destination: int, pitch: int, data: memoryview, width: int, rows: int) -> None:
        """Copies from ordinary host memory to device memory that nothing else uses, and waits for the copy.

        This takes some microseconds per 100 KiB. Used if there is no page-locked memory. Rows are laid out as in
        `upload_rows`.
        """
        ...

    def read_now(self, into: memoryview, source: int, pitch: int, width: int, rows: int) -> None:
        """Copies from the device to ordinary, writable host memory, in the same way as `write_now`."""
        ...

    def fill(self, address: int, pattern: bytes, size: int, stream: Stream) -> None:
        """Fills `size` bytes with `pattern` (1, 2, 4, 8 or 16 bytes).

        `size` and `address` must be multiples of the pattern's length.
        """
        ...

    def signal(self, address: int, value: int, stream: Stream) -> None:
        """Makes the device write 8 bytes of host memory (`signal_address`) after all earlier work of the stream.

        When `value` appears there, the earlier work is complete and visible to the host. Raises DeviceFault.
        """
        ...

    # code
    @property
    def loading_waits(self) -> bool:
        """True if `load` and `unload` wait for all running kernels to end; see `hearthd.device.resources.idle_work`."""
        ...

    def has_launch_memory(self, function: Any, prints: bool) -> bool:
        """True if the memory exists that a launch of the function needs: local memory and, if it prints, a buffer.

        Otherwise a launch of the function, or the instantiation of a graph with it, would wait for all running kernels
        to end. `prints`: the function may print.
        """
        ...

    def provide_launch_memory(self, function: Any, prints: bool) -> None:
        """Provides the memory of `has_launch_memory`. To be called while no kernel runs. Raises Refusal."""
        ...

    def load(self, image: Image) -> Module:
        """Loads a module. If `loading_waits`, to be called while no kernel runs.

        Raises Refusal(MODULE_INVALID) for code that this device cannot load, Refusal(UNSUPPORTED) for code of another
        backend.
        """
        ...

    def unload(self, module: Any) -> None:
        """Unloads a module whose last launch has ended. If `loading_waits`, to be called while no kernel runs."""
        ...

    def launch(
        self,
        function: Any,
        grid: Dim,
        block: Dim,
        shared_mem: int,
        stream: Stream,
        params: bytes | bytearray,
        attributes: LaunchAttributes | None = None,
    ) -> None:
        """Launches a kernel.

        `params` is the parameter block with addresses filled in; the caller may reuse it after the call returns.
        """
        ...

    def bind_launch(
        self, function: Any, grid: Dim, block: Dim, shared_mem: int, stream: Stream, params: bytearray
    ) -> Callable[[], object]:
        """Returns a function that repeats the launch at each call, with the least overhead.

        That function raises Refusal or RuntimeError if the launch fails; `launch` then gives the reason.
        """
        ...

    def flush_output(self) -> None:
        """Writes the output of completed kernels to the process's standard output."""
        ...

    def blocks_per_multiprocessor(self, function: Any, threads: int, shared_mem: int) -> int:
        """Returns the number of blocks of `threads` threads that fit one multiprocessor.

        This is the result of cuOccupancyMaxActiveBlocksPerMultiprocessor.
        """
        ...

    def max_clusters(self, function: Any, cluster: Dim, block: Dim, shared_mem: int) -> int:
        """Returns the number of clusters that fit the device at the same time (cuOccupancyMaxActiveClusters).

        Raises Refusal(UNSUPPORTED).
        """
        ...

    def suggested_block(self, function: Any, shared_mem: int) -> int:
        """Returns the block size of the highest occupancy (cuOccupancyMaxPotentialBlockSize)."""
        ...

    def encode_tensor_map(self, spec: TensorMapSpec, address: int) -> bytes:
        """Returns the CUtensorMap (128 bytes) of a checked `spec` at `address`.

        Raises Refusal(TENSOR_MAP_INVALID) if the driver nevertheless refuses it, and Refusal(UNSUPPORTED) if the device
        lacks a feature that the map needs (`tensor_map.check_features`).
        """
        ...

    # graphs
    def create_graph(self, nodes: Sequence[GraphNode], orders: Sequence[NodeOrder] | None = None) -> Graph:
        """Creates a graph, instantiated and uploaded. `orders` has the order of each node.

        If it is None, each node runs after the node before it.
        """
        ...

    def load_conditionals(self) -> None:
        """Loads what graphs with conditional nodes need; once, before the first of them.

        If `loading_waits`, to be called while no kernel runs.
        """
        ...

    def launch_graph(self, graph: Graph, stream: Stream, times: int = 1) -> None:
        """Enqueues `times` launches of the graph on `stream`, one after the other."""
        ...

    def update_graph(self, graph: Graph, index: int, node: KernelNode) -> None:
        """Changes the parameters of the kernel node at `index`, effective from the graph's next launch."""
        ...

    def destroy_graph(self, graph: Graph) -> None:
        """Destroys the graph. The caller must have seen its last launch end."""
        ...
