"""Kinds, dtypes and reductions of collectives, and the data shape of each kind.

Corresponds to commands.proto. Counts are those of NCCL: elements that one rank sends to another.
"""

from __future__ import annotations

from typing import NamedTuple

from hearth_proto.v1 import commands_pb2

OPS = {
    "sum": commands_pb2.REDUCE_OP_SUM,
    "mean": commands_pb2.REDUCE_OP_MEAN,
    "min": commands_pb2.REDUCE_OP_MIN,
    "max": commands_pb2.REDUCE_OP_MAX,
    "prod": commands_pb2.REDUCE_OP_PROD,
    "premul_sum": commands_pb2.REDUCE_OP_PREMUL_SUM,
}

PREMUL_SUM = "premul_sum"
"""The reduction that multiplies each rank's elements by a factor before they are added, as ncclRedOpCreatePreMulSum."""

ITEM_SIZES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Size in bytes of each dtype that is sent by its name. All other dtypes are sent as bytes."""

NUMBERS = {name: size for name, size in ITEM_SIZES.items() if name != "bool" and not name.startswith("complex")}
"""Size in bytes of each dtype that some backend can reduce; each backend supports some of them."""


MAX_COPY = 1 << 30
"""Largest copy between two devices, in bytes, that is one operation. Larger copies are several operations."""


class Shape(NamedTuple):
    """Amount of data that one rank reads and writes.

    The amount is nothing, one count, or one count per rank; at the root only, or at every rank.
    """

    source: int = 0
    """Amount that a rank reads. 0: nothing; 1: one count; 2: one count per rank."""
    destination: int = 0
    """Amount that a rank writes, with the same values."""
    source_at_root: bool = False
    """True if only the root reads."""
    destination_at_root: bool = False
    """True if only the root writes."""
    reduces: bool = False
    """True if the operation combines the elements of the ranks by a reduction."""
    rooted: bool = False
    """True if the operation has a root."""
    peered: bool = False
    """True if the operation has a single other rank as its peer."""


SHAPES = {
    "all_reduce": Shape(1, 1, reduces=True),
    "reduce": Shape(1, 1, destination_at_root=True, reduces=True, rooted=True),
    "broadcast": Shape(1, 1, source_at_root=True, rooted=True),
    "all_gather": Shape(1, 2),
    "reduce_scatter": Shape(2, 1, reduces=True),
    "all_to_all": Shape(2, 2),
    "gather": Shape(1, 2, destination_at_root=True, rooted=True),
    "scatter": Shape(2, 1, source_at_root=True, rooted=True),
    "send": Shape(1, 0, peered=True),
    "recv": Shape(0, 1, peered=True),
    "barrier": Shape(),
}

KINDS = {number: name.removeprefix("COLLECTIVE_KIND_").lower() for name, number in commands_pb2.CollectiveKind.items()}
"""Name of each collective kind, by its number."""

REDUCING = frozenset(kind for kind, shape in SHAPES.items() if shape.reduces)
ROOTED = frozenset(kind for kind, shape in SHAPES.items() if shape.rooted)
PEERED = frozenset(kind for kind, shape in SHAPES.items() if shape.peered)

SAME = frozenset(kind for kind, shape in SHAPES.items() if shape.source == shape.destination == 1)
"""Kinds that run in place if source and destination are the same memory."""
GATHERING = frozenset(kind for kind, shape in SHAPES.items() if (shape.source, shape.destination) == (1, 2))
"""Kinds that run in place if the source is this rank's part of the destination."""
SCATTERING = frozenset(kind for kind, shape in SHAPES.items() if (shape.source, shape.destination) == (2, 1))
"""Kinds that run in place if the destination is this rank's part of the source."""

_PAIR = 62
_GROUP_BITS, _COUNT_BITS = 21, 40


def pair_number(group: int, reverse: bool, count: int) -> int:
    """Returns the sequence number of a send or receive outside of a batch, as `hearth` numbers them.

    Such numbers differ from those of the operations of all ranks, from those of other groups of the same devices, and
    from those of the opposite direction, so that a send matches its receive regardless of other operations that the two
    ranks have presented in between. The daemon treats them like all other numbers, and shows them as `operation_name`
    does.

    Args:
        group: Number of the group in its process, of which the lowest 21 bits are used.
        reverse: True for the direction from the higher to the lower rank.
        count: Number of the send among those of the group in this direction, from 1.
    """
    group_and_direction = (group % (1 << _GROUP_BITS)) << 1 | reverse
    return 1 << _PAIR | group_and_direction << _COUNT_BITS | count


def short_number(sequence: int) -> int:
    """Returns a sequence number as it is shown: for a send or receive outside of a batch, its count."""
    return sequence & ((1 << _COUNT_BITS) - 1) if sequence >> _PAIR == 1 else sequence


def operation_name(sequence: int) -> str:
    """Returns the name of an operation in messages: `operation 3`, or `send and receive 3` for a `pair_number`."""
    return f"{'send and receive' if sequence >> _PAIR == 1 else 'operation'} {short_number(sequence)}"
