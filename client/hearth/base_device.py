"""Abstract devices: properties, new arrays, and commands that are ordered on a device's streams.

Covers everything that `hearth.Device` and `hearth.aio.Device` have in common: state, and commands that are sent one
way. Does not cover calls that wait, nor the classes of modules and streams; each of the two device classes has its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from hearth import dtypes, shapes
from hearth import lazy_numpy as np
from hearth.arrays import host_copy, ranges
from hearth.arrays.allocation import allocate, allocate_many, persistent_memory
from hearth.arrays.base_array import BaseArray
from hearth.arrays.published import Publications
from hearth.base_stream import BaseStream, current, resolve
from hearth.codec.decode import DONE
from hearth.codec.encode import SYNC_ALL
from hearth.errors import ArgumentError, UnsupportedError
from hearth.session.late_errors import NO_STREAM
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from hearth.arrays.asarray import GpuMemory
    from hearth.interfaces import NodeContext
    from hearth.interop.foreign_stream import ForeignStream
    from hearth.progress import Progress
    from hearth.session.connection import Connection
    from hearth.session.reply import Reply
    from hearth.types import DeviceInfo, DeviceProperties
    from hearth_proto.v1 import node_pb2

A = TypeVar("A", bound=BaseArray)
"""The class of the device's arrays."""
S = TypeVar("S", bound=BaseStream)
"""The class of the device's streams."""


class BaseDevice(ABC, Generic[A, S]):
    """Abstract device: properties, new arrays, durability, and the requests whose answers the subclass waits for."""

    _array_type: type[A]
    _stream_type: type[S]

    def __init__(self, node: NodeContext, connection: Connection, opened: node_pb2.Device) -> None:
        self._node = node
        self._connection = connection
        self._opened = opened
        self._properties: DeviceProperties | None = None
        self._default_stream = self._stream_type(connection, default=True)
        self._publications = Publications(connection)

    # ---- attributes ----

    @property
    def node(self) -> Any:
        """The node that the device belongs to."""
        return self._node

    @property
    def ordinal(self) -> int:
        """Number of the device on its node, from 0."""
        return self._connection.ordinal

    @property
    def properties(self) -> DeviceProperties:
        """Name, backend, memory and limits of the device, as they were when the session was opened."""
        if self._properties is None:
            from hearth.types import DeviceProperties

            self._properties = DeviceProperties.of(self._opened.properties)
        return self._properties

    def _repr_html_(self) -> str:
        from hearth import html_repr

        return html_repr.device(self.ordinal, self._node.name, self.properties)

    def __repr__(self) -> str:
        properties = self._opened.properties
        return f"<hearth.Device {self.ordinal}: {properties.name} ({properties.backend}) on {self._node.name}>"

    @property
    def default_stream(self) -> S:
        """The stream of work that names no stream, unless a ``with`` block made another stream current."""
        return self._default_stream

    @property
    def current_stream(self) -> S:
        """The stream that a ``with`` block made current in this thread or task, otherwise the default stream."""
        return cast("S | None", current(self._connection)) or self._default_stream

    # ---- arrays ----

    def asarray(
        self,
        a: Any,
        dtype: Any = None,
        stream: BaseStream | ForeignStream | None = None,
        *,
        blocking: bool = False,
        progress: bool | Progress | None = None,
    ) -> A:
        """Returns `a` as an array on this device: `a` itself if it is on this device already and has that dtype.

        Host arrays are uploaded as by `DeviceArray.set`, which says when that blocks. An array of another device of the
        session is copied, as by `DeviceArray.copy_from`; an array of this session with another dtype is converted, as
        by `DeviceArray.astype`. An array in GPU memory of this process (CuPy, PyTorch) is copied on the GPU, if the
        daemon serves that GPU on this host; `hearth` blocks until that copy is complete.

        Args:
            a: Any object that `np.asarray` accepts or that supports DLPack; an array in this process's GPU memory; a
                device array.
            dtype: Type of the elements; None: that of `a`.
            stream: Stream of the copy; None: the current one. For an array in GPU memory of this process also the CUDA
                stream of this process on which `a` was made: an object with ``__cuda_stream__`` (CuPy, PyTorch,
                cuda.core). The copy then waits for the work of that stream.
            blocking: Blocks until pinned memory has been read. By default the device reads pinned memory
                (`hearth.empty_pinned`, or a C-contiguous part of such an array) in the order of the stream: it must
                stay unchanged until the stream has been synchronized, but it need not be kept alive. Other host arrays
                may be changed as soon as the call returns. An array that is not C-contiguous is copied on the host
                first.
            progress: True for a progress bar, or ``f(done, total)``, called with bytes.

        Returns:
            The array: `a` itself, or a new one.

        Raises:
            DtypeError: `a` cannot be converted to an array, or not to one of that dtype.
            UnsupportedError: `a` belongs to another session, or this process cannot read it.
            ArgumentError: `stream` is no stream, or is a CUDA stream of this process and `a` is not in its GPU memory.
        """
        if isinstance(a, BaseArray):
            if a._device._node._session is not self._node._session:
                raise UnsupportedError(
                    f"{a!r} belongs to another session.",
                    fix="copy through the host, gpu.asarray(x.get()), or use a hearth.Group over both devices.",
                )
            is_own = stream is None or isinstance(stream, BaseStream)
            if is_own and a._connection is self._connection and (dtype is None or shapes.dtype_of(dtype) == a.dtype):
                return cast("A", a)
        return self.array(a, dtype, stream, blocking=blocking, progress=progress)

    def array(
        self,
        obj: Any,
        dtype: Any = None,
        stream: BaseStream | ForeignStream | None = None,
        *,
        blocking: bool = False,
        progress: bool | Progress | None = None,
    ) -> A:
        """Copies `obj` to new memory on this device; otherwise like `asarray`.

        An array of another session, or of a dtype that the device does not convert, is copied through the host:
        `hearth` blocks for that, and `hearth.aio` raises `UnsupportedError`.

        Args:
            obj: Any object that `asarray` accepts.
            dtype: Type of the elements; None: that of `obj`.
            stream: Stream of the copy; None: the current one. See `asarray`.
            blocking: Blocks until pinned memory has been read; see `asarray`.
            progress: True for a progress bar, or ``f(done, total)``, called with bytes.

        Returns:
            The new array.

        Raises:
            DtypeError: `obj` cannot be converted to an array, or not to one of that dtype.
            UnsupportedError: This process cannot read `obj`.
            ArgumentError: See `asarray`.
        """
        if stream is not None and not isinstance(stream, BaseStream):
            from hearth.arrays.asarray import memory_behind

            copy = self._from_gpu(obj, memory_behind(obj, stream), None)
            return copy if dtype is None else copy.astype(shapes.dtype_of(dtype), copy=False)
        if not np.is_imported():  # NumPy, if it is imported, reads the same contents from such buffers
            host = dtypes.host(obj)
            if host is not None and (dtype is None or dtypes.named(dtype) is host.element):
                plain = allocate(self, host.shape, host.element, stream)
                host_copy.write(plain, host.data, stream, progress, blocking)
                return plain
        target = None if dtype is None else shapes.dtype_of(dtype)
        if isinstance(obj, BaseArray):
            from hearth.arrays import device_copy

            same_session = obj._device._node._session is self._node._session
            if same_session and (target is None or target == obj.dtype or device_copy.converts(obj.dtype, target)):
                return device_copy.from_session(self, cast("A", obj), target, stream)
            obj = self._at_host(obj)  # an array of another session; or strings and dates, which only the host converts
        if isinstance(obj, np.ndarray | np.generic | bool | int | float | complex):
            return self._upload(host_copy.array_of(obj, target), stream, progress, blocking)
        from hearth.arrays.asarray import gpu_memory_of, host_array

        memory = gpu_memory_of(obj)
        if memory is not None:
            copy = self._from_gpu(obj, memory, stream)
            return copy if target is None else copy.astype(target, stream, copy=False)
        with host_array(obj, target) as contents:
            return self._upload(contents, stream, progress, blocking)

    def _upload(
        self, host: np.ndarray[Any, Any], stream: BaseStream | None, progress: bool | Progress | None, blocking: bool
    ) -> A:
        result = allocate(self, host.shape, shapes.dtype_of(host.dtype), stream)
        host_copy.write(result, host, stream, progress, blocking)
        return result

    def empty(self, shape: shapes.Shape, dtype: Any = float, stream: BaseStream | None = None) -> A:
        """Makes an array with arbitrary contents.

        Args:
            shape: Elements along each axis: an int or a sequence.
            dtype: Type of the elements; float64 by default.
            stream: Stream of the allocation; None: the current one.

        Returns:
            The new array.

        Raises:
            ArgumentError: The shape has a negative axis, or is too large.
            DtypeError: The shape does not consist of integers, or no device has elements of that type.
        """
        return allocate(self, shapes.shape_of(shape), shapes.type_of(dtype), stream)

    def empty_pitched(self, shape: shapes.Shape, dtype: Any = float, stream: BaseStream | None = None) -> A:
        """Makes an array with arbitrary contents whose rows, along the last axis, are padded to start aligned.

        Rows start `x.pitch` bytes apart. The pitch follows CubeCL: the size of a row is rounded up to a multiple of a
        power of two from 16 to 512 bytes, which grows with the row, so that every row is aligned for vector loads.

        Args:
            shape: Elements along each axis: an int or a sequence.
            dtype: Type of the elements; float64 by default.
            stream: Stream of the allocation; None: the current one.

        Returns:
            The new array.

        Raises:
            ArgumentError: The shape has a negative axis, or is too large.
            DtypeError: The shape does not consist of integers, or no device has elements of that type.
        """
        return allocate(self, shapes.shape_of(shape), shapes.type_of(dtype), stream, pitched=True)

    def empty_many(self, specs: Iterable[tuple[shapes.Shape, Any]], stream: BaseStream | None = None) -> list[A]:
        """Makes several arrays with arbitrary contents in one allocation, which succeeds or fails as a whole.

        Each array is aligned as the device requires. The memory is freed when no array uses it any more.

        Args:
            specs: (shape, dtype) of each array.
            stream: Stream of the allocation; None: the current one.

        Returns:
            The new arrays, in the order of `specs`.

        Raises:
            ArgumentError: A shape has a negative axis, or is too large.
            DtypeError: A shape does not consist of integers, or no device has elements of a type.
        """
        return allocate_many(self, [(shapes.shape_of(shape), shapes.type_of(dtype)) for shape, dtype in specs], stream)

    @contextmanager
    def persistent_memory(self) -> Iterator[None]:
        """Keeps memory that is allocated in the ``with`` block reserved for this session after it is freed.

        The session's later allocations of the same size use it. No other session gets it, even if the device runs out
        of memory, until `memory_cleanup` or the end of the session. The block applies to all of the session's work on
        the device, from every thread; blocks may be nested.
        """
        with persistent_memory(self._connection):
            yield

    def zeros(self, shape: shapes.Shape, dtype: Any = float, stream: BaseStream | None = None) -> A:
        """Makes an array whose bytes are all zero: of numbers 0, empty strings, dates of 1970.

        Args:
            shape: Elements along each axis: an int or a sequence.
            dtype: Type of the elements; float64 by default.
            stream: Stream of the fill; None: the current one.

        Returns:
            The new array.

        Raises:
            ArgumentError: The shape has a negative axis, or is too large.
            DtypeError: The shape does not consist of integers, or no device has elements of that type.
        """
        from hearth.arrays.device_fill import repeat

        array = self.empty(shape, dtype, stream)
        repeat(array, bytes(array.itemsize), stream)
        return array

    def ones(self, shape: shapes.Shape, dtype: Any = float, stream: BaseStream | None = None) -> A:
        """Makes an array of ones.

        Args:
            shape: Elements along each axis: an int or a sequence.
            dtype: Type of the elements; float64 by default.
            stream: Stream of the fill; None: the current one.

        Returns:
            The new array.

        Raises:
            ArgumentError: The shape has a negative axis, or is too large.
            DtypeError: The shape does not consist of integers, or no device has elements of that type.
        """
        return self.full(shape, 1, dtype, stream)

    def full(self, shape: shapes.Shape, fill_value: Any, dtype: Any = None, stream: BaseStream | None = None) -> A:
        """Makes an array of one value.

        Args:
            shape: Elements along each axis: an int or a sequence.
            fill_value: The value of every element.
            dtype: Type of the elements; None: that of `fill_value`.
            stream: Stream of the fill; None: the current one.

        Returns:
            The new array.

        Raises:
            ArgumentError: The shape has a negative axis, or is too large, or `fill_value` is more than one value.
            DtypeError: The shape does not consist of integers, or `fill_value` cannot be an element of that type.
        """
        array = self.empty(shape, shapes.type_of_value(fill_value) if dtype is None else dtype, stream)
        array.fill(fill_value, stream)
        return array

    def arange(
        self, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, stream: BaseStream | None = None
    ) -> A:
        """Makes an array of the numbers of `numpy.arange`, which the host computes.

        Args:
            start: First number; the end if `stop` is None.
            stop: End, excluded; None: the numbers begin at 0 and end before `start`.
            step: Distance between two numbers.
            dtype: Type of the elements; None: NumPy's choice.
            stream: Stream of the copy; None: the current one.

        Returns:
            The new array.

        Raises:
            ArgumentError: There are no such numbers.
            DtypeError: No device has elements of that type.
        """
        return self.array(ranges.arange(start, stop, step, dtype), stream=stream)

    def linspace(
        self, start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None,
        stream: BaseStream | None = None,
    ) -> A:  # fmt: skip
        """Makes an array of the numbers of `numpy.linspace`, which the host computes.

        Args:
            start: First number.
            stop: Last number.
            num: Quantity of numbers, at least 0.
            endpoint: Includes `stop`.
            dtype: Type of the elements; None: NumPy's choice.
            stream: Stream of the copy; None: the current one.

        Returns:
            The new array.

        Raises:
            ArgumentError: There are no such numbers.
            DtypeError: No device has elements of that type.
        """
        return self.array(ranges.linspace(start, stop, num, endpoint, dtype), stream=stream)

    def empty_like(self, a: Any, dtype: Any = None, stream: BaseStream | None = None) -> A:
        """Makes an array with the shape of `a` and arbitrary contents.

        Args:
            a: An array of the host or of a device, or an object that `np.asarray` accepts.
            dtype: Type of the elements; None: that of `a`.
            stream: Stream of the allocation; None: the current one.

        Returns:
            The new array.

        Raises:
            DtypeError: No device has elements of that type.
        """
        return self.empty(*_form_like(a, dtype), stream)

    def zeros_like(self, a: Any, dtype: Any = None, stream: BaseStream | None = None) -> A:
        """Makes an array of zeros with the shape of `a`.

        Args:
            a: An array of the host or of a device, or an object that `np.asarray` accepts.
            dtype: Type of the elements; None: that of `a`.
            stream: Stream of the fill; None: the current one.

        Returns:
            The new array.

        Raises:
            DtypeError: No device has elements of that type.
        """
        return self.zeros(*_form_like(a, dtype), stream)

    def ones_like(self, a: Any, dtype: Any = None, stream: BaseStream | None = None) -> A:
        """Makes an array of ones with the shape of `a`.

        Args:
            a: An array of the host or of a device, or an object that `np.asarray` accepts.
            dtype: Type of the elements; None: that of `a`.
            stream: Stream of the fill; None: the current one.

        Returns:
            The new array.

        Raises:
            DtypeError: No device has elements of that type.
        """
        return self.ones(*_form_like(a, dtype), stream)

    def full_like(self, a: Any, fill_value: Any, dtype: Any = None, stream: BaseStream | None = None) -> A:
        """Makes an array of one value with the shape of `a`.

        Args:
            a: An array of the host or of a device, or an object that `np.asarray` accepts.
            fill_value: The value of every element.
            dtype: Type of the elements; None: that of `a`.
            stream: Stream of the fill; None: the current one.

        Returns:
            The new array.

        Raises:
            ArgumentError: `fill_value` is more than one value.
            DtypeError: `fill_value` cannot be an element of that type.
        """
        shape, dtype = _form_like(a, dtype)
        return self.full(shape, fill_value, dtype, stream)

    # ---- methods that subclasses implement ----

    @abstractmethod
    def RawKernel(
        self, code: str | bytes, name: str, options: Iterable[str] = (), **unsupported: Any
    ) -> Callable[..., None]:
        """Loads one kernel as a separate module; see `hearth.Device.RawKernel`.

        Args:
            code: CUDA C++ source, PTX, CUBIN or fatbin.
            name: Name of the kernel in the code.
            options: Options of the compiler.
            **unsupported: Further keywords of CuPy's `RawKernel`.
        """

    @abstractmethod
    def publish(self, name: str, array: A, tenants: Sequence[str] = (), *, replace: bool = False) -> Any:
        """Publishes an array under a name; see `hearth.Device.publish`.

        Args:
            name: Name within this tenant.
            array: An array of this device.
            tenants: Other tenants that may attach it; ``"*"``: all.
            replace: Ends an earlier publication under the name.
        """

    @abstractmethod
    def _from_gpu(self, obj: Any, memory: GpuMemory, stream: BaseStream | None) -> A:
        """Returns a copy on this device of `obj`, an array in GPU memory of this process."""

    @abstractmethod
    def _at_host(self, a: Any) -> Any:
        """Returns the contents of an array on the host, for a conversion of its dtype that the device does not do."""

    # ---- durable arrays ----

    @overload
    def durable(self, array: A, /, *, durable: bool = True, stream: BaseStream | None = None) -> A: ...
    @overload
    def durable(self, array: A, /, *more: A, durable: bool = True, stream: BaseStream | None = None) -> list[A]: ...
    def durable(self, *arrays: A, durable: bool = True, stream: BaseStream | None = None) -> A | list[A]:
        """Makes arrays durable: when the device process is lost, their contents are restored bit for bit.

        A copy is taken in the daemon's host memory at this point of the stream, and again at each `checkpoint`. The
        stream continues while the copy is taken; only later work that writes to the arrays waits for it. All arrays on
        the same memory (views) are durable together. Each array takes twice its size of host memory, which counts
        against `durable_bytes` of the tenant and the node.

        Until the first copy is complete, which is certain after a `synchronize` has returned, a loss of the device
        loses the array. After that, a loss discards only what was written since the last complete copy:
        `DeviceLostError` reports that once, at the next `synchronize` or `get`, even if no work was in progress.

        Args:
            *arrays: Arrays of this device.
            durable: False ends the durability of the arrays; freeing an array ends it as well.
            stream: Stream that orders the copy; None: the current one.

        Returns:
            The array, or a list of the arrays.

        Raises:
            ArgumentError: There is no array.
            DtypeError: An argument is no device array.
            UnsupportedError: An array belongs to another device or session.
            QuotaExceededError: The copies exceed a limit. Like every failure of a copy, it is raised by the next
                `synchronize`, `flush` or `get`.
        """
        from hearth.arrays.durable import set_durable

        set_durable(self._connection, arrays, durable, stream)
        return arrays[0] if len(arrays) == 1 else list(arrays)

    def checkpoint(self, *arrays: A, stream: BaseStream | None = None) -> None:
        """Takes new copies of durable arrays, as they are at this point of the stream: of all of them, or of none.

        Does not block, and the stream continues while the copies are taken. After a loss, each array has the contents
        of its last complete copy; the copies of this call are complete once a `synchronize` has returned without an
        error. If the producer of an array failed, no copy is taken, and the previous copies remain valid.

        Args:
            *arrays: Durable arrays; none: all durable arrays of this session on the device.
            stream: Stream that orders the copies; None: the current one.

        Raises:
            ArgumentError: An array is not durable.
            DtypeError: An argument is no device array.
            UnsupportedError: An array belongs to another device or session.
        """
        from hearth.arrays.durable import checkpoint

        checkpoint(self._connection, arrays, stream)

    # ---- output ----

    def on_output(self, callback: Callable[[str], object] | None) -> None:
        """Sets the callback for text that this session's kernels print on the device.

        The callback is called by the thread that waits for the device, before its `synchronize` or `get` returns.

        Args:
            callback: Called with the text; None: the text is written to ``sys.stdout``, the default.
        """
        self._connection.kernel_output.callback = callback

    # ---- requests whose answers the subclass waits for ----

    def _request_sync(self) -> Reply:
        connection = self._connection
        attachment = connection._attachment
        if attachment is None or not attachment.alive:
            connection.raise_deferred()
            attachment = connection.attachment()
        reply = attachment.request_serialized(SYNC_ALL, reports=True, barrier=True)
        reply.signalled_result = DONE
        reply.raise_failures = connection.raise_failures
        return reply

    def _request_flush(self, stream: BaseStream | None) -> Reply:
        connection = self._connection
        connection.raise_deferred(NO_STREAM)  # the stream's handle is known only after the device is attached
        attachment = connection.attachment()
        command = commands_pb2.Command(stream=resolve(stream, connection, attachment), flush=commands_pb2.Flush())
        return connection.reporting(command, attachment=attachment)

    def _describe_now(self) -> DeviceInfo:
        for device in self._node._describe().devices:
            if device.ordinal == self.ordinal:
                return device
        raise ArgumentError(
            f"the node no longer has device {self.ordinal}.",
            reason="DEVICE_NOT_FOUND",
            fix="check the devices with node.describe().",
        )

    @property
    def _trace_name(self) -> str:
        return f"device {self.ordinal}: {self.properties.name}"


def _form_like(a: Any, dtype: Any) -> tuple[shapes.Shape, Any]:
    """Returns the shape of `a`, and `dtype`, or if that is None the dtype of `a`.

    Objects that are not arrays have the shape and dtype that NumPy gives them.
    """
    if isinstance(a, BaseArray):
        return a._shape, a._dtype if dtype is None else dtype
    if not (hasattr(a, "shape") and hasattr(a, "dtype")):
        a = host_copy.array_of(a, None)
    return a.shape, a.dtype if dtype is None else dtype
