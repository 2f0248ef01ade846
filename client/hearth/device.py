"""Devices whose answers are waited for by the calling thread."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hearth import shapes, telemetry
from hearth.arrays.array import DeviceArray
from hearth.base_device import BaseDevice
from hearth.kernels import dispatch as dispatches
from hearth.stream import Event, Stream

if TYPE_CHECKING:
    from hearth.arrays.asarray import OnGpu
    from hearth.arrays.described import PublishedArray
    from hearth.base_stream import BaseStream
    from hearth.kernels.bindings import Array
    from hearth.kernels.function import Function
    from hearth.kernels.graph import Graph
    from hearth.kernels.module import RawModule
    from hearth.kernels.pending_dispatch import PendingDispatch
    from hearth.kernels.prepared import Prepared
    from hearth.node import Node
    from hearth.profiling.profile import Profile
    from hearth.profiling.trace import Trace
    from hearth.types import MemoryUsage


class Device(BaseDevice[DeviceArray, Stream]):
    """One device, where arrays, modules and streams are made. Got from `Node.device` or `Node.devices`; keeps its node
    open.

    Sizes of new arrays are checked here, memory by the daemon: `OutOfMemoryError` comes with the next sync, read or
    flush. What a first result does without is imported where it is asked for: see `hearth.connect`.
    """

    _array_type = DeviceArray
    _stream_type = Stream

    if TYPE_CHECKING:

        @property
        def node(self) -> Node: ...

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

    @telemetry.traced("hearth.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """Waits until all work of this session on the device is done; `timeout` in seconds.

        Raises what failed since errors were last asked for, `DeviceLostError` once after a loss, or `TimeoutError`.
        """
        self._synchronizing().wait(timeout)
        if self._connection._deferred:  # what failed before has been told before
            self._connection.raise_deferred()

    @telemetry.traced("hearth.flush")
    def flush(self, stream: Stream | None = None, timeout: float | None = None) -> None:
        """Waits until everything submitted before is handed to the device. Raises what failed on the stream."""
        self._flushing(stream).wait(timeout)

    def profile(self, stream: Stream | None = None) -> Profile:
        """Times the work of a ``with`` block on the current stream, or on `stream`."""
        from hearth.profiling.profile import Profile

        return Profile(self._connection, stream)

    def trace(self, max_events: int | None = None) -> Trace:
        """Records every command of a ``with`` block, of all streams; `max_events`: the daemon's default if None."""
        from hearth.profiling.trace import Trace

        return Trace(self._connection, self._trace_name, max_events)

    # ---- dispatch ----

    @telemetry.traced("hearth.dispatch", telemetry.of_dispatch)
    def dispatch(
        self,
        function: Function,
        grid: Any,
        block: Any,
        args: Sequence[Any] | None = None,
        *,
        ins: Sequence[Any] = (),
        outs: Sequence[Any] = (),
        scalars: Sequence[Any] = (),
        shared_mem: int = 0,
        iterations: int = 1,
        timeout: float | None = None,
        stream: Stream | None = None,
        out: Sequence[Array | None] | None = None,
    ) -> list[Array]:
        """Uploads the inputs, runs the kernel and returns the outputs, in the order of the arguments.

        `args` in the kernel's order: `In`, `Out`, `InOut`, NumPy arrays (as `In`), device arrays, values. Or, for
        kernels that take their parameters in this order: `ins`, `outs` (each `(shape, dtype)` or one of the classes)
        and `scalars`. `iterations`: launched so many times in a row, between one upload and one download. `timeout`, in
        seconds, is the kernel's, as in a launch. `out`: for each output an array for it, or None; nothing is written to
        any before the kernel is done.

        Ordered on `stream` like a launch. Raises what is wrong with the dispatch, all of it; errors of earlier commands
        stay where they are.
        """
        given = (args, ins, outs, scalars)
        how = dispatches.How(shared_mem, iterations, timeout, stream)
        job = dispatches.job_of(self, function, grid, block, given, out, how)
        job.carry()
        return [output.host for output in job.outputs]

    def dispatch_async(
        self,
        function: Function,
        grid: Any,
        block: Any,
        args: Sequence[Any] | None = None,
        *,
        ins: Sequence[Any] = (),
        outs: Sequence[Any] = (),
        scalars: Sequence[Any] = (),
        shared_mem: int = 0,
        iterations: int = 1,
        timeout: float | None = None,
        stream: Stream | None = None,
        out: Sequence[Array | None] | None = None,
        timed: bool = False,
        copy: bool = True,
    ) -> PendingDispatch:
        """As `dispatch`, without waiting: see `PendingDispatch`.

        Arrays given as `out` hold the outputs when its `result` has returned. `timed` measures the times on the device.
        Inputs may be changed once this returns; `copy=False` saves a copy of the large ones and asks for them to stay
        as they are until the dispatch is done.
        """
        from hearth.kernels.pending_dispatch import PendingDispatch

        given = (args, ins, outs, scalars)
        how = dispatches.How(shared_mem, iterations, timeout, stream, timed, copy)
        return PendingDispatch(dispatches.job_of(self, function, grid, block, given, out, how))

    # ---- memory ----

    def memory_usage(self) -> MemoryUsage:
        """What this session holds on the device, and what is left."""
        return self._asking_usage().wait()

    def memory_cleanup(self) -> None:
        """Gives unused pool memory back to the device."""
        self._cleaning().wait()

    # ---- published arrays ----

    @telemetry.traced("hearth.publish", telemetry.of_name)
    def publish(self, name: str, array: DeviceArray, tenants: Sequence[str] = ()) -> None:
        """Lets other sessions attach the array under `name`, once the work before is done: those of this tenant, and
        those of `tenants` (``"*"``: of all).

        The array stays usable, read-only. Its name holds the memory: freeing the array does not end it. To publish it
        so once more changes nothing: whoever lost the connection before the answer came can ask again.
        Raises what failed before, and `InvalidHandleError` (``NAME_IN_USE``), `ArgumentError`, `UnsupportedError`.
        """
        self._publications.publish(name, array, tenants)

    def unpublish(self, name: str) -> None:
        """Ends a name of this tenant, whichever of its sessions gave it. Arrays that are attached stay.

        Raises `InvalidHandleError` (``NOT_PUBLISHED``).
        """
        self._publications.unpublish(name)

    @telemetry.traced("hearth.attach", telemetry.of_name)
    def attach(
        self, name: str, tenant: str | None = None, *, shape: shapes.Shape | None = None, dtype: Any = None
    ) -> DeviceArray:
        """The array that `tenant` (None: this session's own) published under `name`, to be read.

        `shape` and `dtype`: how to see it, instead of as its publisher did. Raises `InvalidHandleError`
        (``NOT_PUBLISHED``) where there is none or it is not for this tenant, `ArgumentError` where it does not hold
        such an array.
        """
        return self._publications.attach(self, name, tenant, shape, dtype)

    def published(self) -> list[PublishedArray]:
        """What this session may attach on the device, of its own tenant first."""
        return self._publications.listed()

    # ---- inside ----

    def _from_gpu(self, obj: Any, found: OnGpu, stream: BaseStream | None) -> DeviceArray:
        from hearth.arrays.asarray import copied

        return copied(obj, found, self, stream)

    def _at_host(self, a: DeviceArray) -> Any:
        return a.get()
