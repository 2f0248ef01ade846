"""The line of the user's program that called `hearth`, for warnings about that program.

`hearth.session.callers` finds the same line for late errors, on the way of every launch.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, NamedTuple


class CallingLine(NamedTuple):
    """A line outside this package."""

    file: str
    """Path of the source file, as its code object has it."""
    line: int
    """Line number, from 1."""
    module: str
    """Name of the module, by which warning filters select."""
    registry: dict[Any, Any]
    """Warnings that the module's line has already given, as `warnings` keeps them."""

    @classmethod
    def current(cls) -> CallingLine:
        """Returns the innermost line outside `hearth` that the current thread executes."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "hearth":
            frame = frame.f_back
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", ""), registry)

    def warn(self, message: str) -> None:
        """Gives a `RuntimeWarning` that names this line, unless the warning filters suppress it.

        Args:
            message: Text of the warning.
        """
        warnings.warn_explicit(message, RuntimeWarning, self.file, self.line, self.module, self.registry)
