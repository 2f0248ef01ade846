"""Processes that call NCCL directly, through CuPy, one for each GPU: what Hearth's collectives are compared with."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path
from typing import Any

MEET_S = 60.0


def enter(rank: int, meet: Path) -> Any:
    """This process uses the GPU of the rank's number from now on. NCCL's unique id, which rank 0 makes and leaves in
    the file `meet`: every holder of it can make the communicator."""
    for name in ("NCCL_NVLS_ENABLE", "NCCL_RUNTIME_CONNECT"):  # as a device process has them
        os.environ.setdefault(name, "0")
    import cupy

    cupy.cuda.Device(rank).use()
    cupy.zeros(1)  # makes the context
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
