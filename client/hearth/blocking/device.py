"""Devices whose calls block the calling thread until the device has answered."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hearth import shapes, telemetry
from hearth.arrays.allocation import request_cleanup, request_usage
from hearth.arrays.published import until_published
from hearth.base_device import BaseDevice
from hearth.blocking.array import DeviceArray
from hearth.blocking.stream import Event, Stream, attach_event
from hearth.cupy_names import CupyNames, refusal
from hearth.kernels.dispatch import DispatchOptions, check_keywords, job_of

if TYPE_CHECKING:
    from typing import Literal, Never

    from hearth.arrays.asarray import GpuMemory
    from hearth.arrays.described import PublishedArray
    from hearth.base_stream import BaseStream
    from hearth.blocking.connection import BlockingConnection
    from hearth.blocking.dispatch import PendingDispatch
    from hearth.blocking.function import Function
    from hearth.blocking.graph import Graph, Prepared
    from hearth.blocking.module import RawModule
    from hearth.blocking.node import Node
    from hearth.blocking.profile import Profile, Trace
    from hearth.kernels.bindings import Array
    from hearth.kernels.launch_attributes import LaunchAttributes
    from hearth.types import MemoryUsage


class Device(CupyNames, BaseDevice[DeviceArray, Stream]):
    """A device of a node: makes arrays, modules and streams.

    Returned by `Node.device` and `Node.devices`; keeps its node open.

    The client checks the sizes of new arrays, but the daemon allocates the memory: `OutOfMemoryError` is raised by the
    next sync, read or flush. Calls that are not documented to block wait only while the device is being attached, at
    its first use and after a loss, and while the queue of commands is full. Safe from any thread.
    """

    _connection: BlockingConnection
    _array_type = DeviceArray
    _stream_type = Stream

    if TYPE_CHECKING:

        @property
        def node(self) -> Node:
            """The node that the device belongs to."""
            ...

    @property
    def state(self) -> str:
        """``"starting"``, ``"serving"``, ``"lost"``, ``"fenced"`` or ``"stalled"``. Blocks until the daemon answers."""
        return self._describe_now().state

    @property
    def generation(self) -> int:
        """Number of processes that have served the device. Blocks for one request to the daemon."""
        return self._describe_now().generation

    # ---- code ----

    def RawModule(
        self,
        code: str | bytes | Sequence[str | bytes] | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        options: Iterable[str] = (),
        name_expressions: Iterable[str] | None = None,
        headers: Mapping[str, str] | None = None,
        enable_cooperative_groups: bool = False,
        **cupys: Any,
    ) -> RawModule:
        """Loads CUDA C++ source, PTX, CUBIN or fatbin. Does not wait for the compile.

        Args:
            code: Source text or binary; exclusive with `path`. A list of several, in which each is source, PTX, CUBIN,
                fatbin, LTO-IR, an object or an archive, is linked to one module: device functions and variables that
                one input defines may be declared ``extern`` in the others.
            path: Local file with the code.
            options: Options of the compiler, e.g. ``("-DN=4",)``, for every source. ``-dlto`` optimizes at link time.
            name_expressions: C++ names to instantiate, e.g. ``["scale<float>"]``, in the first source.
            headers: Texts of headers, by their names in the source's ``#include``.
            enable_cooperative_groups: Makes every launch of the module's kernels cooperative.
            **cupys: Further keywords of CuPy's `RawModule` (``backend``, ``jitify``, ``translate_cucomplex``), which
                have no effect; the compile log has a note.

        Returns:
            The module. `RawModule.compile` raises errors of the compiler, or the first call that waits for a kernel.

        Raises:
            ArgumentError: Neither or both of `code` and `path` are given, or the code exceeds the daemon's limit.
            DtypeError: `code` or `options` has a wrong type.
            OSError: The file `path` cannot be read.
            UnsupportedError: There is no such keyword, or it has a value that CuPy does not have.
        """
        # Imported late: the lane of an attached device is opened during the import.
        from hearth.blocking.module import RawModule

        return RawModule(
            self,
            code,
            path=path,
            options=options,
            name_expressions=name_expressions,
            headers=headers,
            enable_cooperative_groups=enable_cooperative_groups,
            **cupys,
        )

    def RawKernel(self, code: str | bytes, name: str, options: Iterable[str] = (), **keywords: Any) -> Function:
        """Loads one kernel as a separate module. Does not wait for the compile.

        Args:
            code: CUDA C++ source, PTX, CUBIN or fatbin.
            name: Name of the kernel in the code.
            options: Options of the compiler.
            **keywords: Further keywords of CuPy's `RawKernel`; see `RawModule`.

        Returns:
            The kernel.

        Raises:
            ArgumentError: `code` and `name` are in the wrong order.
            HearthError: An error that `RawModule` raises.
        """
        from hearth.kernels.base_module import check_order

        check_order(code, name)
        return self.RawModule(code, options=options, **keywords).get_function(name)

    # ---- streams ----

    def stream(self, priority: int | None = None, *, non_blocking: bool = True) -> Stream:
        """Makes a stream. A ``with`` block makes it the current stream of the thread.

        Args:
            priority: CUDA stream priority: lower numbers are more urgent; None: 0.
            non_blocking: CuPy's keyword, without effect: streams wait for each other only for work on the same array.

        Returns:
            The new stream.
        """
        return Stream(self._connection, priority or 0)

    def graph(self, mode: str | int | None = None) -> Graph:
        """Makes a graph, which records launches, copies, fills and conditions: ``with gpu.graph() as g:``.

        After the block, ``g.launch(n)`` runs them. Copies from and to host memory are recorded if it is pinned:
        ``x.set(a)`` and ``x.get(out=a, blocking=False)``. Arrays that are made in the block live as long as the graph.

        Args:
            mode: ``"thread_local"`` (None) or ``"relaxed"``; see `hearth.Stream.begin_capture`.

        Returns:
            The graph, to be entered by ``with``.

        Raises:
            ArgumentError: `mode` is unknown.
        """
        from hearth.blocking.graph import Graph

        return Graph(self._connection, Stream, mode)

    def prepared(self) -> Prepared:
        """Makes prepared launches, which the block collects and checks: ``with gpu.prepared() as p:``.

        After the block, ``p.launch(n)`` runs them.

        Returns:
            The prepared launches, to be entered by ``with``.
        """
        from hearth.blocking.graph import Prepared

        return Prepared(self._connection, Stream)

    def prepare(self, launches: Iterable[Sequence[Any]]) -> Prepared:
        """Checks launches together, which one small command then runs. Blocks until they are checked.

        Args:
            launches: For each launch ``(kernel, grid, block, args)`` or ``(kernel, grid, block, args, shared_mem)``.

        Returns:
            The checked launches, to be run by ``prepared.launch(n)``.

        Raises:
            LaunchError: Launches are invalid; the error lists everything that is wrong with them.
            ArgumentError: `launches` is not iterable, or an entry of it is not such a tuple.
        """
        from hearth.graphs.base_prepared import launch_all

        with self.prepared() as prepared:
            launch_all(launches)
        return prepared

    def pointers(self, targets: Any, stream: Stream | None = None) -> DeviceArray:
        """Makes an array of device addresses, which the daemon writes. Does not block.

        A launch that is passed the array is ordered by its targets as if they were arguments, and the memory of the
        targets is kept until the array is freed. The array cannot be changed, copied on the device, published or made
        durable; after a loss of the device, make it again from arrays that were restored.

        Args:
            targets: For each pointer a device array, `hearth.pointer(x, offset)`, a pair ``(x, offset in bytes)``, or
                None for a null pointer; or a NumPy array of structures whose fields of dtype ``object`` hold these.
            stream: Stream of the allocation and the write; None: the current one.

        Returns:
            The array: of uint64, or of the structure's dtype with uint64 in place of ``object``.

        Raises:
            ArgumentError: There are too many pointers for one command, or an offset is beyond the end of its array.
            LaunchTypeError: A target is not a device array.
            UnsupportedError: A target belongs to another device or session, or the daemon has no arrays of pointers.
            QuotaExceededError: The array reaches more than 4095 other arrays. Raised by the next call that waits.
        """
        from hearth.kernels.pointers import pointer_array

        return pointer_array(self, targets, stream)

    def event(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> Event:
        """Makes an event, to be recorded by `Stream.record`.

        Args:
            block: CuPy's keyword, without effect.
            disable_timing: CuPy's keyword, without effect: every event has a time.
            interprocess: CuPy's keyword: must be False: any event is shared by `Event.publish`.

        Returns:
            The new event.

        Raises:
            UnsupportedAttributeError: `interprocess` is True.
        """
        if interprocess:
            raise refusal("cuda.Event(interprocess=True)")
        return Event(self._connection)

    @telemetry.traced("hearth.attach_event", telemetry.of_name)
    def attach_event(self, name: str, *, wait: float = 0.0) -> Event:
        """Attaches an event that another session of this tenant published: `Event.publish`.

        Blocks until the event is attached. Streams of this session wait for the event's last record, on the device. If
        the publisher's session ends, its submitted work and the event complete. Only the publisher records the event.

        Args:
            name: The published name.
            wait: Seconds to wait until the name is published; 0: it must be published already.

        Returns:
            The event.

        Raises:
            InvalidHandleError: No session publishes an event under the name in this device process (``NOT_PUBLISHED``).
            ArgumentError: `wait` is negative.
            UnsupportedError: The daemon is of an older version.
        """
        return attach_event(self._connection, name, wait)

    @telemetry.traced("hearth.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """Blocks until all work of this session on the device is done.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            HearthError: The first failure since errors were last reported; `HearthError.failures` lists all of them.
            DeviceLostError: The device was lost; raised once for each loss.
            TimeoutError: The work is not done in time; it continues.
        """
        remaining = self._connection.opened(timeout, reports=True)
        self._request_sync().wait(remaining)

    @telemetry.traced("hearth.cancel")
    def cancel(self) -> int:
        """Cancels this session's commands that the device has not begun, as `Stream.cancel` does on each stream.

        Blocks for one request to the device, not for its work. After a Ctrl-C during a wait, it drops all work.

        Returns:
            Number of commands and launches that were cancelled.

        Raises:
            UnsupportedError: The daemon is of an earlier version.
        """
        from hearth.session.cancelling import all_work

        cancelling = all_work(self._connection.current)
        return 0 if cancelling is None else cancelling.wait()

    @telemetry.traced("hearth.flush")
    def flush(self, stream: Stream | None = None, timeout: float | None = None) -> None:
        """Blocks until everything submitted before has been handed to the device. Does not wait for the work itself.

        Args:
            stream: Stream whose failures are reported; None: the current one.
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            HearthError: A command of the stream failed.
            TimeoutError: The commands are not handed to the device in time.
        """
        remaining = self._connection.opened(timeout, reports=True)
        self._request_flush(stream).wait(remaining)

    def profile(self, stream: Stream | None = None) -> Profile:
        """Measures the time that the work of a ``with`` block takes.

        The end of the block blocks until the work is done.

        Args:
            stream: Stream whose work is measured; None: the current one.

        Returns:
            The profile, to be entered by ``with``; its times are available after the block.
        """
        from hearth.blocking.profile import Profile

        return Profile(self._connection, stream)

    def trace(self, max_events: int | None = None) -> Trace:
        """Records every command during a ``with`` block, on all streams.

        The end of the block blocks until the work is done.

        Args:
            max_events: Number of commands after which further ones are not recorded; None: the daemon's default.

        Returns:
            The trace, to be entered by ``with``; its events are available after the block.

        Raises:
            ArgumentError: `max_events` is not an integer from 1 to 2**32 - 1.
        """
        from hearth.blocking.profile import Trace

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
        mode: str = "checked",
        cooperative: bool | Literal["fit"] = False,
        cluster: Any = None,
        attributes: LaunchAttributes | None = None,
        **unknown: Never,
    ) -> list[Array]:
        """Uploads the inputs, runs the kernel and returns the outputs, in the order of the arguments.

        Blocks until the outputs have arrived. Ordered on the stream like a launch. Reports no earlier failures.

        Args:
            function: The kernel.
            grid: Blocks along each axis, as in a launch.
            block: Threads along each axis, as in a launch.
            args: Arguments in the kernel's order: `In`, `Out`, `InOut`, NumPy arrays (as `In`), device arrays, values.
            ins: Instead of `args`: host arrays, for a kernel that takes inputs, outputs and scalars in this order.
            outs: Instead of `args`: outputs, each ``(shape, dtype)`` or one of the classes above.
            scalars: Instead of `args`: values.
            shared_mem: Dynamic shared memory in bytes.
            iterations: Number of launches between the upload and the download.
            timeout: Seconds that the kernel may take before the device process is ended; None: the session's limit.
            stream: Stream to run on; None: the current one.
            out: For each output an array to fill after the kernel is done, or None for a new one.
            mode: ``"checked"``, ``"validate"`` or ``"unchecked"``, as in a launch.
            cooperative: Makes the whole grid resident together, as in a launch; ``"fit"`` reduces a larger grid.
            cluster: Blocks of a cluster along each axis, as in a launch; None: no clusters.
            attributes: Attributes of every launch of the kernel, as in a launch; None: none.
            **unknown: No other keyword is accepted.

        Returns:
            The outputs as host arrays.

        Raises:
            LaunchError: The dispatch is invalid; the error lists everything that is wrong.
            ArgumentError, DtypeError: An argument or an array of `out` does not match.
        """
        check_keywords(self.dispatch, unknown)
        options = DispatchOptions(shared_mem, iterations, timeout, stream, mode, cooperative, cluster, attributes)
        job = job_of(self, function, grid, block, (args, ins, outs, scalars), out, options)
        job.run()
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
        mode: str = "checked",
        cooperative: bool | Literal["fit"] = False,
        cluster: Any = None,
        attributes: LaunchAttributes | None = None,
        **unknown: Never,
    ) -> PendingDispatch:
        """Sends a dispatch, like `dispatch`, without waiting for it.

        Args:
            function: The kernel.
            grid: Blocks along each axis, as in a launch.
            block: Threads along each axis, as in a launch.
            args: Arguments in the kernel's order; see `dispatch`.
            ins: Instead of `args`: inputs.
            outs: Instead of `args`: outputs.
            scalars: Instead of `args`: values.
            shared_mem: Dynamic shared memory in bytes.
            iterations: Number of launches between the upload and the download.
            timeout: Seconds that the kernel may take before the device process is ended; None: the session's limit.
            stream: Stream to run on; None: the current one.
            out: For each output an array to fill by the end of `PendingDispatch.result`, or None for a new one.
            timed: Measures the times on the device, for `PendingDispatch.timing`.
            copy: True copies large inputs, so that they may be changed immediately; False: they must stay unchanged
                until the dispatch is done.
            mode: ``"checked"``, ``"validate"`` or ``"unchecked"``, as in a launch.
            cooperative: Makes the whole grid resident together, as in a launch; ``"fit"`` reduces a larger grid.
            cluster: Blocks of a cluster along each axis, as in a launch; None: no clusters.
            attributes: Attributes of every launch of the kernel, as in a launch; None: none.
            **unknown: No other keyword is accepted.

        Returns:
            The pending dispatch.

        Raises:
            LaunchError: The client has found the dispatch invalid. Other errors are raised by `PendingDispatch.result`.
            ArgumentError, DtypeError: An argument or an array of `out` does not match.
        """
        check_keywords(self.dispatch_async, unknown)
        from hearth.blocking.dispatch import PendingDispatch

        options = DispatchOptions(
            shared_mem, iterations, timeout, stream, mode, cooperative, cluster, attributes, timed, copy
        )
        return PendingDispatch(job_of(self, function, grid, block, (args, ins, outs, scalars), out, options))

    # ---- contents and memory ----

    @telemetry.traced("hearth.get")
    def get(
        self,
        arrays: Sequence[DeviceArray],
        stream: Stream | None = None,
        *,
        out: Sequence[Array | None] | None = None,
        timeout: float | None = None,
    ) -> list[Array]:
        """Copies several arrays of this device to host memory, after the earlier work on `stream` and on the arrays.

        Blocks once, until the contents of all arrays have arrived: reads of small arrays (up to 64 KiB) are sent
        together, which is several times as fast as `DeviceArray.get` for each.

        Args:
            arrays: The arrays, in any number; views too.
            stream: Stream that orders the reads; None: the current one.
            out: For each array a host array of the same shape and dtype to fill, or None for a new one; None: new ones.
            timeout: Seconds to wait at most for all arrays together; None: no limit.

        Returns:
            The host arrays, in the order of `arrays`.

        Raises:
            HearthError: The error of the first array that could not be read. Its notes name each array that could not
                be read, with its error; the other entries of `out` may have been filled.
            TimeoutError: The contents have not arrived in time.
            ArgumentError: An array belongs to another device, or `out` does not match.
            DtypeError: An entry of `arrays` is no device array.
        """
        from hearth.arrays.many_reads import read_all

        return read_all(self._connection, arrays, stream, out, self._connection.opened(timeout, reports=True))

    def memory_usage(self) -> MemoryUsage:
        """Returns the memory that this session holds on the device, and the free memory. Blocks for one request."""
        return request_usage(self._connection).wait()

    def memory_cleanup(self) -> None:
        """Returns unused memory of the memory pools to the device. Blocks until that is done."""
        request_cleanup(self._connection).wait()

    # ---- published arrays ----

    @telemetry.traced("hearth.publish", telemetry.of_name)
    def publish(self, name: str, array: DeviceArray, tenants: Sequence[str] = (), *, replace: bool = False) -> None:
        """Lets other sessions attach an array under a name, after the earlier work is done.

        Blocks until the array is published. The array remains usable, but read-only. The name keeps the memory: freeing
        the array does not end the publication. Publishing the same array under the same name again changes nothing, so
        a call whose connection broke can be repeated.

        Args:
            name: Name within this tenant.
            array: An array of this device.
            tenants: Other tenants that may attach it; ``"*"``: all.
            replace: Ends an earlier publication under the name, by any session of this tenant, at the moment at which
                the array is published. Arrays that are attached already remain usable.

        Raises:
            InvalidHandleError: The name is in use (``NAME_IN_USE``); the message names the session that published it.
            ArgumentError: The array cannot be published, e.g. because it is part of a buffer, or the name is invalid.
            DtypeError: `array` is no device array.
            UnsupportedError: The daemon does not publish arrays, the array belongs to another device or session, or its
                dtype cannot be described by a name.
        """
        self._publications.publish(name, array, tenants, replace)

    def unpublish(self, name: str) -> None:
        """Ends a publication under a name of this tenant, by any of its sessions.

        Attached arrays remain usable. Blocks for one request to the daemon.

        Args:
            name: The published name.

        Raises:
            InvalidHandleError: There is no such name (``NOT_PUBLISHED``).
        """
        self._publications.unpublish(name)

    @telemetry.traced("hearth.attach", telemetry.of_name)
    def attach(
        self,
        name: str,
        tenant: str | None = None,
        *,
        shape: shapes.Shape | None = None,
        dtype: Any = None,
        wait: float = 0.0,
    ) -> DeviceArray:
        """Attaches a published array, read-only. Blocks until the array is attached.

        Args:
            name: The published name.
            tenant: Tenant that published it; None: this session's own.
            shape: Shape to view the memory with; None: the publisher's.
            dtype: Element type to view the memory with; None: the publisher's.
            wait: Seconds to wait until the name is published; 0: it must be published already.

        Returns:
            The array.

        Raises:
            InvalidHandleError: There is no such name, or it is not published to this tenant (``NOT_PUBLISHED``).
            ArgumentError: The memory does not have the size of an array of that shape and dtype, or `wait` is negative.
            BufferLostError: The device process was lost during the call.
        """
        attach = partial(self._publications.attach, self, name, tenant, shape, dtype)
        return until_published(wait, attach)

    def published(self) -> list[PublishedArray]:
        """Lists the arrays that this session may attach, beginning with those of the session's tenant.

        Blocks until the daemon has answered.

        Returns:
            A description of each array.
        """
        return self._publications.listed()

    # ---- internals ----

    def _from_gpu(self, obj: Any, memory: GpuMemory, stream: BaseStream | None) -> DeviceArray:
        from hearth.arrays.asarray import copy_to_device

        return copy_to_device(obj, memory, self, stream)

    def _at_host(self, a: DeviceArray) -> Any:
        return a.get()
