"""Copies between host and GPU that are larger than a page-locked part, with exact results, and kernels between them.
All other tests of pinned memory: `HEARTH_TEST_BACKEND=cuda pytest tests/daemon/transfers/test_pinned.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import BACKEND, DaemonProcess
from tests.support.daemon.kernels import common

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(BACKEND != "cuda", reason="set HEARTH_TEST_BACKEND=cuda")]

SIZE = (1536 << 20) + 12


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[hearth.Device]:
    process = DaemonProcess(tmp_path / "compiled")
    try:
        with process.connect() as node:
            yield node.device(0)
    finally:
        process.stop()
        process.remove()


@pytest.mark.parametrize("make", [hearth.empty_pinned, np.empty], ids=["pinned", "ordinary"])
def test_large_array_in_both_directions(gpu: hearth.Device, make: Callable[..., np.ndarray]) -> None:
    host, out = make(SIZE, np.uint8), make(SIZE, np.uint8)
    words = host[: SIZE // 8 * 8].view(np.uint64)
    words[...] = np.arange(len(words), dtype=np.uint64)
    host[-4:] = (1, 2, 3, 4)
    out.fill(0)
    x = gpu.asarray(host)
    x.get(out=out)
    assert np.array_equal(host, out)
    start, size = 33_333_333, 1_000_000_007  # across the boundaries of page-locked parts, and not aligned
    x[start : start + size].get(out=out[5 : 5 + size])
    assert np.array_equal(host[start : start + size], out[5 : 5 + size])


def test_kernels_between_pinned_copies_run_in_order(gpu: hearth.Device) -> None:
    n, turns = 16 << 20, 8
    host, outs = hearth.empty_pinned(n, np.float32), hearth.empty_pinned((turns, n), np.float32)
    host.fill(1)
    x, y = gpu.zeros(n, np.float32), gpu.zeros(n, np.float32)
    saxpy = common(gpu, "saxpy")
    for turn in range(turns):
        x.set(host)
        saxpy((n // 256,), (256,), (np.float32(1), x, y, np.int32(n)))
        y.get(out=outs[turn], blocking=False)
    gpu.synchronize()
    for turn in range(turns):
        assert (outs[turn] == turn + 1).all()
