"""A device of a node: where arrays, modules and streams are made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hearth import telemetry
from hearth.arrays.creation import Creation
from hearth.arrays.durable import Durability
from hearth.arrays.published import Published
from hearth.codec.decode import DONE
from hearth.codec.encode import SYNC_ALL
from hearth.errors import ArgumentError
from hearth.kernels.dispatch import Dispatching
from hearth.session.late_errors import NO_STREAM
from hearth.stream import Event, Stream, current, resolve
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.interfaces import NodeContext
    from hearth.kernels.function import Function
    from hearth.kernels.graph import Graph
    from hearth.kernels.module import RawModule
    from hearth.kernels.prepared import Prepared
    from hearth.profiling.profile import Profile
    from hearth.profiling.trace import Trace
    from hearth.session.connection import Connection
    from hearth.session.reply import Asked, Reply
    from hearth.types import DeviceInfo, DeviceProperties, MemoryUsage
    from hearth_proto.v1 import node_pb2


class Device(Creation, Dispatching, Durability, Published):
    """One device. Got from `Node.device` or `Node.devices`; keeps its node open.

    What a first result does without is imported where it is asked for: see `hearth.connect`.
    """

    def __init__(self, node: NodeContext, connection: Connection, opened: node_pb2.Device) -> None:
        self._node = node
        self._connection = connection
        self._opened = opened
        self._properties: DeviceProperties | None = None
        self._default_stream = Stream(connection, default=True)

    @property
    def node(self) -> Any:
        """The `Node` that it belongs to."""
        return self._node

    @property
    def ordinal(self) -> int:
        """Its number on the node."""
        return self._connection.ordinal

    @property
    def properties(self) -> DeviceProperties:
        """Name, backend, memory and limits, as of the connect."""
        if self._properties is None:
            from hearth.types import DeviceProperties

            self._properties = DeviceProperties.of(self._opened.properties)
        return self._properties

    @property
    def state(self) -> str:
        """``"starting"``, ``"serving"``, ``"lost"``, ``"fenced"`` or ``"stalled"``; asks the node."""
        return self._now().state

    @property
    def generation(self) -> int:
        """Counts the processes that have served it; asks the node."""
        return self._now().generation

    # ---- code ----

    def RawModule(
        self,
        code: str | bytes | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        options: Iterable[str] = (),
        name_expressions: Iterable[str] | None = None,
        headers: Mapping[str, str] | None = None,
        **unsupported: Any,
    ) -> RawModule:
        """Loads CUDA C++ source, PTX, CUBIN or fatbin from `code` or a local file; returns at once.

        `options`: the compiler's; `name_expressions`: C++ names to instantiate, e.g. ``["scale<float>"]``; `headers`:
        name in the source's ``#include`` -> text. Raises `UnsupportedError` for CuPy's further keywords.
        """
        from hearth.kernels.module import (
            RawModule,  # when the device has been attached to: its lane is opened meanwhile
        )

        return RawModule(
            self,
            code,
            path=path,
            options=options,
            name_expressions=name_expressions,
            headers=headers,
            **unsupported,
        )

    def RawKernel(self, code: str | bytes, name: str, options: Iterable[str] = (), **unsupported: Any) -> Function:
        """One kernel of its own module; returns at once."""
        return self.RawModule(code, options=options, **unsupported).get_function(name)

    # ---- streams ----

    def stream(self, priority: int = 0) -> Stream:
        """A new stream; lower priorities are more urgent. ``with`` makes it current."""
        return Stream(self._connection, priority)

    def graph(self) -> Graph:
        """``with gpu.graph() as g:`` records the launches, copies and fills of the block; then ``g.launch(n)``."""
        from hearth.kernels.graph import Graph

        return Graph(self._connection)

    def prepared(self) -> Prepared:
        """``with gpu.prepared() as p:`` collects the launches of the block and checks them; then ``p.launch(n)``."""
        from hearth.kernels.prepared import Prepared

        return Prepared(self._connection)

    def prepare(self, launches: Iterable[Sequence[Any]]) -> Prepared:
        """Each of `launches` is ``(kernel, grid, block, args)`` or ``(kernel, grid, block, args, shared_mem)``.

        Checked together; raises everything that is wrong with them.
        """
        from hearth.kernels.prepared import prepare

        return prepare(self._connection, launches)

    def event(self) -> Event:
        """An event, to be recorded by `Stream.record`."""
        return Event(self._connection)

    @property
    def default_stream(self) -> Stream:
        """The stream for work without one."""
        return self._default_stream

    @property
    def current_stream(self) -> Stream:
        """The stream that ``with`` made current here, else the default one."""
        return current(self._connection) or self._default_stream

    @telemetry.traced("hearth.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """Waits until all work of this session on the device is done; `timeout` in seconds.

        Raises what failed since errors were last asked for, `DeviceLostError` once after a loss, or `TimeoutError`.
        """
        self._synchronizing().wait(timeout)
        if self._connection._deferred:  # what failed before has been told before
            self._connection.raise_deferred()

    def _synchronizing(self) -> Reply:
        connection = self._connection
        if connection._deferred:
            connection.raise_deferred()
        attachment = connection._attachment
        if attachment is None or not attachment.alive:
            attachment = connection.attachment()
        reply = attachment.ask(SYNC_ALL, reports=True, barrier=True)
        reply.foretold = DONE
        return reply

    @telemetry.traced("hearth.flush")
    def flush(self, stream: Stream | None = None, timeout: float | None = None) -> None:
        """Waits until everything submitted before is handed to the device. Raises what failed on the stream."""
        self._flushing(stream).wait(timeout)

    def _flushing(self, stream: Stream | None) -> Reply:
        connection = self._connection
        connection.raise_deferred(NO_STREAM)  # which one it is, is known when the device is attached
        attachment = connection.attachment()
        command = commands_pb2.Command(stream=resolve(stream, connection, attachment), flush=commands_pb2.Flush())
        return connection.reporting(command, attachment=attachment)

    def profile(self, stream: Stream | None = None) -> Profile:
        """Times the work of a ``with`` block on the current stream, or on `stream`."""
        from hearth.profiling.profile import Profile

        return Profile(self._connection, stream)

    def trace(self, max_events: int | None = None) -> Trace:
        """Records every command of a ``with`` block, of all streams; `max_events`: the daemon's default if None."""
        from hearth.profiling.trace import Trace

        return Trace(self._connection, self._trace_name, max_events)

    @property
    def _trace_name(self) -> str:
        return f"device {self.ordinal}: {self.properties.name}"

    def on_output(self, callback: Callable[[str], object] | None) -> None:
        """`callback(text)` takes what this session's kernels print here; None: ``sys.stdout`` again.

        It is called by the thread that waits for the device, before its `synchronize` or `get` returns.
        """
        self._connection.prints.callback = callback

    # ---- memory ----

    def memory_usage(self) -> MemoryUsage:
        """What this session holds on the device, and what is left."""
        return self._asking_usage().wait()

    def _asking_usage(self) -> Asked[MemoryUsage]:
        from hearth.types import MemoryUsage

        command = commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage())
        return self._connection.asking(command, lambda result: MemoryUsage.of(result.memory_usage))

    def memory_cleanup(self) -> None:
        """Gives unused pool memory back to the device."""
        self._cleaning().wait()

    def _cleaning(self) -> Reply:
        command = commands_pb2.Command(memory_cleanup=commands_pb2.MemoryCleanup())
        return self._connection.attachment().request(command)

    def _repr_html_(self) -> str:
        from hearth import html_repr

        found = self.properties
        rows = [
            ("node", self._node.name),
            ("backend", found.backend),
            ("compute capability", ".".join(map(str, found.compute_capability))),
            ("memory", html_repr.size(found.total_memory)),
            ("multiprocessors", found.multiprocessor_count),
            ("threads of a block", found.max_threads_per_block),
            (
                "shared memory of a block",
                html_repr.size(found.shared_mem_per_block_optin or found.shared_mem_per_block),
            ),
        ]
        return html_repr.pairs(f"Device {self.ordinal}: {found.name}", rows)

    def __repr__(self) -> str:
        properties = self._opened.properties
        return f"<hearth.Device {self.ordinal}: {properties.name} ({properties.backend}) on {self._node.name}>"

    def _now(self) -> DeviceInfo:
        for device in self._node._describe().devices:
            if device.ordinal == self.ordinal:
                return device
        raise ArgumentError(
            f"the node has no device {self.ordinal} any more.", reason="DEVICE_NOT_FOUND", fix="see node.describe()."
        )
