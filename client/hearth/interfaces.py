"""Protocols of arrays, devices and nodes, for annotations in the layers below those classes.

Covers annotations only: no module imports this one at run time. The classes are `hearth.arrays.base_array.BaseArray`,
`hearth.base_device.BaseDevice` and `hearth.base_node.BaseNode`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from typing import Self

    import numpy as np

    from hearth.base_stream import BaseStream
    from hearth.dtypes import Dtype
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.lease import NodeSession
    from hearth.session.memory import Memory
    from hearth.shapes import Shape
    from hearth.types import DeviceProperties, NodeInfo
    from hearth_proto.layouts import RowLayout, StrideLayout


A_co = TypeVar("A_co", covariant=True)
"""The class of a device's arrays."""


class Connected(Protocol):
    """A device, or an object that was made on one: an array, a module, a stream, a dispatch."""

    @property
    def _connection(self) -> Connection: ...


class NodeContext(Protocol):
    """The part of a node that its devices use."""

    _session: NodeSession

    @property
    def name(self) -> str:
        """The name of the node's host."""
        ...

    def _describe(self) -> NodeInfo: ...


class DeviceContext(Connected, Protocol[A_co]):
    """The part of a device that its arrays and modules use."""

    @property
    def _node(self) -> NodeContext: ...

    @property
    def _array_type(self) -> Callable[..., A_co]:
        """The class of the device's arrays.

        Called with device, memory, offset, shape, dtype and, unless in C order, strides.
        """

    @property
    def ordinal(self) -> int:
        """Number of the device on its node, from 0."""
        ...

    @property
    def properties(self) -> DeviceProperties:
        """Name, backend, memory and limits of the device, as they were when the session was opened."""
        ...

    def empty(self, shape: Shape, dtype: Any = ..., stream: BaseStream | None = ...) -> A_co:
        """Makes an array with arbitrary contents; see `hearth.base_device.BaseDevice.empty`.

        Args:
            shape: Elements along each axis: an int or a sequence.
            dtype: Type of the elements; float64 by default.
            stream: Stream of the allocation; None: the current one.

        Returns:
            The new array.
        """
        ...

    def RawKernel(self, code: str | bytes, name: str) -> Callable[..., None]:
        """Loads one kernel as a separate module; see `hearth.Device.RawKernel`.

        Args:
            code: CUDA C++ source, PTX, CUBIN or fatbin.
            name: Name of the kernel in the code.

        Returns:
            The kernel.
        """
        ...

    def publish(self, name: str, array: Any, tenants: Sequence[str] = ..., *, replace: bool = ...) -> Any:
        """Publishes an array under a name; see `hearth.Device.publish`.

        Args:
            name: Name within this tenant.
            array: An array of this device.
            tenants: Other tenants that may attach it; ``"*"``: all.
            replace: Ends an earlier publication under the name.
        """
        ...

    def checkpoint(self, *arrays: Any, stream: BaseStream | None = ...) -> None:
        """Takes new copies of durable arrays; see `hearth.base_device.BaseDevice.checkpoint`.

        Args:
            *arrays: Durable arrays; none: all durable arrays of this session on the device.
            stream: Stream that orders the copies; None: the current one.
        """
        ...


class ArrayLike(Connected, Protocol):
    """The part of an array on a device that views, conversions, assignments and exports use."""

    _dtype: Dtype
    _memory: Memory
    _offset: int
    _rows: RowLayout | StrideLayout | None
    _shape: tuple[int, ...]

    @property
    def _device(self) -> DeviceContext[Any]: ...

    @property
    def _strides(self) -> tuple[int, ...] | None: ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element; imports NumPy."""
        ...

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        ...

    @property
    def ndim(self) -> int:
        """Number of axes."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        ...

    @property
    def size(self) -> int:
        """Number of elements."""
        ...

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis, also if the array is in C order."""
        ...

    def __getitem__(self, index: Any) -> Self: ...

    def __len__(self) -> int: ...

    def reshape(self, *shape: Any) -> Self:
        """Returns a view of another shape, or a copy if no view can have it.

        Args:
            *shape: Elements along each axis, as one tuple or several ints; one may be -1.

        Raises:
            ArgumentError: The shape does not have `size` elements.
        """
        ...

    def astype(self, dtype: Any, stream: BaseStream | None = ...) -> Self:
        """Copies the array with its elements converted; see `hearth.arrays.base_array.BaseArray.astype`.

        Args:
            dtype: Type of the new elements.
            stream: Stream of the conversion; None: the current one.

        Returns:
            The converted array.
        """
        ...

    def copy(self, stream: BaseStream | None = ...) -> Self:
        """Copies the array to new, contiguous memory on the same device.

        Args:
            stream: Stream that orders the copy; None: the current one.

        Returns:
            The new array.
        """
        ...

    def copy_from(self, other: Any, stream: BaseStream | None = ...) -> None:
        """Overwrites the array with a device array of the same shape and dtype.

        Args:
            other: The source.
            stream: Stream that orders the copy; None: the current one.
        """
        ...

    def fill(self, value: Any) -> None:
        """Sets every element to one value.

        Args:
            value: The value, converted to the array's dtype.
        """
        ...

    def set(self, a: Any) -> None:
        """Overwrites the array with a host array.

        Args:
            a: An array of the same shape and dtype.
        """
        ...

    def _as_rows(self) -> RowLayout: ...

    def _view(
        self, offset: int, shape: tuple[int, ...], dtype: Dtype, strides: tuple[int, ...] | None = ...
    ) -> Self: ...

    def _usable(self) -> Attachment: ...
