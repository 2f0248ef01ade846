"""Operations that device arrays refuse: arithmetic, comparisons, NumPy's ufuncs, pickling, missing attributes.

Hearth is not an array library: `a + x` would need either a download of `x` that the caller did not ask for, or kernels
that Hearth chooses. The error names an alternative. NumPy functions that accept every argument of `np.asarray`
(`np.save`, `np.testing.assert_allclose`, plotting) work on a copy, as with any object that has ``__array__``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from hearth import cupy_names
from hearth.errors import DtypeError, UnsupportedTypeError

T = TypeVar("T")

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "divmod": "divmod()",
    "pow": "**", "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_UNARY = {"neg": "-", "pos": "+", "abs": "abs()", "invert": "~"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FIX = "use a kernel for the operation on the device (gpu.RawKernel), or operate on a copy on the host: x.get()."

_INTERFACES = ("__cuda_array_interface__", "__array_interface__")
_NUMPYS = frozenset({
    "all", "any", "argmax", "argmin", "argsort", "clip", "conj", "cumprod", "cumsum", "diagonal", "dot", "imag", "max",
    "mean", "min", "nonzero", "prod", "ptp", "put", "real", "repeat", "round", "searchsorted", "sort", "std", "sum",
    "take", "trace", "var",
})  # fmt: skip


def refuse_operators(array_type: type[T]) -> type[T]:
    """Class decorator that adds operators which raise an error.

    Type checkers do not see these methods, so they report the operands as wrong.

    Arrays remain hashable by identity, whatever their contents.
    """
    for name, symbol in (_BINARY | _UNARY | _COMPARISONS).items():
        setattr(array_type, f"__{name}__", _refusing(symbol))
    for name, symbol in _BINARY.items():
        setattr(array_type, f"__r{name}__", _refusing(symbol))
    array_type.__eq__ = _comparing("==")  # type: ignore[method-assign]
    array_type.__ne__ = _comparing("!=")  # type: ignore[method-assign]
    setattr(array_type, "__contains__", _refusing("in"))  # noqa: B010
    return array_type


def refusal(operation: str) -> UnsupportedTypeError:
    """Builds the error of an operation; `operation` names the operation as the subject of a sentence."""
    return UnsupportedTypeError(
        f"{operation} is not supported for device arrays: Hearth runs kernels and provides no array operations.",
        fix=_FIX,
    )


def unpicklable() -> UnsupportedTypeError:
    """Builds the error of an attempt to pickle an array."""
    return UnsupportedTypeError(
        "a device array cannot be pickled: its memory belongs to this session.",
        fix="pickle x.get(); to share the array with another process, use x.publish(name) here and "
        "gpu.attach(name) there.",
    )


def _refusing(symbol: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *operands: object) -> NoReturn:
        raise refusal(f"`{symbol}`")

    return refuse


def _comparing(symbol: str) -> Callable[[object, object], Any]:
    """Makes a comparison that raises an error for numbers and arrays, with which NumPy would compare each element.

    Objects of other types compare as unequal.
    """

    def compare(self: object, other: object) -> Any:
        """Raises an error for numbers and arrays.

        Args:
            self: The left operand, a device array.
            other: The right operand.

        Returns:
            NotImplemented for other objects, which therefore compare as unequal.

        Raises:
            UnsupportedTypeError: `other` is a number or an array.
        """
        if isinstance(other, int | float | complex) or hasattr(other, "__array__"):
            raise refusal(f"`{symbol}`")
        return NotImplemented

    return compare


def no_array(other: object) -> DtypeError:
    """Builds the error of a `copy_from` whose source is no device array."""
    return DtypeError(
        f"copy_from takes a DeviceArray, not a {type(other).__name__}.",
        fix="use x.set(a) for host arrays.",
    )


def missing(array: object, name: str) -> AttributeError:
    """Builds the error of an attribute that arrays do not have, with what to use instead.

    Args:
        array: The array.
        name: Name of the attribute.
    """
    cupys_name = f"ndarray.{name}"
    if cupys_name in cupy_names.fixes():
        return cupy_names.refusal(cupys_name)
    advice = ""
    if name in _INTERFACES:
        advice = "; use x.ipc(), which supports it on the daemon's host, or DLPack (from_dlpack(x))"
    elif name in _NUMPYS:
        advice = f"; Hearth has no array operations: write a kernel, or use a copy on the host, x.get().{name}"
    return AttributeError(f"{type(array).__name__!r} object has no attribute {name!r}{advice}", name=name, obj=array)
