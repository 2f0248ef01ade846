"""NumPy, imported when one of its attributes is first used: ``from hearth import lazy_numpy as np``.

The import of NumPy takes longer than everything else that a client does until its first result. A program that uses
only Python's own numbers and buffers never imports it. No NumPy array can exist in a process that has not imported
NumPy, so values are not checked for being one unless `is_imported` returns True.
"""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import *  # noqa: F403


def is_imported() -> builtins.bool:
    """Returns True if this process has imported NumPy, or is importing it."""
    return sys.modules.get("numpy") is not None


def is_masked(value: Any) -> builtins.bool:
    """Returns True for a masked array with an element, or a field of an element, that is masked: it has no value."""
    masked_arrays = sys.modules.get("numpy.ma")
    if masked_arrays is None or not isinstance(value, masked_arrays.MaskedArray):
        return False
    return builtins.any(masked_arrays.getmaskarray(value).tobytes())


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import numpy

        value = globals()[name] = getattr(numpy, name)  # later accesses find the global and do not call this function
        return value
