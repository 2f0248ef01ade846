"""Host arrays of evenly spaced numbers, for ``gpu.arange`` and ``gpu.linspace``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hearth import lazy_numpy as np
from hearth import shapes
from hearth.errors import ArgumentError


def arange(start: Any, stop: Any, step: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Computes the numbers of `numpy.arange`.

    Args:
        start: First number; the end if `stop` is None.
        stop: End, excluded; None: the numbers begin at 0 and end before `start`.
        step: Distance between two numbers.
        dtype: Type of the elements; None: NumPy's choice.

    Returns:
        The numbers.

    Raises:
        ArgumentError: There are no such numbers.
        DtypeError: No device has elements of that type.
    """
    element_type = None if dtype is None else shapes.dtype_of(dtype)
    first, last = (0, start) if stop is None else (start, stop)
    return _computed("arange", lambda: np.arange(first, last, step, dtype=element_type))


def linspace(start: Any, stop: Any, num: int, endpoint: bool, dtype: Any) -> np.ndarray[Any, Any]:
    """Computes the numbers of `numpy.linspace`.

    Args:
        start: First number.
        stop: Last number.
        num: Quantity of numbers, at least 0.
        endpoint: Includes `stop`.
        dtype: Type of the elements; None: NumPy's choice.

    Returns:
        The numbers.

    Raises:
        ArgumentError: There are no such numbers.
        DtypeError: No device has elements of that type.
    """
    element_type = None if dtype is None else shapes.dtype_of(dtype)
    return _computed("linspace", lambda: np.linspace(start, stop, num, endpoint, dtype=element_type))


def _computed(name: str, compute: Callable[[], np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    try:
        return compute()
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, MemoryError) as error:
        raise ArgumentError(
            f"{name} cannot compute these numbers ({error}).",
            fix=f"pass arguments that np.{name} accepts.",
        ) from None
