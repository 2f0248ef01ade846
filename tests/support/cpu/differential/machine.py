"""Lock-step reference machine: the state of all threads of a launch as NumPy arrays of shape (blocks, threads).

Covers the geometry, the mask of active threads, global memory and the views by warp; not the meaning of steps, which
each step implements itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[Any]
"""An array of dtype uint32, of shape (blocks, threads) unless stated otherwise."""
Values = dict[str, U32]
"""The variables in scope of a body: `x` and the names that it captured or declared."""

CELLS = 1024
"""Number of words of global memory for atomics. Scratch memory of one word for each thread follows them."""


class Machine:
    """A launch: all blocks and threads; `active` marks the threads that execute the current statement."""

    def __init__(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], data: U32, cells: U32, scalar: int
    ) -> None:
        self.grid, self.block = grid, block
        self.blocks, self.threads = int(np.prod(grid)), int(np.prod(block))
        self.shape = (self.blocks, self.threads)
        self.data = data
        """Read-only input, `e.in`."""
        self.cells = cells.copy()
        """Global memory that kernels change: CELLS words for atomics, then the scratch memory."""
        self.scalar = self.full(scalar)
        """`e.n`."""
        self.active = np.ones(self.shape, bool)
        self.out = np.zeros(self.shape, np.uint32)
        self.rank = self.full(0) + np.arange(self.threads, dtype=np.uint32)
        self.block_rank = self.full(0) + np.arange(self.blocks, dtype=np.uint32)[:, None]
        self.index = {
            **self._axes("threadIdx", self.rank, block),
            **self._axes("blockIdx", self.block_rank, grid),
            **{f"blockDim.{axis}": self.full(size) for axis, size in zip("xyz", block, strict=True)},
            **{f"gridDim.{axis}": self.full(size) for axis, size in zip("xyz", grid, strict=True)},
        }

    def _axes(self, name: str, rank: U32, sizes: tuple[int, int, int]) -> dict[str, U32]:
        x, y, _ = sizes
        return {
            f"{name}.x": (rank % x).astype(np.uint32),
            f"{name}.y": (rank // x % y).astype(np.uint32),
            f"{name}.z": (rank // (x * y)).astype(np.uint32),
        }

    def full(self, value: int) -> U32:
        """Returns an array with the same word in every thread."""
        return np.full(self.shape, value & 0xFFFFFFFF, np.uint32)

    def assign(self, values: Values, name: str, new: U32) -> None:
        """Stores `new` in the variable `name` of the active threads."""
        old = values.get(name)
        values[name] = new if old is None else np.where(self.active, new, old)

    def per_block(self, results: list[int]) -> U32:
        """Returns one word for each block, repeated in all of its threads."""
        column = np.array([result & 0xFFFFFFFF for result in results], np.uint32)[:, None]
        return np.broadcast_to(column, self.shape).copy()

    def warps(self, values: np.ndarray) -> np.ndarray:
        """Returns the array by warp, with shape (blocks, warps, 32); lanes that do not exist hold 0."""
        count = -(-self.threads // 32)
        padded = np.zeros((self.blocks, count * 32), values.dtype)
        padded[:, : self.threads] = values
        return padded.reshape(self.blocks, count, 32)

    def by_thread(self, lanes: np.ndarray) -> np.ndarray:
        """Returns the array by thread: the inverse of `warps`."""
        return lanes.reshape(self.blocks, -1)[:, : self.threads].copy()

    def each_warp(self) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Yields, for each warp with active threads, their blocks and ranks as index arrays, and the mask of their lanes."""
        for block in range(self.blocks):
            for first in range(0, self.threads, 32):
                ranks = first + np.flatnonzero(self.active[block, first : first + 32])
                if len(ranks):
                    mask = int(sum(1 << int(rank - first) for rank in ranks))
                    yield np.full(len(ranks), block), ranks, mask

    def mask(self) -> U32:
        """Returns for each thread the mask of the active lanes of its warp."""
        return self.ballot(np.ones(self.shape, bool))

    def ballot(self, predicate: np.ndarray) -> U32:
        """Returns for each thread the mask of the active lanes of its warp in which `predicate` holds."""
        lanes = self.warps(predicate & self.active).astype(np.uint64)
        masks = (lanes << np.arange(32, dtype=np.uint64)).sum(axis=2).astype(np.uint32)
        return self.by_thread(np.repeat(masks[:, :, None], 32, axis=2))

    @property
    def scratch(self) -> U32:
        """Returns a view of the scratch memory: one word of global memory for each thread."""
        return self.cells[CELLS : CELLS + self.blocks * self.threads].reshape(self.shape)
