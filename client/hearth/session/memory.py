"""Device memory as the client tracks it: a handle, its users, and its release when the last reference is dropped.

`__del__` runs wherever Python collects garbage: perhaps while the thread holds a lock of this package, or while the
interpreter shuts down. So it only appends the handle to a `DeferredFrees`, a deque that the connection empties when it
works next.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal

from hearth.codec import encode
from hearth_proto.later import commands_pb2

FREES = 50_000
"""Maximum number of buffers that one Free command frees, so that the command fits in a batch."""
_MAX_PLAIN = 64
"""Maximum number of buffers that are encoded without protobuf, which is faster for more buffers than that."""

Kind = Literal["buffer", "stream", "event", "module", "tensor_map", "graph", "prepared"]


class DeferredFrees:
    """Handles whose owners no longer exist, kept until the daemon is requested to free them."""

    __slots__ = ("handles", "on_add")

    def __init__(self) -> None:
        self.handles: deque[tuple[Kind, int]] = deque()
        self.on_add: Callable[[], None] | None = None

    def add(self, kind: Kind, handle: int) -> None:
        """Queues `handle` and calls `on_add`. Takes no lock and never fails: see the module's docstring.

        Args:
            kind: Type of the object.
            handle: Handle of the object.
        """
        self.handles.append((kind, handle))
        on_add = self.on_add
        if on_add is not None:
            on_add()


def free_commands(handles: deque[tuple[Kind, int]]) -> list[commands_pb2.Command | encode.Plain]:
    """Returns the commands that free `handles`, and empties `handles`."""
    buffers: list[int] = []
    commands: list[commands_pb2.Command | encode.Plain] = []
    while handles:
        kind, handle = handles.popleft()
        if kind == "buffer":
            buffers.append(handle)
        elif kind == "module":
            commands.append(encode.unload_module(handle))
        else:  # all other kinds have a command with one field, such as `DestroyStream.stream`
            destroy: dict[str, Any] = {f"destroy_{kind}": {kind: handle}}
            commands.append(commands_pb2.Command(**destroy))
    if len(buffers) <= _MAX_PLAIN:
        return [encode.free(buffers), *commands] if buffers else commands
    frees = [
        commands_pb2.Command(free=commands_pb2.Free(buffers=buffers[start : start + FREES]))
        for start in range(0, len(buffers), FREES)
    ]
    return [*frees, *commands]


class Space:
    """Device memory of one generation of a device process. Arrays compare its identity to detect a loss."""

    __slots__ = ("__weakref__", "deferred_frees", "generation", "lost", "released")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.deferred_frees = DeferredFrees()
        self.lost = False
        self.released = False
        """True once the daemon has freed the session's memory in this generation. The space is lost if the session gets
        the device again; until then, uses raise the daemon's reason."""


class Memory:
    """A buffer of a device, freed when its last reference is dropped."""

    __slots__ = ("__weakref__", "handle", "keep", "owned", "owner", "published", "read_only", "size", "space")

    def __init__(self, space: Space, handle: int, size: int, *, owned: bool = True, keep: object = None) -> None:
        self.owner: Space | None = space
        """The space in which the buffer can be used; None once the buffer was freed."""
        self.space = space
        self.handle = handle
        self.size = size
        self.owned = owned
        """True if this object frees the buffer; False if another object does (a module for its globals)."""
        self.keep = keep
        self.read_only = False
        """True if the buffer is attached, that is, published by another session."""
        self.published = False
        """True once this session has published the buffer, also after the publication has ended."""

    def free(self) -> None:
        """Requests the daemon to free the buffer, after the work that uses it.

        A second call does nothing.
        """
        if self.owner is not None:
            self.owner = None
            if self.owned and not self.space.lost:
                self.space.deferred_frees.add("buffer", self.handle)

    def __del__(self) -> None:
        if getattr(self, "owner", None) is not None:
            self.free()


class DurableBuffers:
    """Durable buffers of one connection that arrays still refer to."""

    def __init__(self) -> None:
        self._memories: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()

    def __contains__(self, memory: Memory) -> bool:
        return self._memories.get(memory.handle) is memory

    def any(self) -> bool:
        """True if arrays still refer to durable buffers, which a loss of the device would revert."""
        return bool(self._memories)

    def add(self, memory: Memory) -> None:
        """Tracks the buffer without keeping it from being garbage-collected.

        Args:
            memory: Durable buffer.
        """
        self._memories[memory.handle] = memory

    def discard(self, memory: Memory) -> None:
        """Stops tracking the buffer, which is no longer durable. Ignores a buffer that is not tracked.

        Args:
            memory: Buffer of an array.
        """
        self._memories.pop(memory.handle, None)

    def move(self, restored: Iterable[int], space: Space) -> None:
        """Moves the memories of the buffers that the daemon has restored to `space`.

        Frees restored buffers that no array refers to.

        Args:
            restored: Handles of the restored buffers. Others are no longer tracked, except those of `space` itself.
            space: Device memory of the new generation.
        """
        restored = set(restored)
        for handle in restored:
            memory = self._memories.get(handle)
            if memory is None or memory.owner is None:
                space.deferred_frees.add("buffer", handle)
                continue
            memory.space = space
            if memory.owner is not None:  # unless another thread freed it meanwhile: see `Memory.free`
                memory.owner = space
        for reference in self._memories.valuerefs():  # a copy: another thread may add a memory meanwhile
            memory = reference()
            if memory is not None and memory.handle not in restored and memory.space is not space:
                self.discard(memory)


class DeviceOperand:
    """Object with an address on a device, which a kernel takes as a pointer."""

    __slots__ = ("_memory", "_offset")

    _passed: ClassVar[tuple[str, int, int]] = ("Q", 8, 8)
    """The kernel parameter's `struct` code for the offset, its size and its alignment in bytes."""

    _memory: Memory
    _offset: int
