"""The kinds, dtypes and reductions of collectives, and the shape of the data of each kind.

As commands.proto has it. Counts are NCCL's: elements that one rank gives to another.
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
}

ITEM_SIZES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes of each dtype that is sent by its name. Everything else travels as bytes."""

NUMBERS = {name: size for name, size in ITEM_SIZES.items() if name != "bool" and not name.startswith("complex")}
"""Size in bytes of each dtype that can be reduced somewhere; the backend knows which of them it supports."""


class Shape(NamedTuple):
    """The data that one rank reads and writes: in counts, or in counts for every rank; at the root alone, or at every
    rank."""

    source: int = 0
    destination: int = 0
    """0: nothing; 1: one count; 2: one for every rank."""
    source_at_root: bool = False
    destination_at_root: bool = False
    reduces: bool = False
    rooted: bool = False
    peered: bool = False


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
"""The name of each kind that there is."""

REDUCING = frozenset(kind for kind, shape in SHAPES.items() if shape.reduces)
ROOTED = frozenset(kind for kind, shape in SHAPES.items() if shape.rooted)
PEERED = frozenset(kind for kind, shape in SHAPES.items() if shape.peered)

SAME = frozenset(kind for kind, shape in SHAPES.items() if shape.source == shape.destination == 1)
"""Kinds that are in place where source and destination are the same."""
GATHERING = frozenset(kind for kind, shape in SHAPES.items() if (shape.source, shape.destination) == (1, 2))
"""Kinds that are in place where the source is this rank's part of the destination."""
SCATTERING = frozenset(kind for kind, shape in SHAPES.items() if (shape.source, shape.destination) == (2, 1))
"""Kinds that are in place where the destination is this rank's part of the source."""
