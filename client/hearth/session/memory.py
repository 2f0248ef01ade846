"""Device memory as the client holds it: a handle, its users, and its release when the last holder is gone.

`__del__` runs wherever Python collects garbage, perhaps inside a lock of this very package or while the interpreter
shuts down. So it only appends the handle to a `DeferredFrees`, a deque that the connection empties when it next works.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import ClassVar, Literal

from hearth.codec import encode
from hearth_proto.later import commands_pb2

FREES = 50_000
"""Buffers that one command gives back: however many have died, it fits a batch."""
_FEW = 64
"""More of them protobuf writes sooner."""

Kind = Literal["buffer", "stream", "event", "module", "tensor_map", "graph", "prepared"]


class DeferredFrees:
    """Handles whose owners are gone, until they are given back."""

    __slots__ = ("handles", "nudge")

    def __init__(self) -> None:
        self.handles: deque[tuple[Kind, int]] = deque()
        self.nudge: Callable[[], None] | None = None

    def add(self, kind: Kind, handle: int) -> None:
        """Takes no lock and never fails: see the module's docstring."""
        self.handles.append((kind, handle))
        nudge = self.nudge
        if nudge is not None:
            nudge()


def free_commands(handles: deque[tuple[Kind, int]]) -> list[commands_pb2.Command | encode.Plain]:
    """The commands that give the handles back; empties `handles`."""
    buffers: list[int] = []
    others: list[commands_pb2.Command | encode.Plain] = []
    while handles:
        kind, handle = handles.popleft()
        if kind == "buffer":
            buffers.append(handle)
        elif kind == "stream":
            others.append(commands_pb2.Command(destroy_stream=commands_pb2.DestroyStream(stream=handle)))
        elif kind == "event":
            others.append(commands_pb2.Command(destroy_event=commands_pb2.DestroyEvent(event=handle)))
        elif kind == "tensor_map":
            destroyed = commands_pb2.DestroyTensorMap(tensor_map=handle)
            others.append(commands_pb2.Command(destroy_tensor_map=destroyed))
        elif kind == "graph":
            others.append(commands_pb2.Command(destroy_graph=commands_pb2.DestroyGraph(graph=handle)))
        elif kind == "prepared":
            destroyed_list = commands_pb2.DestroyPrepared(prepared=handle)
            others.append(commands_pb2.Command(destroy_prepared=destroyed_list))
        else:
            others.append(encode.unload_module(handle))
    if len(buffers) <= _FEW:
        return [encode.free(buffers), *others] if buffers else others
    frees = [
        commands_pb2.Command(free=commands_pb2.Free(buffers=buffers[start : start + FREES]))
        for start in range(0, len(buffers), FREES)
    ]
    return [*frees, *others]


class Space:
    """Memory of one generation of a device process: the identity that arrays are checked against."""

    __slots__ = ("__weakref__", "deferred_frees", "generation", "lost")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.deferred_frees = DeferredFrees()
        self.lost = False


class Memory:
    """A buffer of a device, freed when its last reference is dropped."""

    __slots__ = ("__weakref__", "handle", "keep", "owned", "owner", "read_only", "size", "space")

    def __init__(self, space: Space, handle: int, size: int, *, owned: bool = True, keep: object = None) -> None:
        self.owner: Space | None = space
        """The space that the buffer can be used in; None once it was freed."""
        self.space = space
        self.handle = handle
        self.size = size
        self.owned = owned
        """False: something else gives the buffer back (a module its globals)."""
        self.keep = keep
        self.read_only = False
        """Attached: another session published it."""

    def free(self) -> None:
        """Gives the buffer back now; the daemon waits for the work that uses it. A second call does nothing."""
        if self.owner is not None:
            self.owner = None
            if self.owned and not self.space.lost:
                self.space.deferred_frees.add("buffer", self.handle)

    def __del__(self) -> None:
        if getattr(self, "owner", None) is not None:
            self.free()


class DurableBuffers:
    """The durable buffers of one connection, as far as arrays have them."""

    def __init__(self) -> None:
        self._memories: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()

    def __contains__(self, memory: Memory) -> bool:
        return self._memories.get(memory.handle) is memory

    def any(self) -> bool:
        return bool(self._memories)

    def add(self, memory: Memory) -> None:
        self._memories[memory.handle] = memory

    def discard(self, memory: Memory) -> None:
        self._memories.pop(memory.handle, None)

    def move(self, returned: Iterable[int], space: Space) -> None:
        """Moves the memories of the handles `returned`, which the daemon has restored, to `space`, and frees buffers
        without references."""
        returned = set(returned)
        for handle in returned:
            memory = self._memories.get(handle)
            if memory is None or memory.owner is None:
                space.deferred_frees.add("buffer", handle)
                continue
            memory.space = space
            if memory.owner is not None:  # freed just now: see `Memory.free`
                memory.owner = space
        for handle in [handle for handle in list(self._memories.keys()) if handle not in returned]:
            self._memories.pop(handle, None)


class DeviceOperand:
    """Something with an address on a device: what a kernel takes as a pointer."""

    __slots__ = ("_memory", "_offset")

    _passed: ClassVar[tuple[str, int, int]] = ("Q", 8, 8)
    """The kernel parameter's `struct` code for the offset, size and alignment in bytes."""

    _memory: Memory
    _offset: int
