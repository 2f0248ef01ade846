"""Collectives by NCCL directly: `python -m tests.support.gpu.nccl_direct RANK RANKS FOLDER`, one process for each GPU.

Runs every case of `CASES` on inputs that the tests can reproduce, and writes the rank's results to FOLDER/RANK.npz.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.support.collectives import nccl_ranks
from tests.support.collectives.values import OPS, values

EIGHT = [np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]
DTYPES = [
    *map(np.dtype, ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")),
    np.dtype(ml_dtypes.bfloat16),
    *EIGHT,
]
"""Dtypes in the order of ncclDataType_t, which numbers them from 0."""
NUMBERS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}
KINDS = ("all_reduce", "reduce", "reduce_scatter")
SIZE = 1003
LARGE = (1 << 21) + 3
"""Number of elements of random floats, whose sum depends on the order of additions."""
ROOT = 1


def random(dtype: np.dtype[Any], rank: int) -> np.ndarray:
    """Returns random floats whose sums must be rounded."""
    return np.random.default_rng([rank, dtype.itemsize]).standard_normal(LARGE).astype(dtype)


def cases(ranks: int, narrow: bool) -> Iterator[tuple[str, str, str, np.dtype[Any], tuple[int, ...]]]:
    """Yields the name, kind, reduction, dtype and shape of each case. `narrow` includes 8-bit floats."""
    for dtype in DTYPES:
        if dtype not in EIGHT or narrow:
            for kind in KINDS:
                for op in OPS:
                    shape = (ranks * SIZE,) if kind == "reduce_scatter" else (SIZE,)
                    yield f"{kind} {op} {dtype.name}", kind, op, dtype, shape


def main(rank: int, ranks: int, folder: Path) -> None:
    """Runs all cases, then writes their results."""
    identity = nccl_ranks.enter(rank, folder / "id")
    import cupy
    from cupy.cuda import nccl

    communicator = nccl.NcclCommunicator(ranks, identity, rank)
    stream = cupy.cuda.Stream(non_blocking=True)
    narrow = nccl.get_version() >= 22400 and int(cupy.cuda.Device(rank).compute_capability) >= 90
    results: dict[str, np.ndarray] = {}

    def up(host: np.ndarray) -> Any:
        array = cupy.asarray(host.view(np.uint8))
        cupy.cuda.get_current_stream().synchronize()
        return array

    for name, kind, op, dtype, shape in cases(ranks, narrow):
        source = up(values(dtype, shape, rank, op))
        size = SIZE * dtype.itemsize
        target = up(np.zeros(size, np.uint8))
        numbers = (SIZE, DTYPES.index(dtype), NUMBERS[op])
        if kind == "reduce":
            communicator.reduce(source.data.ptr, target.data.ptr, *numbers, ROOT, stream.ptr)
        else:
            call = communicator.allReduce if kind == "all_reduce" else communicator.reduceScatter
            call(source.data.ptr, target.data.ptr, *numbers, stream.ptr)
        stream.synchronize()
        if kind != "reduce" or rank == ROOT:
            results[name] = target.get()
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), DTYPES[9]):
        source = up(random(dtype, rank))
        at = source.data.ptr
        communicator.allReduce(at, at, LARGE, DTYPES.index(dtype), NUMBERS["sum"], stream.ptr)
        stream.synchronize()
        results[f"random {dtype.name}"] = source.get()
    np.savez(folder / f"{rank}.npz", **results)  # type: ignore[arg-type]
    communicator.destroy()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
