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
    from hearth_proto.layouts import RowLayout


A_co = TypeVar("A_co", covariant=True)
"""The class of a device's arrays."""


class Connected(Protocol):
    """A device, or an object that was made on one: an array, a module, a stream, a dispatch."""

    @property
    def _connection(self) -> Connection: ...


class Handled(Protocol):
    """An object that commands refer to by a handle: a module, a stream, an event, a profile."""

    @property
    def _handle(self) -> int: ...


class NodeContext(Protocol):
    """The part of a node that its devices use."""

    _session: NodeSession

    @property
    def name(self) -> str: ...

    def _describe(self) -> NodeInfo: ...


class DeviceContext(Connected, Protocol[A_co]):
    """The part of a device that its arrays and modules use."""

    @property
    def _node(self) -> NodeContext: ...

    @property
    def _array_type(self) -> Callable[..., A_co]:
        """The class of the device's arrays. Called with device, memory, offset, shape, dtype and, unless in C order,
        strides."""

    @property
    def ordinal(self) -> int: ...

    @property
    def properties(self) -> DeviceProperties: ...

    def empty(self, shape: Shape, dtype: Any = ..., stream: BaseStream | None = ...) -> A_co: ...

    def RawKernel(self, code: str | bytes, name: str) -> Callable[..., None]: ...

    def publish(self, name: str, array: Any, tenants: Sequence[str] = ...) -> Any: ...

    def checkpoint(self, *arrays: Any, stream: BaseStream | None = ...) -> None: ...


class ArrayLike(Connected, Protocol):
    """The part of an array on a device that views, conversions, assignments and exports use."""

    _dtype: Dtype
    _memory: Memory
    _offset: int
    _rows: RowLayout | None
    _shape: tuple[int, ...]

    @property
    def _device(self) -> DeviceContext[Any]: ...

    @property
    def _strides(self) -> tuple[int, ...] | None: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def itemsize(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def ndim(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def size(self) -> int: ...

    @property
    def strides(self) -> tuple[int, ...]: ...

    def __getitem__(self, index: Any) -> Self: ...

    def __len__(self) -> int: ...

    def reshape(self, *shape: Any) -> Self: ...

    def astype(self, dtype: Any) -> Self: ...

    def copy(self, stream: BaseStream | None = ...) -> Self: ...

    def copy_from(self, other: Any, stream: BaseStream | None = ...) -> None: ...

    def fill(self, value: Any) -> None: ...

    def set(self, a: Any) -> None: ...

    def _as_rows(self) -> RowLayout: ...

    def _usable(self) -> Attachment: ...
