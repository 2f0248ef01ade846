"""NumPy, imported when something of it is first needed: ``from hearth import lazy_numpy as np``.

Importing it takes longer than everything that a client does to its first result. A program that passes and takes
Python's own numbers and buffers goes without; an array of NumPy's cannot reach a process that has not imported it, so
nothing is looked for in one where it is not `here`.
"""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import *  # noqa: F403


def here() -> builtins.bool:
    """True if this process has imported NumPy, or is importing it."""
    return sys.modules.get("numpy") is not None


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import numpy

        value = globals()[name] = getattr(numpy, name)  # the next time it is found before this is asked
        return value
