"""What an array on a device does not do, and says so: arithmetic, comparisons, NumPy's ufuncs, pickling.

Hearth is no array library. `a + x` could only be done by fetching `x` without being asked to, or by kernels of its own
choosing; so it is refused, with what to write instead. Functions of NumPy that take whatever `np.asarray` takes
(`np.save`, `np.testing.assert_allclose`, plotting) work with a copy, as with any object that has ``__array__``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from hearth.errors import UnsupportedTypeError

if TYPE_CHECKING:
    import numpy as np

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "divmod": "divmod()",
    "pow": "**", "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_UNARY = {"neg": "-", "pos": "+", "abs": "abs()", "invert": "~"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FIX = "have a kernel do it on the device (gpu.RawKernel), or do it here with a copy: x.get()."


class NoArithmetic:
    """The operators, refused. Type checkers do not see them: to them the operands are wrong."""

    __slots__ = ()

    if not TYPE_CHECKING:
        __hash__ = object.__hash__  # an array is the same as itself alone, whatever it holds

        def __eq__(self, other: object) -> Any:
            return _compare(other, "==")

        def __ne__(self, other: object) -> Any:
            return _compare(other, "!=")

        def __contains__(self, value: object) -> NoReturn:
            raise _refusal("`in`")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> NoReturn:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise _refusal(f"np.{name}")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UnsupportedTypeError(
            "an array on a device cannot be pickled: it is memory of this session.",
            reason="UNSUPPORTED",
            fix="pickle x.get(); to share it with another process, x.publish(name) here and gpu.attach(name) there.",
        )


def _refusal(what: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{what} is not done for arrays on a device: Hearth runs kernels, and has none of its own.",
        reason="UNSUPPORTED",
        fix=_FIX,
    )


def _compare(other: object, symbol: str) -> Any:
    """With anything that has elements a comparison would mean each of them; with all else it is told apart."""
    if isinstance(other, NoArithmetic | int | float | complex) or hasattr(other, "__array__"):
        raise _refusal(f"`{symbol}`")
    return NotImplemented


def _refusing(symbol: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *others: object) -> NoReturn:
        raise _refusal(f"`{symbol}`")

    return refuse


for _name, _symbol in (_BINARY | _UNARY | _COMPARISONS).items():
    setattr(NoArithmetic, f"__{_name}__", _refusing(_symbol))
for _name, _symbol in _BINARY.items():
    setattr(NoArithmetic, f"__r{_name}__", _refusing(_symbol))
