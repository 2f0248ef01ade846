"""Random CUDA kernels on a GPU, through a client and a daemon, compared with the reference for the CPU backend.

HEARTH_TEST_DIFFERENTIAL=200 sets the number of programs (default 10).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import hearth
from tests.support.cpu.differential import clients
from tests.support.cpu.differential.programs import program
from tests.support.daemon import harness

BACKEND = "cuda"
PROGRAMS = int(os.environ.get("HEARTH_TEST_DIFFERENTIAL", "10"))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120 + 30 * PROGRAMS, method="thread")]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hearth.Device]:
    """A device of a private daemon of this module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "BACKEND", BACKEND)
        daemon = harness.DaemonProcess(tmp_path_factory.mktemp("compiled"))
    try:
        with daemon.connect() as node:
            yield node.device(0)
    finally:
        daemon.stop()
        daemon.remove()


@pytest.mark.parametrize("seed", range(1, 1 + PROGRAMS))
def test_random_kernels_equal_the_reference_on_a_gpu(gpu: hearth.Device, seed: int) -> None:
    failures = clients.check(gpu, program(seed))
    assert not failures, "\n\n".join(failure.report() for failure in failures)
