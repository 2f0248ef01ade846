"""A device of a node, for asyncio."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from hearth import shapes, telemetry
from hearth.aio import transfers
from hearth.aio.array import DeviceArray
from hearth.aio.event_loop import in_loop
from hearth.aio.module import Function, RawModule
from hearth.aio.stream import Event, Stream
from hearth.arrays import host_copy
from hearth.arrays.allocation import allocate
from hearth.base_device import BaseDevice
from hearth.errors import UnsupportedError
from hearth.kernels.dispatch import How, job_of

if TYPE_CHECKING:
    from hearth.aio.connection import LoopAttachment, LoopConnection
    from hearth.aio.dispatch import PendingDispatch
    from hearth.aio.graph import Graph, Prepared
    from hearth.aio.node import Node
    from hearth.aio.profile import Profile, Trace
    from hearth.arrays.asarray import OnGpu
    from hearth.arrays.described import PublishedArray
    from hearth.base_stream import BaseStream
    from hearth.kernels.bindings import Array
    from hearth.types import DeviceInfo, MemoryUsage


class Device(BaseDevice[DeviceArray, Stream]):
    """The asyncio counterpart of `hearth.Device`.

    Arrays, modules, streams and launches are made by plain calls, as there, which never wait; calls that wait are
    awaited. See `hearth.aio` for how much may be submitted, and `ready`.
    """

    _connection: LoopConnection
    _array_type = DeviceArray
    _stream_type = Stream

    if TYPE_CHECKING:

        @property
        def node(self) -> Node: ...

    async def ready(self) -> None:
        """Returns when plain calls succeed: the device is attached, also again after a loss, and its queue has room.

        To be awaited now and then by a program that submits much, as a stream writer's `drain`; and after a
        `DeviceLostError`, before the next array.

        Raises:
            UnavailableError: The device is not there within the node's `timeout`.
        """
        await self._connection.ready()

    # ---- what is awaited ----

    async def state(self) -> str:
        """Returns ``"starting"``, ``"serving"``, ``"lost"``, ``"fenced"`` or ``"stalled"``, from the daemon."""
        return (await self._known()).state

    async def generation(self) -> int:
        """Returns the number of processes that have served the device, from the daemon."""
        return (await self._known()).generation

    async def _known(self) -> DeviceInfo:
        return await self._connection.home.call(self._now)

    @telemetry.traced("hearth.synchronize")
    async def synchronize(self, timeout: float | None = None) -> None:
        """Returns when all work of this session on the device is done; see `hearth.Device.synchronize`."""
        connection = self._connection
        await connection.opened()
        await connection.home.answer(self._synchronizing(), timeout)
        connection.raise_deferred()

    @telemetry.traced("hearth.flush")
    async def flush(self, stream: Stream | None = None, timeout: float | None = None) -> None:
        """Returns when everything submitted before is handed to the device; see `hearth.Device.flush`."""
        await self._connection.opened()
        await self._connection.home.answer(self._flushing(stream), timeout)

    async def memory_usage(self) -> MemoryUsage:
        """Returns the memory that this session holds on the device, and what is free."""
        await self._connection.opened()
        return await self._connection.home.asked(self._asking_usage())

    async def memory_cleanup(self) -> None:
        """Returns unused memory of the pools to the device."""
        await self._connection.opened()
        await self._connection.home.answer(self._cleaning())

    async def prepare(self, launches: Iterable[Sequence[Any]]) -> Prepared:
        """Checks launches together; arguments and errors of `hearth.Device.prepare`."""
        from hearth.kernels.prepared import launch_all

        async with self.prepared() as prepared:
            launch_all(launches)
        return prepared

    @telemetry.traced("hearth.publish", telemetry.of_name)
    async def publish(self, name: str, array: DeviceArray, tenants: Sequence[str] = ()) -> None:
        """Publishes an array; see `hearth.Device.publish`. Where this is cancelled, it may take effect all the same."""
        await self._connection.opened()
        await self._connection.home.call(partial(self._publications.publish, name, array, tenants))

    async def unpublish(self, name: str) -> None:
        """Ends a name of this tenant; see `hearth.Device.unpublish`."""
        await self._connection.home.call(partial(self._publications.unpublish, name))

    @telemetry.traced("hearth.attach", telemetry.of_name)
    async def attach(
        self, name: str, tenant: str | None = None, *, shape: shapes.Shape | None = None, dtype: Any = None
    ) -> DeviceArray:
        """Attaches a published array; arguments and errors of `hearth.Device.attach`."""
        await self._connection.until_attached()  # whose generation the array is of
        attach = partial(self._publications.attach, self, name, tenant, shape, dtype)
        return await self._connection.home.call(attach, undo=lambda array: array.free())

    async def published(self) -> list[PublishedArray]:
        """Lists the arrays that this session may attach, its tenant's own first."""
        await self._connection.opened()
        return await self._connection.home.call(self._publications.listed)

    @telemetry.traced("hearth.dispatch", telemetry.of_dispatch)
    async def dispatch(
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
        """Uploads the inputs, runs the kernel and returns the outputs; arguments and errors of
        `hearth.Device.dispatch`.

        Inputs must stay unchanged until it returns. Where this is cancelled, the dispatch continues, without a report,
        and leaves `out` as it is.
        """
        from hearth.aio.dispatch import PendingDispatch

        await self._connection.opened()
        how = How(shared_mem, iterations, timeout, stream, apart=True)
        job = job_of(self, function, grid, block, (args, ins, outs, scalars), out, how)
        return await PendingDispatch(job, take=True)._run()

    # ---- what is not ----

    def dispatch_async(
        self,
        function: Any,
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
        """Sends a dispatch without waiting for it; arguments and errors of `hearth.Device.dispatch_async`."""
        from hearth.aio.dispatch import PendingDispatch

        how = How(shared_mem, iterations, timeout, stream, timed, copy)
        return PendingDispatch(job_of(self, function, grid, block, (args, ins, outs, scalars), out, how))

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
        """Loads code; arguments and errors of `hearth.Device.RawModule`."""
        return RawModule(
            self,
            code,
            path=path,
            options=options,
            name_expressions=name_expressions,
            headers=headers,
            **unsupported,
        )

    def stream(self, priority: int = 0) -> Stream:
        """Makes a stream. ``with`` makes it the current one of the task.

        Args:
            priority: CUDA's stream priority: lower numbers are more urgent; 0 is the default.
        """
        return Stream(self._connection, priority)

    def RawKernel(self, code: str | bytes, name: str, options: Iterable[str] = (), **unsupported: Any) -> Function:
        """Loads one kernel as a separate module; arguments of `hearth.Device.RawKernel`."""
        return self.RawModule(code, options=options, **unsupported).get_function(name)

    def event(self) -> Event:
        """Makes an event, to be recorded by `Stream.record`."""
        return Event(self._connection)

    def graph(self) -> Graph:
        """Makes a graph: ``async with gpu.graph() as g:`` records the block; then ``g.launch(n)``."""
        from hearth.aio.graph import Graph

        return Graph(self._connection)

    def prepared(self) -> Prepared:
        """Makes a list: ``async with gpu.prepared() as p:`` collects launches; then ``p.launch(n)``."""
        from hearth.aio.graph import Prepared

        return Prepared(self._connection)

    def profile(self, stream: Stream | None = None) -> Profile:
        """Measures the time of the work of an ``async with`` block.

        Args:
            stream: Stream whose work is measured; None: the current one.
        """
        from hearth.aio.profile import Profile

        return Profile(self._connection, stream)

    def trace(self, max_events: int | None = None) -> Trace:
        """Records every command of an ``async with`` block, of all streams.

        Args:
            max_events: Number of commands after which further ones are dropped; None: the daemon's default.
        """
        from hearth.aio.profile import Trace

        return Trace(self._connection, self._trace_name, max_events)

    def _from_gpu(self, obj: Any, found: OnGpu, stream: BaseStream | None) -> DeviceArray:
        from hearth.arrays.asarray import copied, local_gpu
        from hearth.transport.memory_segments import address_of

        if not in_loop():  # a plain call of another thread, which may wait
            return copied(obj, found, self, stream)
        here = local_gpu(obj, self)
        fresh = allocate(self, found.shape, shapes.dtype_of(found.dtype), stream)
        if fresh.nbytes:
            attachment = fresh._usable()
            part = host_copy.part_of(fresh, attachment, stream)

            def read(into: memoryview) -> None:
                here.copy(address_of(into), found.address, len(into), found.stream)
                del keep[:]

            keep = [obj]  # until it was read
            transfers.upload_read(self._connection, cast("LoopAttachment", attachment), part, fresh.nbytes, read)
        return fresh

    def _at_host(self, a: Any) -> Any:
        raise UnsupportedError(
            f"{a!r} becomes another dtype on the host, and an event loop cannot wait for that in this call.",
            reason="UNSUPPORTED",
            fix="gpu.asarray(await x.get(), dtype).",
        )
