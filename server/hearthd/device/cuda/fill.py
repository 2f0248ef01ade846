"""Filling device memory with a repeated pattern, by the driver's own functions: no kernel of ours has to be compiled.

The driver sets 1, 2 and 4-byte values. A longer pattern is written as interleaved 4-byte columns (a 2-D set one value
wide, with the pattern's length as pitch) over a first piece, which is then copied onto what follows it, twice as much
each time, at the speed of a copy.
"""

from __future__ import annotations

from cuda.bindings import driver
from cupy_backends.cuda.api import runtime

from hearthd.device.cuda.errors import checked

FIRST_PIECE = 32 << 10
"""Bytes of a long pattern that are set rather than copied."""


def shortest(pattern: bytes) -> bytes:
    """The shortest pattern of 1, 2, 4, ... bytes whose repetition is `pattern`."""
    while len(pattern) > 1 and pattern[: len(pattern) // 2] == pattern[len(pattern) // 2 :]:
        pattern = pattern[: len(pattern) // 2]
    return pattern


def fill(address: int, pattern: bytes, size: int, stream: int) -> None:
    """Enqueues on `stream`. `size` and `address` are multiples of the pattern's length. Raises CudaError."""
    if not size:
        return
    unit = shortest(pattern)
    width = len(unit)
    value = int.from_bytes(unit[:4], "little")
    if width == 1:
        runtime.memsetAsync(address, value, size, stream)
    elif width == 2:
        checked(driver.cuMemsetD16Async(address, value, size // 2, stream))
    elif width == 4:
        checked(driver.cuMemsetD32Async(address, value, size // 4, stream))
    else:
        done = min(size, FIRST_PIECE)
        for column in range(0, width, 4):
            value = int.from_bytes(unit[column : column + 4], "little")
            checked(driver.cuMemsetD2D32Async(address + column, width, value, 1, done // width, stream))
        while done < size:
            piece = min(done, size - done)
            runtime.memcpyAsync(address + done, address, piece, runtime.memcpyDeviceToDevice, stream)
            done += piece
