"""A struct that a kernel receives by value."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.errors import LaunchError
from hearth.kernels.arguments import ByValue


@dataclass(frozen=True)
class Struct(ByValue):
    """A struct passed by value: its bytes, and its alignment in C (a power of two; 8 by default).

    Raises:
        LaunchError: The alignment is not a power of two.
    """

    data: bytes
    align: int = 8

    def __post_init__(self) -> None:
        if self.align < 1 or self.align & (self.align - 1):
            raise LaunchError(
                f"the alignment of a struct is {self.align}; it must be a power of two.",
                reason="LAUNCH_INVALID",
                fix="pass the value of alignof() in C.",
            )

    def tobytes(self) -> bytes:
        """Returns the bytes of the struct."""
        return bytes(self.data)
