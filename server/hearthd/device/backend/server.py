"""ComputeServer: what CUDA and CPU implement; everything above it is shared.

All methods are called on the device-handle thread only, return without waiting for the device, and raise

- `hearth_proto.reasons.Refusal` for what fails without harm to the device (out of memory, a bad image, ...),
- `DeviceFault` for what the device process cannot survive (a sticky CUDA error).

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
    """A backend whose kernels can take the process with them, and that writes down what they do."""

    def keep_crash_record(self, file: int) -> None:
        """In this file (`hearthd.shared.crash_record`), which it owns from now on. Raises OSError, ValueError."""
        ...

    def output_pipes(self) -> tuple[int, int]:
        """Two pipe ends, asked for once.

        A byte comes on the first before a kernel's fault ends the process: what kernels have printed is in standard
        output by then. The process ends when a byte is written to the second, or a moment later.
        """
        ...

    def note_launches(self, stream: Stream, launched: Sequence[tuple[int, str, str]]) -> None:
        """`launched` has (position, kernel, session) of what the stream is given: each launch is the last one in it
        while it is handed over."""
        ...


@runtime_checkable
class ChecksRaces(Protocol):
    """A backend that can find races in a kernel's shared memory (the CPU's, with HEARTH_CPU_RACECHECK)."""

    def race_refusal(self, stream: Stream) -> Callable[[], Refusal | None]:
        """The error of the launch that `stream` was given last, to be called once the stream has come to it: DATA_RACE,
        or None where no race was found or the kernel is not checked."""
        ...


@runtime_checkable
class ComputeServer(Protocol):
    """One device. Made, used and closed on the device-handle thread."""

    @property
    def properties(self) -> node_pb2.DeviceProperties: ...
    @property
    def compiler(self) -> Compiler: ...
    @property
    def communicators(self) -> CommunicatorFactory: ...

    def close(self) -> None: ...

    def on_progress(self, wake: Callable[[], None] | None) -> bool:
        """Asks for `wake` to be called (from any thread) when an event completes; False: poll `done` instead."""
        ...

    # memory
    def allocate(self, size: int, stream: Stream) -> Memory:
        """At least `size` bytes, usable by `stream` at once; Refusal(OUT_OF_MEMORY) with requested, free, reserved."""
        ...

    def free(self, memory: Any, stream: Stream) -> None:
        """Reusable after what `stream` (the one it was allocated on) has been given so far."""
        ...

    def memory_info(self) -> MemoryInfo: ...
    def memory_held(self) -> tuple[int, int]:
        """What this process's pool holds of the device, and what of that is in use; cheaper than `memory_info`."""
        ...

    @property
    def memory_grain(self) -> int:
        """The pool takes multiples of this of the device."""
        ...

    def trim(self) -> None:
        """Gives what the pool holds unused back to the device."""
        ...

    # memory that other processes map
    def create_shared(self, size: int, *, writable: bool = False) -> SharedMemory:
        """At least `size` bytes, not 0, that `export_shared` can hand on. What they held before is whatever it was.
        `writable`: to who may write there as well; else others are kept from it where the backend can.

        Refusal(OUT_OF_MEMORY), Refusal(UNSUPPORTED).
        """
        ...

    def export_shared(self, memory: Any) -> int:
        """An open file, the caller's, by which another process gets at the memory, which outlives this one then."""
        ...

    def import_shared(self, file: int, size: int) -> SharedMemory:
        """`size` bytes that another process exported, to be read; the file stays the caller's. Refusal, as above."""
        ...

    def own_shared(self, memory: Any) -> None:
        """It counts as memory of this process from now on, as what it has created does."""
        ...

    def release_shared(self, memory: Any) -> None:
        """The caller has seen its last use end."""
        ...

    def allocate_host(self, size: int) -> HostBuffer | None:
        """None: none is at hand, and waiting for it would block; ask again when `host_grown` or something is freed."""
        ...

    def host_grown(self) -> bool:
        """Whether more host memory is at hand, or known not to come, than when this was asked last."""
        ...

    def host_refusal(self, size: int) -> Refusal | None:
        """Why the host locks no more for now, so that copies had better do without; None: wait for `host_grown`."""
        ...

    def host_info(self) -> HostInfo: ...

    def free_host(self, buffer: Any) -> None:
        """The copies through it are done."""
        ...

    def register_host(self, address: int, size: int) -> None:
        """Page-locks memory that is mapped here: copies may go from it and to it as with a `HostBuffer`, each within
        what one call has locked. May block; any thread. Raises where the system refuses."""
        ...

    def unregister_host(self, address: int, size: int) -> None:
        """The end of that, of exactly what was locked: the caller has seen the last copy end. May block until no kernel
        runs (`loading_waits`); any thread."""
        ...

    def signal_address(self, address: int) -> int:
        """What `signal` knows page-locked memory by that lies there; 0: this device writes none."""
        ...

    # streams and events
    def create_stream(self, priority: int = 0) -> Stream: ...
    def destroy_stream(self, stream: Stream) -> None:
        """What it has been given still runs."""
        ...

    def record(self, stream: Stream, *, timing: bool = False) -> Event: ...
    def wait(self, stream: Stream, event: Event) -> None:
        """Later work on `stream` waits, on the device, for `event`."""
        ...

    def done(self, event: Event) -> bool:
        """Never waits. Raises DeviceFault where the device failed."""
        ...

    def elapsed_ns(self, start: Event, end: Event) -> int:
        """Between two done events recorded with timing."""
        ...

    def release_event(self, event: Event) -> None: ...

    # copies; host memory stays untouched until an event recorded afterwards is done
    def upload(self, destination: int, source: Any, offset: int, size: int, stream: Stream) -> None: ...
    def download(self, destination: Any, offset: int, source: int, size: int, stream: Stream) -> None: ...
    def copy(self, destination: int, source: int, size: int, stream: Stream) -> None: ...
    def upload_rows(
        self, destination: int, pitch: int, source: Any, offset: int, width: int, rows: int, stream: Stream
    ) -> None:
        """`rows` rows of `width` bytes, dense in the host buffer, `pitch` bytes apart on the device."""
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
        """Ordinary host memory to a device that nothing else uses there, done on return: some microseconds per 100 KiB.

        For where no page-locked memory is to be had. Rows as in `upload_rows`.
        """
        ...

    def read_now(self, into: memoryview, source: int, pitch: int, width: int, rows: int) -> None:
        """The other way, under the same conditions; `into` is writable."""
        ...

    def fill(self, address: int, pattern: bytes, size: int, stream: Stream) -> None:
        """`pattern` is 1, 2, 4, 8 or 16 bytes; `size` and `address` are multiples of its length."""
        ...

    def signal(self, address: int, value: int, stream: Stream) -> None:
        """Has the device write 8 bytes of host memory (`signal_address`) when all is done that the stream has been
        given before, and seen by the host. Raises DeviceFault."""
        ...

    # code
    @property
    def loading_waits(self) -> bool:
        """Whether `load` and `unload` wait for every kernel that runs; see `hearthd.device.resources.idle_work`."""
        ...

    def first_launch_waits(self, function: Any, prints: bool) -> bool:
        """Whether launching it for the first time would wait for every kernel that runs. `prints`: it may print."""
        ...

    def first_launch_made(self, function: Any, prints: bool) -> None:
        """It is about to be launched, while no kernel runs: what that launch brings about is there from now on."""
        ...

    def load(self, image: Image) -> Module:
        """Refusal(MODULE_INVALID) for code that this device cannot load."""
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
        """`params` is the parameter block with addresses filled in; it may be reused when the call returns."""
        ...

    def repeated(
        self, function: Any, grid: Dim, block: Dim, shared_mem: int, stream: Stream, params: bytearray
    ) -> Callable[[], object]:
        """What does again, each time that it is called, what `launch` did with these; soonest. It raises Refusal or
        RuntimeError where it did not: `launch` says why."""
        ...

    def flush_output(self) -> None:
        """What kernels that have ended printed is in the process's standard output when this returns."""
        ...

    def blocks_per_multiprocessor(self, function: Any, threads: int, shared_mem: int) -> int:
        """How many blocks of so many threads fit one multiprocessor (cuOccupancyMaxActiveBlocksPerMultiprocessor)."""
        ...

    def max_clusters(self, function: Any, cluster: Dim, block: Dim, shared_mem: int) -> int:
        """How many clusters fit the device at once (cuOccupancyMaxActiveClusters); Refusal(UNSUPPORTED)."""
        ...

    def suggested_block(self, function: Any, shared_mem: int) -> int:
        """Threads of a block that gives the most occupancy (cuOccupancyMaxPotentialBlockSize)."""
        ...

    def encode_tensor_map(self, spec: TensorMapSpec, address: int) -> bytes:
        """The CUtensorMap (128 bytes) of a checked `spec` at `address`. Refusal(TENSOR_MAP_INVALID) where the driver
        refuses it all the same; Refusal(UNSUPPORTED) where "tensor_maps" is not among the features."""
        ...

    # graphs
    def create_graph(self, nodes: Sequence[GraphNode]) -> Graph:
        """Instantiated, uploaded, each node behind the one before it."""
        ...

    def launch_graph(self, graph: Graph, stream: Stream, times: int = 1) -> None: ...
    def update_graph(self, graph: Graph, index: int, node: KernelNode) -> None:
        """Other parameters for the kernel node `index`, from its next launch on."""
        ...

    def destroy_graph(self, graph: Graph) -> None:
        """The caller has seen its last launch end."""
        ...
