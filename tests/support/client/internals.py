"""The one place where tests reach behind the client's public API: engine of a device, memory of an array, handles."""

from __future__ import annotations

from typing import Any

from hearth.session.connection import Connection
from hearth.session.memory import Memory


def connection_of(owner: Any) -> Connection:
    """The connection of a device, or of what was made on one."""
    connection: Connection = owner._connection
    return connection


def memory_of(array: Any) -> Memory:
    """The memory that an array is a view of."""
    memory: Memory = array._memory
    return memory


def handle_of(array: Any) -> int:
    """The number by which commands name the array's memory."""
    return memory_of(array).handle


def number_of(made: Any) -> int:
    """The number by which commands name a stream, an event or a profile."""
    number: int = made._handle
    return number
