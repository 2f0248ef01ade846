"""A struct that a kernel receives by value."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.errors import LaunchError
from hearth.kernels.arguments import ByValue


@dataclass(frozen=True)
class Struct(ByValue):
    """A struct passed by value: its bytes, and its alignment in C (a power of two; 8 by default)."""

    data: bytes
    align: int = 8

    def __post_init__(self) -> None:
        if self.align < 1 or self.align & (self.align - 1):
            raise LaunchError(
                f"a struct's alignment is a power of two, not {self.align}.",
                reason="LAUNCH_INVALID",
                fix="give what alignof() says in C.",
            )

    def tobytes(self) -> bytes:
        """Returns the bytes of the struct."""
        return bytes(self.data)
