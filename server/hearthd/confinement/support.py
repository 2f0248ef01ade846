"""Features of the running kernel for confining a process, and the missing ones."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

from hearthd.confinement import seccomp

_LANDLOCK_CREATE_RULESET, _VERSION = 444, 1


@dataclass(frozen=True)
class Support:
    """Landlock's version (0: not available), and True if seccomp filters can be installed."""

    landlock: int
    seccomp: bool

    @property
    def lacking(self) -> str:
        """Names of the missing features, as text for people; empty: no feature is missing."""
        names = [
            name
            for name, available in (("Landlock", self.landlock), ("seccomp filters", self.seccomp))
            if not available
        ]
        return " and ".join(names)

    def __str__(self) -> str:
        """Formats the features as device processes report them: "landlock 7, seccomp"."""
        features = [f"landlock {self.landlock}" if self.landlock else "", "seccomp" if self.seccomp else ""]
        return ", ".join(filter(None, features)) or "nothing"


@functools.cache
def support() -> Support:
    """Returns the features of this kernel that this process can use.

    A container, or a filter of its parent, may disable features of the kernel.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    version = max(0, int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _VERSION)))
    return Support(version, seccomp.available())
