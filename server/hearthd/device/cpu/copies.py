"""Copies of rows at a pitch, and fills, in host memory. Called on the threads of streams."""

from __future__ import annotations

import ctypes
from typing import Any


def move_rows(destination: int, destination_pitch: int, source: int, source_pitch: int, width: int, rows: int) -> None:
    """Copies `rows` rows of `width` bytes; source and destination must not overlap.

    Pitches are in bytes, and have no effect on a single row.
    """
    if rows == 1 or destination_pitch == source_pitch == width:
        ctypes.memmove(destination, source, width * rows)
    else:
        rows_at(destination, destination_pitch, width, rows)[...] = rows_at(source, source_pitch, width, rows)


class _Memory:
    """Rows at an address, exposed by NumPy's array interface."""

    def __init__(self, address: int, pitch: int, width: int, rows: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (rows, width),
            "strides": (pitch, 1),
            "typestr": "|u1",
            "version": 3,
        }


def rows_at(address: int, pitch: int, width: int, rows: int) -> Any:
    """Returns a NumPy view of the rows.

    NumPy is imported at the first copy of rows; without NumPy, each row would take a call.
    """
    import numpy as np

    return np.asarray(_Memory(address, pitch if rows > 1 else width, width, rows))


def fill_with(address: int, pattern: bytes, size: int) -> None:
    """Fills `size` bytes with repetitions of `pattern`: memmove doubles the filled part until it is complete."""
    if len(set(pattern)) == 1:
        ctypes.memset(address, pattern[0], size)
        return
    filled = len(pattern)
    ctypes.memmove(address, pattern, filled)
    while filled < size:
        chunk = min(filled, size - filled)
        ctypes.memmove(address + filled, address, chunk)
        filled += chunk
