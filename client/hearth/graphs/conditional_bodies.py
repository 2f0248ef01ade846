"""Bodies of conditional nodes: their conditions, their values, and the nodes that they contain."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, SupportsIndex

from hearth.arrays.base_array import BaseArray
from hearth.errors import ArgumentError

if TYPE_CHECKING:
    from hearth.session.connection import Connection
    from hearth_proto.v1 import commands_pb2

MAX_CASES = 256
"""Number of values, from 0, for which a switch may have bodies."""


def condition_operand(array: Any, connection: Connection) -> tuple[int, int]:
    """Returns the buffer and the offset of a condition.

    Args:
        array: The array that was passed as the condition.
        connection: The connection to the device of the graph.

    Raises:
        ArgumentError: The array is no condition.
    """
    if (
        not isinstance(array, BaseArray)
        or array._connection is not connection
        or math.prod(array._shape) != 1
        or array.dtype.kind not in "iu"
        or array.dtype.itemsize != 4
    ):
        raise ArgumentError(
            f"{array!r} is not the condition of a graph on device {connection.ordinal}.",
            fix="pass an array of one element of type int32 or uint32 on that device: gpu.zeros((), np.uint32).",
        )
    array._usable()
    return array._memory.handle, array._offset


def case_value(value: SupportsIndex) -> int:
    """Returns the value of a case as an int.

    Args:
        value: The value that was passed.

    Raises:
        ArgumentError: It is not a number from 0 to 255.
    """
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < MAX_CASES:
        raise ArgumentError(
            f"{value!r} is not the value of a case.",
            fix=f"pass an integer from 0 to {MAX_CASES - 1}; no body runs for other values of the condition.",
        )
    return number


def ranges(index: int, node: commands_pb2.GraphNode) -> tuple[range, ...]:
    """Returns the indices of the nodes of each body, by the body's index; empty for those that are missing.

    Args:
        index: Index of the conditional node.
        node: The node in the daemon's answer. Older daemons know conditional nodes of one body only.
    """
    bodies = [(body.index, body.nodes) for body in node.bodies]
    if not bodies and node.kind in ("if", "while"):
        bodies = [(0, node.body)]
    start, found = index + 1, dict[int, range]()
    for body, nodes in bodies:
        found[body] = range(start, start + nodes)
        start += nodes
    return tuple(found.get(body, range(index + 1, index + 1)) for body in range(max(found, default=-1) + 1))
