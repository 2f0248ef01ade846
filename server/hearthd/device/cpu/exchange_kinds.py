"""What can be exchanged between ranks, in the order in which exchange/segment.h and exchange/reduce.h have it."""

from __future__ import annotations

KINDS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "send",
    "recv", "barrier",
)  # fmt: skip

STORED = {
    "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
    "float16": "_Float16", "bfloat16": "Bf16", "float32": "float", "float64": "double",
    "float8_e4m3fn": "E4m3fn", "float8_e5m2": "E5m2",
}  # fmt: skip
"""The dtypes that can be reduced, and their types in C++."""

DTYPES = tuple(STORED)
OPS = ("sum", "mean", "min", "max", "prod")
