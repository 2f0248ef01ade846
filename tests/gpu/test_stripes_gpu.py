"""Stripes into page-locked memory, and from there to a GPU by DMA, in stream order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.transfer.stripe_pool import Stripes
from tests.support.client.internals import connection_of, session_of
from tests.support.daemon.harness import BACKEND, DaemonProcess, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(BACKEND != "cuda", reason="set HEARTH_TEST_BACKEND=cuda")]

MIB = 1 << 20
DOUBLE = r"""
extern "C" __global__ void twice(unsigned* x, unsigned long long n) {
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] *= 2;
}
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    process = DaemonProcess(tmp_path_factory.mktemp("cache"))
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


@pytest.fixture
def gpu(daemon: DaemonProcess) -> Iterator[hearth.Device]:
    with hearth.connect(daemon.grpc) as node:
        session_of(node).transport.stripes = 8
        yield node.device(0)


def values(size: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 1 << 31, size // 4, np.uint32)


@pytest.mark.parametrize("size", [8 * MIB, 100 * MIB + 4, 1024 * MIB + 12])
def test_transferred_bytes_are_identical(gpu: hearth.Device, daemon: DaemonProcess, size: int) -> None:
    host = values(size)
    x = gpu.asarray(host)
    out = np.zeros_like(host)
    x.get(out=out)
    assert (out == host).all()
    assert connection_of(gpu).part(Stripes).inspect().live > 0
    wait_until(lambda: daemon.gauge("staging_bytes") == 0, "the release of all staging memory")


def test_kernels_run_between_writes_and_reads(gpu: hearth.Device) -> None:
    """Alternates write, kernel and read on one stream: each sees the results of earlier commands, and none of later
    ones."""
    twice = gpu.RawModule(code=DOUBLE).get_function("twice")
    x = gpu.empty(16 * MIB, np.uint32)
    for seed in range(4):
        host = values(64 * MIB, seed)
        x.set(host)
        twice((512,), (256,), (x, np.uint64(x.size)))
        assert (x.get() == host * np.uint32(2)).all()


def test_streams_of_several_threads(gpu: hearth.Device) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with gpu.stream():
                for turn in range(4):
                    host = values(48 * MIB + 4 * seed, seed * 10 + turn)
                    assert (gpu.asarray(host).get() == host).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures and not any(thread.is_alive() for thread in threads)
