"""The engine behind the client's public objects, by the interfaces that its own layers use for that.

The names with an underscore belong to the protocols of `hearth.interfaces`: `DeviceContext`, `ArrayLike`, `NodeContext`
and `Handled`, by which a module of the client reaches the objects of the layers above it. They are no names for users,
and tests use them here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hearth.dtypes import Dtype
    from hearth.interfaces import ArrayLike, Connected, Handled, NodeContext
    from hearth.session.connection import Connection
    from hearth.session.lease import NodeSession
    from hearth.session.memory import Memory


def connection_of(owner: Connected) -> Connection:
    """The connection of a device, or of what was made on one."""
    return owner._connection


def session_of(node: NodeContext) -> NodeSession:
    """The session that a node has opened."""
    return node._session


def memory_of(array: Any) -> Memory:
    """The memory that an array, or a tensor map, is a view of."""
    memory: Memory = array._memory
    return memory


def offset_of(array: ArrayLike) -> int:
    """The first byte of the array in its memory."""
    return array._offset


def dtype_of(array: ArrayLike) -> Dtype:
    """The type of the array's elements, as the client keeps it: NumPy's, or its own where there is no NumPy."""
    return array._dtype


def handle_of(array: Any) -> int:
    """The number by which commands name the array's memory."""
    return memory_of(array).handle


def number_of(made: Handled) -> int:
    """The number by which commands name a module, a stream, an event or a profile."""
    return made._handle
