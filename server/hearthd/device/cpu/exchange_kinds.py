"""What can be exchanged between ranks, in the order in which exchange/segment.h and exchange/reduce.h have it."""

from __future__ import annotations

KINDS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "send",
    "recv", "barrier",
)  # fmt: skip

REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
ROOTED = frozenset({"reduce", "broadcast", "gather", "scatter"})
PEERED = frozenset({"send", "recv"})

SIZES = {
    "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes of each dtype that can be reduced."""

STORED = {
    **{name: f"{name}_t" for name in SIZES if "int" in name},
    "float16": "_Float16", "bfloat16": "Bf16", "float32": "float", "float64": "double",
    "float8_e4m3fn": "E4m3fn", "float8_e5m2": "E5m2",
}  # fmt: skip
"""Their types in C++."""

DTYPES = tuple(SIZES)
OPS = ("sum", "mean", "min", "max", "prod")
