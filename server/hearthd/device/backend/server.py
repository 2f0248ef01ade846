"""ComputeServer: the interface of a device, which CUDA and CPU implement; everything above it is shared.

All methods are called on the device-handle thread only, return without waiting for the device, and raise

- `hearth_proto.reasons.Refusal` for a failure that does not harm the device (out of memory, a bad image, ...),
- `DeviceFault` for a failure that the device process cannot survive (a sticky CUDA error).

`Compiler.compile`, `CommunicatorFactory.unique_id`, `CommunicatorFactory.join`, `RankCommunicator.abort`,
`register_host` and `unregister_host` are the exceptions: they may block and are called on helper threads.

Addresses are device addresses as integers, sizes are bytes, times are nanoseconds. Work on a stream runs in the order
of submission; between streams only `wait` orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from hearth_proto.reasons import Refusal
from hearth_proto.v1 import node_pb2
from hearthd.device.backend.communicator import CommunicatorFactory
from hearthd.device.backend.compiler import Compiler, Image
from hearthd.device.backend.graph_nodes import Dim, GraphNode, KernelNode, LaunchAttributes
from hearthd.device.backend.resources import (
    Event,
    Graph,
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
    """The device context is lost: every further call would fail, so the process has to end."""


@runtime_checkable
class KeepsCrashRecord(Protocol):
    """A backend whose kernels can crash the process, and that keeps a record of their launches."""

    def keep_crash_record(self, file: int) -> None:
        """Keeps the record in this file (`hearthd.shared.crash_record`), which the backend owns from now on. Raises
        OSError, ValueError."""
        ...

    def output_pipes(self) -> tuple[int, int]:
        """Returns two pipe ends, once.

        A byte comes on the first before a kernel's fault ends the process: the output of kernels is in standard output
        by then. The process ends when a byte is written to the second, or a moment later.
        """
        ...

    def note_launches(self, stream: Stream, launched: Sequence[tuple[int, str, str]]) -> None:
        """Passes the launches of the stream, each (position, kernel, session): each launch is the last one in
        `launched` while it is handed over."""
        ...


@runtime_checkable
class ChecksRaces(Protocol):
    """A backend that can find races in a kernel's shared memory (the CPU's, with HEARTH_CPU_RACECHECK)."""

    def race_refusal(self, stream: Stream) -> Callable[[], Refusal | None]:
        """Returns a function that gives the error of the last launch on `stream`, to be called once the stream has
        completed it: DATA_RACE, or None where no race was found or the kernel is not checked."""
        ...


@runtime_checkable
class ComputeServer(Protocol):
    """A device. Created, used and closed on the device-handle thread."""

    @property
    def properties(self) -> node_pb2.DeviceProperties: ...
    @property
    def compiler(self) -> Compiler: ...
    @property
    def communicators(self) -> CommunicatorFactory: ...

    def close(self) -> None: ...

    def on_progress(self, wake: Callable[[], None] | None) -> bool:
        """Registers `wake`, which is called (from any thread) when an event completes; False: poll `done` instead."""
        ...

    # memory
    def allocate(self, size: int, stream: Stream) -> Memory:
        """Allocates at least `size` bytes, usable by `stream` at once. Raises Refusal(OUT_OF_MEMORY) with requested,
        free, reserved."""
        ...

    def free(self, memory: Any, stream: Stream) -> None:
        """Frees memory behind the work that `stream` (the one it was allocated on) has been given so far."""
        ...

    def memory_info(self) -> MemoryInfo: ...
    def memory_held(self) -> tuple[int, int]:
        """Returns the bytes that this process's pool holds of the device, and those in use; cheaper than
        `memory_info`."""
        ...

    @property
    def memory_grain(self) -> int:
        """The pool grows by multiples of this, in bytes."""
        ...

    def trim(self) -> None:
        """Returns the pool's unused memory to the device."""
        ...

    # memory that other processes map
    def create_shared(self, size: int, *, writable: bool = False) -> SharedMemory:
        """Allocates at least `size` bytes, not 0, that `export_shared` can export. Their contents are undefined.
        `writable`: other processes may write there as well; otherwise the backend prevents that where it can.

        Raises Refusal(OUT_OF_MEMORY), Refusal(UNSUPPORTED).
        """
        ...

    def export_shared(self, memory: Any) -> int:
        """Returns an open file, the caller's, with which another process maps the memory. The memory then outlives this
        process."""
        ...

    def import_shared(self, file: int, size: int) -> SharedMemory:
        """Maps `size` bytes that another process exported, for reading; the file stays the caller's. Raises as
        `create_shared`."""
        ...

    def own_shared(self, memory: Any) -> None:
        """Counts imported memory as memory of this process from now on."""
        ...

    def release_shared(self, memory: Any) -> None:
        """Unmaps the memory. The caller has seen its last use end."""
        ...

    def allocate_host(self, size: int) -> HostBuffer | None:
        """Returns host memory for copies; None: none is free, and a wait would block. Try again when `host_grown` is
        true or host memory is freed."""
        ...

    def host_grown(self) -> bool:
        """True if more host memory is free, or known not to come, since the last call."""
        ...

    def host_refusal(self, size: int) -> Refusal | None:
        """Returns the reason why the host locks no more memory for now, so that copies should do without; None: wait
        for `host_grown`."""
        ...

    def host_info(self) -> HostInfo: ...

    def free_host(self, buffer: Any) -> None:
        """Frees host memory whose copies are done."""
        ...

    def register_host(self, address: int, size: int) -> None:
        """Page-locks memory that is mapped here: it can be copied from and to like a `HostBuffer`, each copy within the
        range of one call. May block; any thread. Raises where the system refuses."""
        ...

    def unregister_host(self, address: int, size: int) -> None:
        """Unlocks exactly the range of one `register_host`; the caller has seen the last copy end. May block until no
        kernel runs (`loading_waits`); any thread."""
        ...

    def signal_address(self, address: int) -> int:
        """Returns the address for `signal` of page-locked memory; 0: this device writes no signals."""
        ...

    # streams and events
    def create_stream(self, priority: int = 0) -> Stream: ...
    def destroy_stream(self, stream: Stream) -> None:
        """Destroys the stream. Submitted work still runs."""
        ...

    def record(self, stream: Stream, *, timing: bool = False) -> Event: ...
    def wait(self, stream: Stream, event: Event) -> None:
        """Makes later work on `stream` wait, on the device, for `event`."""
        ...

    def done(self, event: Event) -> bool:
        """True once the event has completed. Never waits. Raises DeviceFault where the device failed."""
        ...

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Returns the time between two completed events that were recorded with timing."""
        ...

    def release_event(self, event: Event) -> None: ...

    # copies; host memory stays untouched until an event recorded afterwards is done
    def upload(self, destination: int, source: Any, offset: int, size: int, stream: Stream) -> None: ...
    def download(self, destination: Any, offset: int, source: int, size: int, stream: Stream) -> None: ...
    def copy(self, destination: int, source: int, size: int, stream: Stream) -> None: ...
    def upload_rows(
        self, destination: int, pitch: int, source: Any, offset: int, width: int, rows: int, stream: Stream
    ) -> None:
        """Copies `rows` rows of `width` bytes, dense in the host buffer, `pitch` bytes apart on the device."""
        ...

    def download_rows(
        self, destination: Any, offset: int, source: int, pitch: int, width: int, rows: int, stream: Stream
    ) -> None: ...
    def copy_rows(
        self,
        destination: int,
        destination_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        stream: Stream,
    ) -> None: ...
    def write_now(self, destination: int, pitch: int, data: memoryview, width: int, rows: int) -> None:
        """Copies from ordinary host memory to device memory without other users, and returns when that is done: some
        microseconds per 100 KiB.

        Serves where there is no page-locked memory. Rows as in `upload_rows`.
        """
        ...

    def read_now(self, into: memoryview, source: int, pitch: int, width: int, rows: int) -> None:
        """Copies from the device to ordinary, writable host memory, as `write_now` does."""
        ...

    def fill(self, address: int, pattern: bytes, size: int, stream: Stream) -> None:
        """Fills `size` bytes with `pattern` (1, 2, 4, 8 or 16 bytes); `size` and `address` are multiples of its
        length."""
        ...

    def signal(self, address: int, value: int, stream: Stream) -> None:
        """Has the device write 8 bytes of host memory (`signal_address`) when all earlier work of the stream is done
        and visible to the host. Raises DeviceFault."""
        ...

    # code
    @property
    def loading_waits(self) -> bool:
        """True if `load` and `unload` wait for every kernel that runs; see `hearthd.device.resources.idle_work`."""
        ...

    def first_launch_waits(self, function: Any, prints: bool) -> bool:
        """True if the first launch of the function would wait for every kernel that runs. `prints`: it may print."""
        ...

    def first_launch_made(self, function: Any, prints: bool) -> None:
        """Takes note that the function is about to be launched, while no kernel runs: later first launches may rely on
        its allocations."""
        ...

    def load(self, image: Image) -> Module:
        """Loads a module. Raises Refusal(MODULE_INVALID) for code that this device cannot load."""
        ...

    def unload(self, module: Any) -> None: ...

    def launch(
        self,
        function: Any,
        grid: Dim,
        block: Dim,
        shared_mem: int,
        stream: Stream,
        params: bytearray,
        attributes: LaunchAttributes | None = None,
    ) -> None:
        """Launches a kernel. `params` is the parameter block with addresses filled in; it may be reused when the call
        returns."""
        ...

    def repeated(
        self, function: Any, grid: Dim, block: Dim, shared_mem: int, stream: Stream, params: bytearray
    ) -> Callable[[], object]:
        """Returns a function that makes the same launch again at each call, with the least overhead. It raises Refusal
        or RuntimeError where the launch fails: `launch` gives the reason."""
        ...

    def flush_output(self) -> None:
        """Writes the output of kernels that have ended to the process's standard output."""
        ...

    def blocks_per_multiprocessor(self, function: Any, threads: int, shared_mem: int) -> int:
        """Returns how many blocks of `threads` threads fit one multiprocessor
        (cuOccupancyMaxActiveBlocksPerMultiprocessor)."""
        ...

    def max_clusters(self, function: Any, cluster: Dim, block: Dim, shared_mem: int) -> int:
        """Returns how many clusters fit the device at once (cuOccupancyMaxActiveClusters). Raises
        Refusal(UNSUPPORTED)."""
        ...

    def suggested_block(self, function: Any, shared_mem: int) -> int:
        """Returns the threads of a block that gives the most occupancy (cuOccupancyMaxPotentialBlockSize)."""
        ...

    def encode_tensor_map(self, spec: TensorMapSpec, address: int) -> bytes:
        """Returns the CUtensorMap (128 bytes) of a checked `spec` at `address`. Raises Refusal(TENSOR_MAP_INVALID)
        where the driver refuses it all the same, Refusal(UNSUPPORTED) where a feature that the map needs is not among
        the device's (`tensor_map.check_features`)."""
        ...

    # graphs
    def create_graph(self, nodes: Sequence[GraphNode]) -> Graph:
        """Creates a graph, instantiated and uploaded, in which each node runs behind the one before it."""
        ...

    def launch_graph(self, graph: Graph, stream: Stream, times: int = 1) -> None: ...
    def update_graph(self, graph: Graph, index: int, node: KernelNode) -> None:
        """Changes the parameters of the kernel node `index`, from its next launch on."""
        ...

    def destroy_graph(self, graph: Graph) -> None:
        """Destroys the graph. The caller has seen its last launch end."""
        ...
