"""Abstract arrays on a device, with CuPy's and NumPy's names, in contiguous memory or with strides along any axes.

Covers everything that `hearth.DeviceArray` and `hearth.aio.DeviceArray` have in common: state, views, and commands that
are sent one way. Does not cover calls that wait; each of the two array classes has its own.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from hearth import dtypes, shapes, telemetry
from hearth import lazy_numpy as np
from hearth.arrays import host_copy
from hearth.arrays.allocation import allocate
from hearth.arrays.arithmetic import missing, no_array, refusal, refuse_operators, unpicklable
from hearth.dtypes import Element
from hearth.errors import UnsupportedError
from hearth.session.memory import DeviceOperand, Memory
from hearth.transport.spin_wait import UP
from hearth_proto import layouts

if TYPE_CHECKING:
    from typing import Self, Unpack

    from hearth.arrays.astype import Casting
    from hearth.arrays.tensor_map import Im2col, Im2colWide, Options, TensorMap
    from hearth.arrays.views import Flags
    from hearth.base_stream import BaseStream
    from hearth.dtypes import Dtype
    from hearth.interfaces import DeviceContext
    from hearth.progress import Progress
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.transfer.pinned_copy import PinnedCopy
    from hearth.transfer.plan import BufferRegion


@refuse_operators
class BaseArray(DeviceOperand):
    """Abstract array in a device's memory: shape, dtype, views and the commands that do not wait.

    See `hearth.DeviceArray` for the buffer that views share, and for arrays as arguments of kernels.
    """

    __slots__ = (
        "__weakref__", "_connection", "_copies", "_device", "_dtype", "_nbytes", "_rows", "_shape", "_strides",
    )  # fmt: skip

    _connection: Connection
    _dtype: Dtype
    """The dtype, or an `Element` until `dtype` is first read."""

    def __init__(
        self,
        device: DeviceContext[Any],
        memory: Memory,
        offset: int,
        shape: tuple[int, ...],
        dtype: Dtype,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self._device = device
        self._connection = device._connection
        self._memory = memory
        self._offset = offset
        self._shape = shape
        self._dtype = dtype
        self._nbytes = math.prod(shape) * dtype.itemsize
        self._strides = strides
        """Bytes from one element to the next along each axis; None: C order."""
        self._copies: host_copy.PinnedCopies | None = None
        self._rows: layouts.RowLayout | layouts.StrideLayout | None = None
        """The rows of the array, relative to its start, or other strides; None: the array is contiguous."""
        if strides is not None:
            rows = layouts.rows_of(shape, strides, dtype.itemsize)
            if rows is None:
                self._rows = layouts.StrideLayout(shape, strides, dtype.itemsize)
            elif not rows.dense:
                self._rows = rows

    # ---- attributes ----

    @property
    def device(self) -> Any:
        """The device whose memory holds the array."""
        return self._device

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element."""
        dtype = self._dtype
        if isinstance(dtype, Element):
            self._dtype = dtype = dtype.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self._shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self._dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        if self._strides is not None:
            return self._strides
        return layouts.strides_of(self._shape, self._dtype.itemsize)

    @property
    def pitch(self) -> int:
        """Bytes from the start of one row (along the last axis) to the start of the next."""
        if self.ndim < 2:
            return self.nbytes if self._strides is None else self.strides[-1] * self._shape[-1]
        return self.strides[-2]

    @property
    def flags(self) -> Flags:
        """Memory layout by NumPy's names: ``x.flags.c_contiguous``."""
        from hearth.arrays import views

        return views.flags(self)

    @property
    def durable(self) -> bool:
        """True if the array is restored after a loss of the device: see `Device.durable`."""
        return self._memory.owner is not None and self._memory in self._connection.durables

    def __repr__(self) -> str:
        freed = ", freed" if self._memory.owner is None else ""
        return f"DeviceArray(shape={self._shape}, dtype={self._dtype}, device={self._device.ordinal}{freed})"

    def _repr_html_(self) -> str:
        from hearth import html_repr

        device = self._device
        location = f"{device.ordinal}: {device.properties.name} ({device.properties.backend}) on {device._node.name}"
        rows: list[tuple[str, object]] = [
            ("shape", self.shape),
            ("dtype", self.dtype),
            ("size", html_repr.size(self.nbytes)),
            ("device", location),
        ]
        if not self.flags.c_contiguous:
            rows.append(("strides", self.strides))
        states = {
            "freed": self._memory.owner is None,
            "lost": self._memory.space.lost and not self.durable,
            "read-only": self._memory.read_only,
            "durable": self.durable,
        }
        if any(states.values()):
            rows.append(("state", ", ".join(state for state, holds in states.items() if holds)))
        return html_repr.pairs("DeviceArray", rows)

    # ---- views ----

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of an array without axes")
        return self._shape[0]

    def __iter__(self) -> Iterator[Self]:
        """Iterates over views along the first axis: rows, or elements if there is only one axis."""
        if not self._shape:
            raise TypeError("an array without axes cannot be iterated over; x.item() returns its element")
        return (self[row] for row in range(self._shape[0]))

    def __getitem__(self, index: Any) -> Self:
        """Returns a view of the selected elements.

        Integers, slices, `...` and None work as in NumPy: ``x[2:5]``, ``x[:, 3:7]``, ``x[..., 0]``, ``x[::-2, 1::3]``.
        A single element is a view without axes: ``x[3].item()`` reads it. The name of a field of a structured dtype
        selects the field of each element: ``x["a"]``.

        Raises:
            IndexError: The index is out of range, or names a field and the elements have none.
            ArgumentError: The elements have no field of that name.
            UnsupportedError: The index is a mask or a list, also of fields.
        """
        if index is Ellipsis:
            return self._view(0, self._shape, self._dtype, self._strides)
        if isinstance(index, str):
            from hearth.arrays import views

            return views.field(self, index)
        from hearth.arrays import strided

        selection = strided.select(self._shape, self.strides, index)
        return self._view(selection.offset, selection.shape, self._dtype, selection.strides)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Self:
        """Returns the array with another shape: a view where NumPy makes one, otherwise a copy on the device.

        Args:
            *shape: Elements along each axis, as one tuple or several ints; one may be -1.
            order: Order in which elements are taken and placed: ``"C"``, ``"F"``, or ``"A"``, which is ``"F"`` if the
                array is contiguous in that order only.
            copy: True: always a copy; False: never; None: if necessary.

        Returns:
            The view, which shares the array's memory, or the copy.

        Raises:
            ArgumentError: The shape does not have `size` elements, or `order` is unknown.
            UnsupportedError: `copy` is False, and the shape needs a copy.
        """
        from hearth.arrays import views

        axes = shapes.axes_of(shape[0]) if len(shape) == 1 else shape
        return views.reshaped(self, tuple(axes), order, copy)

    def ravel(self, order: str = "C") -> Self:
        """Returns the elements contiguously along one axis: a view if the array has them so, otherwise a copy.

        Args:
            order: Order of the elements: ``"C"``, ``"F"`` or ``"A"``.

        Raises:
            ArgumentError: `order` is unknown.
        """
        flat = self.reshape(self.size, order=order)
        return flat if flat.flags.c_contiguous else self.reshape(self.size, order=order, copy=True)

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> Self:
        """Returns a view without axes of length 1.

        Args:
            axis: The axes to leave out; None: all of length 1.

        Returns:
            The view, which shares the array's memory.

        Raises:
            ArgumentError: An axis in `axis` is longer than 1.
            IndexError: There is no such axis.
        """
        shape, strides = shapes.squeezed(self._shape, self._strides, axis)
        return self._view(0, shape, self._dtype, strides)

    @property
    def T(self) -> Self:
        """The array with its axes in reverse order: see `transpose`."""
        return self.transpose()

    def transpose(self, *axes: int | Sequence[int] | None) -> Self:
        """Returns a view with the axes in another order.

        Args:
            *axes: The order, as one tuple or several ints; none: reverse order.

        Returns:
            The view, which shares the array's memory; a kernel receives the address of its first element.

        Raises:
            ArgumentError: `axes` does not name each axis once.
            IndexError: There is no such axis.
        """
        from hearth.arrays import views

        return views.ordered(self, shapes.permutation(len(self._shape), axes))

    def swapaxes(self, axis1: SupportsIndex, axis2: SupportsIndex) -> Self:
        """Returns a view in which two axes have changed places.

        Args:
            axis1: An axis; a negative one is counted from the end.
            axis2: The other axis.

        Raises:
            IndexError: There is no such axis.
        """
        from hearth.arrays import views

        return views.ordered(self, shapes.swapped(len(self._shape), axis1, axis2))

    def moveaxis(self, source: Any, destination: Any) -> Self:
        """Returns a view in which axes have moved to other positions, as `numpy.moveaxis` does.

        Args:
            source: Axis or axes to move.
            destination: New position of each of them.

        Raises:
            ArgumentError: The two differ in length, or name an axis twice.
            IndexError: There is no such axis.
        """
        from hearth.arrays import views

        return views.ordered(self, shapes.moved(len(self._shape), source, destination))

    def view(self, dtype: Any) -> Self:
        """Returns a view of the same bytes as elements of another dtype.

        Args:
            dtype: Type of the elements. If its size differs, the length of the last axis, which must be contiguous,
                changes as in NumPy.

        Returns:
            The view, which shares the array's memory.

        Raises:
            ArgumentError: The last axis is not contiguous, or its bytes are not a multiple of the new element's size.
            DtypeError: No device has elements of that type, or the type has another byte order than this machine.
        """
        from hearth.arrays import views

        dense = self._rows is None
        shape, new_dtype, strides = views.reinterpreted(self._shape, self._strides, self._dtype, dtype, dense=dense)
        return self._view(0, shape, new_dtype, strides)

    # ---- writes ----

    def set(
        self,
        a: Any,
        stream: BaseStream | None = None,
        *,
        blocking: bool = False,
        progress: bool | Progress | None = None,
    ) -> None:
        """Overwrites the array with a host array.

        Sent one way. Above the daemon's `max_inline_bytes` (1 MiB by default), `hearth` blocks until the bytes are
        transferred, possibly after earlier work, and raises errors of the transfer; `hearth.aio` never blocks.

        Args:
            a: An array of the same shape and dtype.
            stream: Stream that orders the write; None: the current one.
            blocking: Blocks until pinned memory has been read. By default the device reads pinned memory
                (`hearth.empty_pinned`) in the order of the stream, and the memory must stay unchanged until the stream
                has been synchronized. Other arrays may be changed as soon as this call returns.
            progress: True for a progress bar, or ``f(done, total)``, called with bytes.

        Raises:
            ArgumentError: The shapes differ.
            DtypeError: The dtypes differ, or `a` cannot be converted to an array.
        """
        copies = self._copies
        if copies is not None and progress is None and not telemetry.is_enabled():
            copy = copies.find(self, a, UP, stream, blocking)
            if copy is not None:
                if not blocking:
                    copy.begin(a)
                    return
                if copy.run(a):
                    return
        if not np.is_imported():
            buffer = dtypes.host(a)
            if buffer is not None and buffer.element is self._dtype and buffer.shape == self._shape:
                host_copy.write(self, buffer.data, stream, progress, blocking)
                return
        dtype = self.dtype
        host = a if isinstance(a, np.ndarray) else host_copy.array_of(a, dtype)
        host_copy.check_source(self, host)
        host_copy.write(self, host, stream, progress, blocking)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Sets ``x[index]`` to a number, a host array or a device array, converted and broadcast as in NumPy.

        Sent one way, a host array as by `set`; a device array is copied on the device and not through the host.

        Raises:
            IndexError: The index is out of range, or names a field and the elements have none.
            ArgumentError: The shape of the value does not match, or the elements have no such field.
            DtypeError: The dtype of the value cannot be converted.
            UnsupportedError: A device array belongs to another session, or the index selects no view: see ``x[index]``.
        """
        from hearth.arrays.setitem import assign, assign_array

        if isinstance(value, BaseArray):
            assign_array(self[index], value)
        else:
            assign(self[index], value)

    def fill(self, value: Any, stream: BaseStream | None = None) -> None:
        """Sets every element to one value. Sent one way: does not block.

        Args:
            value: The value, converted to the array's dtype.
            stream: Stream that orders the fill; None: the current one.

        Raises:
            ArgumentError: `value` is more than one value.
            DtypeError: `value` cannot be converted to the array's dtype.
        """
        from hearth.arrays.device_fill import fill

        fill(self, value, stream)

    def copy_from(self, other: BaseArray, stream: BaseStream | None = None) -> None:
        """Overwrites the array with a device array of the same shape and dtype. Sent one way: does not block.

        If the two arrays overlap in memory, the source is copied to new memory first.

        `other` may be on another device of the session. Such a copy needs the same right as one within a device,
        `allocate`.

        Args:
            other: The source.
            stream: Stream of this array's device that orders the copy; None: the current one. If `other` is on another
                device, the current stream of that device is used there.

        Raises:
            UnsupportedError: `other` belongs to another session.
            ArgumentError: The shape or dtype differs.
            DtypeError: `other` is not a device array.
            LaunchError: The copy cannot be recorded in a graph.
        """
        if not isinstance(other, BaseArray):
            raise no_array(other)
        from hearth.arrays.device_copy import copy_into

        copy_into(self, other, stream)

    # ---- new arrays ----

    def copy(self, stream: BaseStream | None = None, *, order: str = "C") -> Self:
        """Copies the array to new memory without gaps on the same device. Sent one way: does not block.

        Args:
            stream: Stream that orders the copy; None: the current one.
            order: Order of the elements in the new memory: ``"C"``, ``"F"`` or ``"A"``; see `reshape`.

        Returns:
            The new array.

        Raises:
            ArgumentError: `order` is unknown.
        """
        if order != "C":
            from hearth.arrays import views

            return views.copied(self, stream, order)
        self._usable()
        result: Self = allocate(self._device, self._shape, self._dtype, stream)
        result.copy_from(self, stream)
        return result

    def flatten(self, stream: BaseStream | None = None, *, order: str = "C") -> Self:
        """Copies the array to new memory on the same device, with one axis. Sent one way: does not block.

        Args:
            stream: Stream that orders the copy; None: the current one.
            order: Order of the elements: ``"C"``, ``"F"`` or ``"A"``; see `reshape`.

        Returns:
            The new array.
        """
        return self.copy(stream, order=order).ravel(order)

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Self:
        return self.copy()

    def astype(
        self, dtype: Any, stream: BaseStream | None = None, *, casting: Casting = "unsafe", copy: bool = True
    ) -> Self:
        """Copies the array on the same device with its elements converted to another dtype.

        Sent one way; the conversion is done by a kernel that the daemon compiles once for each pair of dtypes.
        Booleans, integers, floats of 16 (also bfloat16), 32 and 64 bits, and complex numbers can be converted; the
        conversion of a complex number to a real dtype takes its real part. A value that the new dtype cannot represent
        is converted as C++ does on the device.

        Args:
            dtype: Type of the new elements.
            stream: Stream that orders the conversion; None: the current one.
            casting: Conversions that are allowed, as in NumPy; ``"unsafe"``: all.
            copy: False returns the array itself if it has the dtype already.

        Returns:
            The converted array.

        Raises:
            UnsupportedError: One of the dtypes is not among those above.
            DtypeError: `casting` forbids the conversion.
        """
        from hearth.arrays.astype import astype

        return astype(self, dtype, stream, casting, copy)

    def tensor_map(
        self,
        box: Sequence[int] | None = None,
        *,
        im2col: Im2col | Im2colWide | None = None,
        **options: Unpack[Options],
    ) -> TensorMap[Self]:
        """Makes a tensor map of the array, for TMA, to be passed to kernels.

        Args:
            box: Elements of one copy along each axis, innermost last.
            im2col: Pixels of a convolution to copy, instead of `box`: `Im2col` or `Im2colWide`.
            **options: Further options; see `TensorMap`.

        Returns:
            The tensor map.

        Raises:
            ArgumentError: Both or neither of `box` and `im2col` are given, or a number of an option is out of range.
            DtypeError: Elements of the option `dtype` have another size than the array's, or a number is not whole.
        """
        from hearth.arrays.tensor_map import TensorMap

        return TensorMap(self, box, im2col=im2col, **options)

    # ---- lifetime ----

    def checkpoint(self, stream: BaseStream | None = None) -> None:
        """Takes a new copy of a durable array, as it is at this point of the stream: see `Device.checkpoint`.

        Args:
            stream: Stream that orders the copy; None: the current one.

        Raises:
            ArgumentError: The array is not durable.
        """
        self._device.checkpoint(self, stream=stream)

    def free(self) -> None:
        """Frees the memory now, for the array and all its views. Using any of them afterwards is an error."""
        self._memory.free()

    # ---- internals ----

    def _usable(self) -> Attachment:
        return self._connection.check(self._memory, self)

    def _as_rows(self) -> layouts.RowLayout:
        """Returns the rows of the array, relative to its start; one row if the array is contiguous.

        Raises `UnsupportedError` if its elements are not rows.
        """
        rows = self._rows
        if isinstance(rows, layouts.StrideLayout):
            raise UnsupportedError(
                f"the elements of this array of shape {self._shape} with strides {self.strides} are not in rows at a "
                "constant distance from each other.",
                fix="use a contiguous copy: x.copy().",
            )
        return rows if rows is not None else layouts.RowLayout(0, self.nbytes)

    def _view(
        self,
        offset: int,
        shape: tuple[int, ...],
        dtype: Dtype,
        strides: tuple[int, ...] | None = None,
    ) -> Self:
        """Returns an array in the same memory that starts `offset` bytes after this one; C order without strides."""
        view: Self = self._device._array_type(self._device, self._memory, self._offset + offset, shape, dtype, strides)
        return view

    @abstractmethod  # enforced by mypy only: for an ABC, `isinstance` would take longer in every upload
    def _send(
        self,
        attachment: Attachment,
        region: BufferRegion,
        data: memoryview,
        report: Progress | None,
        blocking: bool,
    ) -> PinnedCopy | None:
        """Writes host memory, or records that if the stream is recorded; returns the copy if it can be repeated."""

    # ---- refused ----

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> NoReturn:
        raise refusal(f"np.{ufunc.__name__}" if method == "__call__" else f"np.{ufunc.__name__}.{method}")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise unpicklable()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name)
