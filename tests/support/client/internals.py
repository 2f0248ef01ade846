"""Access for tests to the internals of the client's public objects.

The names with an underscore belong to the protocols of `hearth.interfaces`: `DeviceContext`, `ArrayLike`
and `NodeContext`, by which a module of the client reaches the objects of the layers above it. They are not public, and
tests use them in this module only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hearth.dtypes import Dtype
    from hearth.interfaces import ArrayLike, Connected, NodeContext
    from hearth.session.connection import Connection
    from hearth.session.lease import NodeSession
    from hearth.session.memory import Memory


def connection_of(owner: Connected) -> Connection:
    """Returns the connection of a device, or of an object created on a device."""
    return owner._connection


def session_of(node: NodeContext) -> NodeSession:
    """Returns the session that a node has opened."""
    return node._session


def memory_of(array: Any) -> Memory:
    """Returns the memory that an array, or a tensor map, is a view of."""
    memory: Memory = array._memory
    return memory


def offset_of(array: ArrayLike) -> int:
    """Returns the offset, in bytes, of the array in its memory."""
    return array._offset


def dtype_of(array: ArrayLike) -> Dtype:
    """Returns the dtype of the array's elements: a NumPy dtype, or the client's own type if NumPy is not installed."""
    return array._dtype


def handle_of(array: Any) -> int:
    """Returns the handle by which commands name the array's memory."""
    return memory_of(array).handle


def number_of(owner: Any) -> int:
    """Returns the handle by which commands name a module, a stream, an event or a profile."""
    handle: int = owner._handle
    return handle
