"""The line of the user's program that called `hearth`: for warnings about that program, and for late errors."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Any, NamedTuple

PACKAGES = frozenset({"hearth", "hearth_proto", "contextlib"})
"""Packages whose frames are skipped: the caller is the frame outside them."""


def calling_frame(depth: int) -> tuple[FrameType, str]:
    """Returns the innermost frame outside `PACKAGES` that the current thread executes, and its top-level package.

    If there is none, returns the outermost frame.

    Args:
        depth: Number of frames to skip; 1: the caller of this function is the first candidate.
    """
    frame = sys._getframe(depth)
    while (package := frame.f_globals.get("__name__", "").partition(".")[0]) in PACKAGES and frame.f_back is not None:
        frame = frame.f_back
    return frame, package


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
        frame, _ = calling_frame(2)
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", ""), registry)

    def warn(self, message: str) -> None:
        """Gives a `RuntimeWarning` that names this line, unless the warning filters suppress it.

        Args:
            message: Text of the warning.
        """
        warnings.warn_explicit(message, RuntimeWarning, self.file, self.line, self.module, self.registry)
