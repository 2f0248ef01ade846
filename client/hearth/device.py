"""A device of a node: where arrays, modules and streams are made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hearth import dtypes, shapes, telemetry
from hearth import lazy_numpy as np
from hearth.arrays.array import DeviceArray, allocate, allocate_many
from hearth.arrays.durable import Durability
from hearth.arrays.published import Published
from hearth.codec.decode import DONE
from hearth.codec.encode import SYNC_ALL
from hearth.errors import ArgumentError, DtypeError, UnsupportedError
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
    from hearth.progress import Progress
    from hearth.session.connection import Connection
    from hearth.session.reply import Asked, Reply
    from hearth.types import DeviceInfo, DeviceProperties, MemoryUsage
    from hearth_proto.v1 import node_pb2


class Device(Dispatching, Durability, Published):
    """One device. Got from `Node.device` or `Node.devices`; keeps its node open.

    Sizes of new arrays are checked here, memory by the daemon: `OutOfMemoryError` comes with the next sync, read or
    flush. What a first result does without is imported where it is asked for: see `hearth.connect`.
    """

    _array_type: type[DeviceArray] = DeviceArray

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

    # ---- arrays ----

    def asarray(
        self,
        a: Any,
        dtype: Any = None,
        stream: Stream | None = None,
        *,
        blocking: bool = False,
        progress: bool | Progress | None = None,
    ) -> DeviceArray:
        """`a` on this device: uploaded; copied from another device of the session, as by `DeviceArray.copy_from`; or
        itself, where it lies here already with that dtype. `a` is anything that `np.asarray` takes or that speaks
        DLPack; also an array in this process's own GPU memory (CuPy, PyTorch), which is copied there, where the daemon
        has that GPU on this host. An array of this session with another dtype is converted as by `DeviceArray.astype`.

        An ordinary host array is captured when the call returns, and may be changed then. One in pinned memory
        (`hearth.empty_pinned`, or a C-contiguous part of such) is read by the device itself, in the order of the
        stream: it is to stay as it is until that was synchronized with, unless ``blocking=True``, which waits until it
        has been read. It need not be kept alive. An array that is not C-contiguous is copied on the host first.
        `progress`: as in `DeviceArray.get`.
        """
        if isinstance(a, DeviceArray):
            if a._device._node._session is not self._node._session:
                raise UnsupportedError(
                    f"{a!r} belongs to another session.",
                    reason="UNSUPPORTED",
                    fix="go through the host: gpu.asarray(x.get()); or use a hearth.Group over both.",
                )
            if a._connection is self._connection and (dtype is None or shapes.dtype_of(dtype) == a.dtype):
                return a
        return self.array(a, dtype, stream, blocking=blocking, progress=progress)

    def array(
        self,
        obj: Any,
        dtype: Any = None,
        stream: Stream | None = None,
        *,
        blocking: bool = False,
        progress: bool | Progress | None = None,
    ) -> DeviceArray:
        """As `asarray`, always new memory."""
        if not np.here():  # else it sees the same in them
            host = dtypes.host(obj)
            if host is not None and (dtype is None or dtypes.named(dtype) is host.element):
                plain = allocate(self, host.shape, host.element, stream)
                plain._write_bytes(host.data, stream, progress, blocking)
                return plain
        wanted = None if dtype is None else shapes.dtype_of(dtype)
        if isinstance(obj, DeviceArray):
            same = obj._device._node._session is self._node._session
            if same and (wanted is None or wanted == obj.dtype or _converts(obj.dtype, wanted)):
                return self._from_session(obj, wanted, stream)
            obj = self._at_host(obj)  # another session's; or strings and dates, which only the host converts
        made: list[DeviceArray] = []

        def upload(host: np.ndarray[Any, Any]) -> None:
            fresh = allocate(self, host.shape, shapes.dtype_of(host.dtype), stream)
            fresh._write(host, stream, progress, blocking)
            made.append(fresh)

        if isinstance(obj, np.ndarray | np.generic | bool | int | float | complex):
            upload(_host(obj, wanted))
        else:
            from hearth.arrays.asarray import copied, on_gpu, with_host_array

            found = on_gpu(obj)
            if found is not None:
                fresh = copied(obj, found, self, stream)
                return fresh if wanted is None else fresh.astype(wanted, stream, copy=False)
            with_host_array(obj, wanted, upload)
        return made[0]

    def _from_session(self, obj: DeviceArray, wanted: np.dtype[Any] | None, stream: Stream | None) -> DeviceArray:
        """A copy of an array of one of the session's devices."""
        if wanted is not None and wanted != obj.dtype:
            obj = obj.astype(wanted, stream if obj._connection is self._connection else None)
            if obj._connection is self._connection:
                return obj
        if obj._connection is self._connection:
            return obj.copy(stream)
        fresh = allocate(self, obj.shape, obj.dtype, stream)
        fresh.copy_from(obj, stream)
        return fresh

    def _at_host(self, a: DeviceArray) -> Any:
        """An array's contents, which are to become of another dtype."""
        return a.get()

    def empty(self, shape: shapes.Shape, dtype: Any = float, stream: Stream | None = None) -> DeviceArray:
        """An array with arbitrary contents."""
        return allocate(self, shapes.shape_of(shape), shapes.type_of(dtype), stream)

    def empty_pitched(self, shape: shapes.Shape, dtype: Any = float, stream: Stream | None = None) -> DeviceArray:
        """An array with arbitrary contents whose rows (along the last axis) are padded: `x.pitch` bytes apart.

        The pitch is CubeCL's: the row's size rounded up to a power of two from 16 to 512 bytes that grows with it, so
        that every row starts where vector loads can.
        """
        return allocate(self, shapes.shape_of(shape), shapes.type_of(dtype), stream, pitched=True)

    def empty_many(self, specs: Iterable[tuple[shapes.Shape, Any]], stream: Stream | None = None) -> list[DeviceArray]:
        """Arrays of these (shape, dtype) in one reservation, which is had as a whole or not at all.

        Each is an array of its own, at the device's alignment; the memory goes back when the last of them is gone.
        """
        return allocate_many(self, [(shapes.shape_of(shape), shapes.type_of(dtype)) for shape, dtype in specs], stream)

    @contextmanager
    def persistent_memory(self) -> Iterator[None]:
        """What is allocated inside stays with this session when it is freed, for its next allocation of the same size.

        Others never get it, however short of memory they are, until `memory_cleanup`, or the session's end. For all of
        the session's work on the device, whichever thread it comes from; windows nest.
        """
        connection = self._connection
        attachment = connection.attachment()
        attachment.submit(_mode(commands_pb2.ALLOCATION_MODE_PERSISTENT))
        try:
            yield
        finally:
            now = connection.attachment() if connection.refusal is None else None
            if now is not None and now.space is attachment.space:  # another generation has no window to be closed
                now.submit(_mode(commands_pb2.ALLOCATION_MODE_AUTO))

    def zeros(self, shape: shapes.Shape, dtype: Any = float, stream: Stream | None = None) -> DeviceArray:
        """An array of zeros."""
        return self.full(shape, 0, dtype, stream)

    def ones(self, shape: shapes.Shape, dtype: Any = float, stream: Stream | None = None) -> DeviceArray:
        """An array of ones."""
        return self.full(shape, 1, dtype, stream)

    def full(
        self, shape: shapes.Shape, fill_value: Any, dtype: Any = None, stream: Stream | None = None
    ) -> DeviceArray:
        """An array of `fill_value`, in its own dtype unless another is given."""
        fresh = self.empty(shape, shapes.type_of_value(fill_value) if dtype is None else dtype, stream)
        if isinstance(fill_value, int) and fill_value == 0 and getattr(fresh._dtype, "names", None) is not None:
            fill_value = np.zeros((), fresh.dtype)
        fresh.fill(fill_value, stream)
        return fresh

    def empty_like(self, a: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array with the shape and dtype of `a` (of host or device) and arbitrary contents."""
        return self.empty(a.shape, _type_of(a) if dtype is None else dtype, stream)

    def zeros_like(self, a: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array of zeros with the shape and dtype of `a`."""
        return self.zeros(a.shape, _type_of(a) if dtype is None else dtype, stream)

    def ones_like(self, a: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array of ones with the shape and dtype of `a`."""
        return self.ones(a.shape, _type_of(a) if dtype is None else dtype, stream)

    def full_like(self, a: Any, fill_value: Any, dtype: Any = None, stream: Stream | None = None) -> DeviceArray:
        """An array of `fill_value` with the shape and dtype of `a`."""
        return self.full(a.shape, fill_value, _type_of(a) if dtype is None else dtype, stream)

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


def _type_of(a: Any) -> Any:
    return a._dtype if isinstance(a, DeviceArray) else a.dtype


def _host(obj: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(obj, dtype, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise DtypeError(
            f"this {type(obj).__name__} makes no array ({error}).", reason="INVALID_ARGUMENT", fix="see np.asarray."
        ) from None


def _converts(since: np.dtype[Any], to: np.dtype[Any] | None) -> bool:
    from hearth.arrays import astype

    return astype.known(since, to)


def _mode(mode: commands_pb2.AllocationMode) -> commands_pb2.Command:
    command = commands_pb2.Command()
    command.set_allocation_mode.mode = mode
    return command
