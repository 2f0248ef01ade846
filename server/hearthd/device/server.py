"""ComputeServer: what CUDA and CPU implement; everything above it is shared.

All methods are called on the device-handle thread only, return without waiting for the device, and raise

- `hearth_proto.reasons.Refusal` for what fails without harm to the device (out of memory, a bad image, ...),
- `DeviceFault` for what the device process cannot survive (a sticky CUDA error).

`Compiler.compile`, `Communicators.unique_id`, `Communicators.join` and `Communicator.abort` are the exceptions: they
may block and are called on helper threads.

Addresses are device addresses as integers, sizes are bytes, times are nanoseconds. Work on a stream runs in the order
of submission; between streams only `wait` orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from hearth_proto.reasons import Refusal
from hearth_proto.v1 import node_pb2
from hearthd.device.nodes import Dim, GraphNode, KernelNode, LaunchAttributes
from hearthd.device.policy.tensor_map import TensorMapSpec


class DeviceFault(Exception):
    """The device context is lost: every further call would fail, so the process has to end."""


Stream: TypeAlias = Any
"""A CUDA stream, or a thread of the CPU backend: each backend's own, opaque to everything above."""

Graph: TypeAlias = Any
"""An instantiated graph; each backend's own."""

Event: TypeAlias = Any
"""A point in a stream; each backend's own, handed back with `release_event`."""


class Memory(Protocol):
    """A device allocation. `reserved` is what the pool took for it."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def reserved(self) -> int: ...


class SharedMemory(Memory, Protocol):
    """Device memory that more than one process can map."""

    @property
    def protected(self) -> bool:
        """Whether a kernel of this process that writes to it faults."""
        ...


class HostBuffer(Protocol):
    """Page-locked (CUDA) or ordinary (CPU) host memory that copies go through."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def view(self) -> memoryview: ...


@dataclass(frozen=True)
class MemoryInfo:
    """Bytes: free and total of the device, reserved by this process's pool, and in use of that."""

    free: int
    total: int
    reserved: int
    in_use: int = 0


@dataclass(frozen=True)
class HostInfo:
    """Bytes of host memory for copies: page-locked (on the CPU: held for them), and lent out of that."""

    pinned: int
    in_use: int


@dataclass(frozen=True)
class FunctionAttributes:
    """As cuFuncGetAttribute reports them; 0 where the backend has no such thing."""

    registers: int = 0
    static_shared_bytes: int = 0
    local_bytes: int = 0
    constant_bytes: int = 0
    max_threads_per_block: int = 1024


class Function(Protocol):
    """A kernel of a loaded module. `parameters` is (offset, size) of each, in order."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def attributes(self) -> FunctionAttributes: ...


class Module(Protocol):
    """A module loaded into the device's context."""

    def function(self, name: str) -> Function:
        """Raises Refusal(FUNCTION_NOT_FOUND) that lists what the module has, as far as that can be known."""
        ...

    def global_(self, name: str) -> tuple[int, int]:
        """Address and size of a `__device__` or `__constant__` variable; Refusal(GLOBAL_NOT_FOUND)."""
        ...

    @property
    def functions(self) -> Sequence[str]: ...
    @property
    def globals(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Image:
    """Compiled code: CUBIN or PTX for CUDA, a shared object for the CPU.

    `names` maps each name expression to the name it is known by in the code; `log` is what the compiler said.
    """

    code: bytes
    names: Mapping[str, str] = field(default_factory=dict)
    log: str = ""


@dataclass(frozen=True)
class Source:
    """CUDA C++ with what decides what it compiles to."""

    code: str
    options: tuple[str, ...] = ()
    name_expressions: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Assembly:
    """PTX, or a fatbin of which only the PTX will do: still to be made into code for the device."""

    code: bytes


Job: TypeAlias = Source | Assembly
"""What a compile worker is given."""


class Compiler(Protocol):
    """A backend's compiler. All but `assembly` may block: it is used in compile workers and on compile threads."""

    @property
    def light(self) -> bool:
        """Whether `identity` may be asked for in a device process, too: it loads no large library there."""
        ...

    def recipe(self) -> Mapping[str, Any]:
        """What a compile worker needs to make the same compiler, as JSON can carry it. A worker of another recipe is
        of no use any more."""
        ...

    def prepare(self, source: Source) -> None:
        """Makes, outside of the workers' sandbox, what a compile of the source needs from disk. Raises Refusal."""
        ...

    def load(self) -> None:
        """Takes from disk, before a worker's sandbox closes, what every compile needs."""
        ...

    def places(self) -> tuple[Sequence[str], Sequence[str]]:
        """Files and directories that the compiler reads, and those that it writes to beside its scratch directory."""
        ...

    def identity(self) -> bytes:
        """What besides the source decides the result: compiler, version, architecture."""
        ...

    def compile(self, source: Source) -> Image:
        """Raises Refusal(COMPILE_FAILED) with `details["log"]`, Refusal(UNSUPPORTED), Refusal(NO_COMPILER)."""
        ...

    def assembly(self, code: bytes) -> Assembly | None:
        """What has to be assembled before `code` can be loaded; None where it can be loaded as it is.

        Device-handle thread. Raises Refusal(MODULE_INVALID) for what this device cannot run.
        """
        ...

    def assembler(self) -> bytes:
        """As `identity`, of what assembles. Raises Refusal(NO_COMPILER) where there is nothing that could."""
        ...

    def assemble(self, assembly: Assembly) -> Image:
        """Raises Refusal(MODULE_INVALID) with `details["log"]`, Refusal(NO_COMPILER) where the driver has to do it."""
        ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """One operation of a collective, as a backend gets it. Counts are NCCL's: what one rank gives to another."""

    kind: str
    """`all_reduce`, `reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `all_to_all`, `gather`, `scatter`, `send`,
    `recv`, `barrier`"""
    source: int = 0
    """Addresses; 0 where this rank has none of that kind."""
    destination: int = 0
    count: int = 0
    """Elements, at least one but for `barrier`."""
    dtype: str = "uint8"
    """Of what does not reduce: `uint8`, and `count` is in bytes."""
    op: str = ""
    """`sum`, `mean`, `min`, `max`, `prod`; empty where nothing is reduced."""
    root: int = 0
    peer: int = 0


class Communicator(Protocol):
    """One rank of a group."""

    def enqueue(self, operations: Sequence[Exchange], stream: Stream) -> None:
        """All of them as one (ncclGroupStart, ncclGroupEnd). Device-handle thread; never waits for a peer. Raises
        Refusal(COMMUNICATOR_FAILED)."""
        ...

    def failed(self) -> str:
        """Why the communicator is no longer usable, or an empty string. Device-handle thread; never waits."""
        ...

    def abort(self) -> None:
        """Ends what is under way, also when a peer is gone. Any thread; may block."""
        ...


class Communicators(Protocol):
    def check(self, kind: str, dtype: str, op: str) -> None:
        """Raises Refusal(UNSUPPORTED) for what the backend cannot do. Device-handle thread."""
        ...

    def unique_id(self, ranks: int) -> bytes:
        """What the ranks of one new group find each other by."""
        ...

    def forget(self, unique_id: bytes) -> None:
        """No rank will join by it any more. Device-handle thread."""
        ...

    def join(self, unique_id: bytes, rank: int, ranks: int) -> Communicator: ...


@runtime_checkable
class ComputeServer(Protocol):
    """One device. Made, used and closed on the device-handle thread."""

    @property
    def properties(self) -> node_pb2.DeviceProperties: ...
    @property
    def compiler(self) -> Compiler: ...
    @property
    def communicators(self) -> Communicators: ...

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
    def create_shared(self, size: int) -> SharedMemory:
        """At least `size` bytes, not 0, that `export_shared` can hand on. What they held before is whatever it was.

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

    # code
    @property
    def loading_waits(self) -> bool:
        """Whether `load` and `unload` wait for every kernel that runs; see `hearthd.device.quiet`."""
        ...

    def first_launch_waits(self, function: Any, prints: bool) -> bool:
        """Whether launching it for the first time would wait for every kernel that runs. `prints`: it may print."""
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

    def launch_graph(self, graph: Graph, stream: Stream) -> None: ...
    def update_graph(self, graph: Graph, index: int, node: KernelNode) -> None:
        """Other parameters for the kernel node `index`, from its next launch on."""
        ...

    def destroy_graph(self, graph: Graph) -> None:
        """The caller has seen its last launch end."""
        ...
