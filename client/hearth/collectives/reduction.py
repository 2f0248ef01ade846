"""Reductions of collectives: their names, the premultiplied sum, and the dtypes that each of them accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hearth.arrays.device_copy import name_of
from hearth.errors import ArgumentError, DtypeError, UnsupportedError
from hearth_proto.collectives import NUMBERS, OPS, PREMUL_SUM
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.arrays.base_array import BaseArray

_COMPONENTS = {"complex64": "float32", "complex128": "float64"}
"""Dtype of the real and the imaginary part of each complex dtype."""
_ADDING = ("sum", "mean", PREMUL_SUM)
"""Reductions that NCCL computes for complex numbers, because each part is computed separately."""


class PremulSum:
    """The reduction that multiplies each rank's elements by a factor before they are added; made by `premul_sum`."""

    def __init__(self, factor: object) -> None:
        self.factor = factor
        """A number, or a sequence of numbers, one for each rank."""

    def __repr__(self) -> str:
        return f"hearth.premul_sum({self.factor!r})"


def premul_sum(factor: float | Sequence[float]) -> PremulSum:
    """Makes a reduction that multiplies elements before it adds them: ncclRedOpCreatePreMulSum.

    ``group.all_reduce(arrays, op=hearth.premul_sum(0.5))`` stores half the sum. Each product is rounded to the arrays'
    dtype. Pass it as `op` of `Group.all_reduce`, `Group.reduce` or `Group.reduce_scatter`, of `hearth` or `hearth.aio`.

    Args:
        factor: The factor, a real number that the arrays' dtype can represent, exactly if they are integers; or one
            for each rank, in the group's order. The operation raises `ArgumentError` for other factors, such as 1e40
            for float32.

    Returns:
        The reduction.
    """
    return PremulSum(factor)


class Reduction(NamedTuple):
    """A reduction of an operation, as it is sent to the daemons."""

    op: commands_pb2.ReduceOp
    dtype: str
    """Name of the dtype of the numbers that are reduced."""
    components: int
    """Numbers in each element of the arrays: 2 for complex elements, otherwise 1."""
    factors: tuple[bytes, ...]
    """Factor of each rank, in the group's order; empty for reductions without one."""


def reduction(op: str | PremulSum, array: BaseArray, ranks: int, premultiplies: bool = True) -> Reduction:
    """Determines how arrays like `array` are reduced.

    Args:
        op: Name of the reduction, or a premultiplied sum.
        array: One of the arrays.
        ranks: Number of ranks of the group.
        premultiplies: All daemons of the group compute premultiplied sums.

    Returns:
        The reduction.

    Raises:
        ArgumentError: `op` is no reduction, or its factor does not fit the dtype or the number of ranks.
        DtypeError: The dtype cannot be reduced, or not by this reduction.
        UnsupportedError: The reduction is a premultiplied sum, and a daemon does not have it.
    """
    name = PREMUL_SUM if isinstance(op, PremulSum) else op
    number = OPS.get(name) if isinstance(name, str) else None
    if number is None or (name == PREMUL_SUM and not isinstance(op, PremulSum)):
        reductions = ", ".join(operation for operation in OPS if operation != PREMUL_SUM)
        raise ArgumentError(
            f"op is {op!r}, which is not a reduction.",
            fix=f"use one of {reductions}, or hearth.premul_sum(factor).",
        )
    dtype_name = name_of(array.dtype)
    dtype = _COMPONENTS.get(dtype_name, dtype_name)
    components = 2 if dtype_name in _COMPONENTS else 1
    if dtype not in NUMBERS:
        raise DtypeError(
            f"{array.dtype} cannot be reduced.",
            reason="UNSUPPORTED",
            fix=f"use one of {', '.join((*NUMBERS, *_COMPONENTS))}; view booleans as numbers: x.view(np.uint8).",
            details={"dtype": dtype_name},
        )
    if components > 1 and name not in _ADDING:
        raise DtypeError(
            f"op is {name!r}, which NCCL does not have for complex numbers; the arrays are {dtype_name}.",
            reason="UNSUPPORTED",
            fix="use sum, mean or hearth.premul_sum(factor), or reduce real arrays.",
            details={"dtype": dtype_name, "op": name},
        )
    factors: tuple[bytes, ...] = ()
    if isinstance(op, PremulSum):
        if not premultiplies:
            raise UnsupportedError(
                f"{op!r}: a daemon of the group does not have this reduction.",
                fix="update the daemon, or multiply the arrays with a kernel before a sum.",
            )
        factors = _factors(op, np.dtype(dtype) if components > 1 else array.dtype, ranks)
    return Reduction(number, dtype, components, factors)


def _factors(op: PremulSum, dtype: np.dtype[np.generic], ranks: int) -> tuple[bytes, ...]:
    """Returns the factor of each rank as one element of `dtype`. Raises `ArgumentError`."""
    try:
        numbers = np.asarray(op.factor)
        if numbers.dtype.kind not in "iufV" or numbers.ndim > 1:  # V: a float of ml_dtypes
            raise TypeError
        with np.errstate(all="ignore"):
            factors = numbers.astype(dtype)
        if dtype.kind in "iu":
            fits = np.array_equal(factors.astype(object), numbers.astype(object))
        else:  # floats are rounded, but not to infinity or NaN
            fits = all(np.array_equal(is_so(factors), is_so(numbers)) for is_so in (np.isinf, np.isnan))
        if not fits:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(
            f"{op!r}: the factor must be a real number that {dtype} can represent.",
            fix="pass a number of that dtype, or one for each rank; reduce floats for a factor below 1.",
            details={"dtype": dtype.name},
        ) from None
    if factors.ndim and factors.size != ranks:
        raise ArgumentError(
            f"{op!r} has {factors.size} factors; the group has {ranks} devices.",
            fix="pass one factor, or one for each device, in the group's order.",
            details={"factors": str(factors.size), "ranks": str(ranks)},
        )
    return tuple(factor.tobytes() for factor in np.broadcast_to(factors, (ranks,)))
