"""Resources of a backend: memory, streams, events, graphs, modules, and their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Stream: TypeAlias = Any
"""A CUDA stream, or a thread of the CPU backend. Its type belongs to the backend; the layers above treat it as
opaque."""

Graph: TypeAlias = Any
"""An instantiated graph. Its type belongs to the backend."""

Event: TypeAlias = Any
"""A point in a stream. Its type belongs to the backend; `release_event` gives it back."""


class Memory(Protocol):
    """A device allocation."""

    @property
    def address(self) -> int:
        """Device address of the first byte; 0 if `size` is 0."""
        ...

    @property
    def size(self) -> int:
        """Requested size in bytes."""
        ...

    @property
    def reserved(self) -> int:
        """Size in bytes that counts as in use: `size`, rounded up to the granularity of the allocator."""
        ...


@dataclass(frozen=True)
class StrayAccess:
    """An access of a kernel outside of a guarded array."""

    offset: int
    """Offset of the first byte in bytes from the start of the array; negative before the array."""
    writes: bool | None
    """True for a write, False for a read; None: unknown."""
    block: tuple[int, int, int]
    """Index of the block that made the access."""


class GuardedMemory(Protocol):
    """Memory of an array and its surroundings, which records kernels' accesses outside of the array."""

    @property
    def address(self) -> int:
        """Device address of the first byte."""
        ...

    def arm(self, stream: Stream) -> None:
        """Records accesses by later work on the stream. Only kernels may use the memory until `disarm`."""
        ...

    def disarm(self, stream: Stream) -> Callable[[], Sequence[StrayAccess]]:
        """Ends the recording of accesses after the earlier work on the stream.

        The returned function returns the accesses. It may be called once the stream has completed its work up to this
        call.
        """
        ...

    def free(self, stream: Stream) -> None:
        """Frees the memory after the earlier work on the stream."""
        ...


class SharedMemory(Memory, Protocol):
    """Device memory that more than one process can map."""

    @property
    def protected(self) -> bool:
        """True if a write by a kernel of this process faults."""
        ...


class HostBuffer(Protocol):
    """Page-locked (CUDA) or ordinary (CPU) host memory that copies go through."""

    @property
    def address(self) -> int:
        """Host address of the first byte."""
        ...

    @property
    def size(self) -> int:
        """Size in bytes, at least the requested size."""
        ...

    @property
    def view(self) -> memoryview:
        """The memory as writable bytes; must not be used after `ComputeServer.free_host`."""
        ...


@dataclass(frozen=True)
class MemoryInfo:
    """Sizes in bytes: free and total memory of the device, the reservation of this process's pool, the part in use."""

    free: int
    total: int
    reserved: int
    in_use: int = 0


@dataclass(frozen=True)
class HostInfo:
    """Sizes in bytes of the host memory for copies.

    `pinned` is the page-locked memory (CPU: the memory that the backend holds); `in_use` is its part that is lent out.
    """

    pinned: int
    in_use: int


@dataclass(frozen=True)
class FunctionAttributes:
    """Attributes of a function, from cuFuncGetAttribute; 0 if the backend has no such attribute."""

    registers: int = 0
    static_shared_bytes: int = 0
    local_bytes: int = 0
    constant_bytes: int = 0
    max_threads_per_block: int = 1024
    """Depends on registers and launch bounds."""
    ptx_version: int = 0
    binary_version: int = 0
    cache_mode_ca: int = 0
    carveout: int = -1
    """Preferred shared memory in percent of the maximum; -1: the driver's default."""


class Function(Protocol):
    """A kernel of a loaded module.

    `parameters` has the (offset, size) of each parameter in bytes, in order. `kinds` has a letter for each: ``i`` for
    a signed integer, ``u`` for an unsigned one, ``n`` for an integer of unknown sign, ``b`` for a bool, ``f`` for a
    floating-point number, ``?`` for another type and if the type is unknown.
    """

    @property
    def name(self) -> str:
        """Name under which `Module.function` found the kernel: a symbol or a name expression."""
        ...

    @property
    def parameters(self) -> tuple[tuple[int, int], ...]:
        """(Offset, size) of each parameter in bytes, in order."""
        ...

    @property
    def kinds(self) -> str:
        """Letter of the kind of each parameter, in order."""
        ...

    @property
    def attributes(self) -> FunctionAttributes:
        """Registers, memory and block limit of the kernel."""
        ...

    def prefer_shared(self, percent: int) -> None:
        """Sets the attribute `carveout`, which is a hint."""


class Module(Protocol):
    """A module loaded into the device's context."""

    def function(self, name: str) -> Function:
        """Returns the function of this name.

        Raises Refusal(FUNCTION_NOT_FOUND), which lists the module's functions if they can be known.
        """
        ...

    def global_(self, name: str) -> tuple[int, int]:
        """Returns the address and size of a `__device__` or `__constant__` variable.

        Raises Refusal(GLOBAL_NOT_FOUND).
        """
        ...

    @property
    def functions(self) -> Sequence[str]:
        """Names of the kernels that `function` finds."""
        ...

    @property
    def globals(self) -> Sequence[str]:
        """Names of the variables that `global_` finds. May be incomplete if the driver cannot list variables."""
        ...
