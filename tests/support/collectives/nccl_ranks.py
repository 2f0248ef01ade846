"""Processes that call NCCL directly through CuPy, one for each GPU, as a reference for Hearth's collectives."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path
from typing import Any

MEET_S = 60.0


def enter(rank: int, meet: Path) -> Any:
    """Selects the GPU with the rank's number for this process. Returns NCCL's unique id, which rank 0 creates and
    writes to the file `meet`; every process that has the id can join the communicator."""
    for name in ("NCCL_NVLS_ENABLE", "NCCL_RUNTIME_CONNECT"):  # the values that a device process sets
        os.environ.setdefault(name, "0")
    import cupy

    cupy.cuda.Device(rank).use()
    cupy.zeros(1)  # creates the CUDA context
    return _identity(rank, meet)


def _identity(rank: int, file: Path) -> Any:
    from cupy.cuda import nccl

    if rank == 0:
        identity = nccl.get_unique_id()
        draft = file.with_suffix(".draft")
        draft.write_text(repr(identity))
        draft.rename(file)
        return identity
    deadline = time.monotonic() + MEET_S
    while not file.exists():
        if time.monotonic() > deadline:
            raise SystemExit("rank 0 left no id")
        time.sleep(0.01)
    return ast.literal_eval(file.read_text())
