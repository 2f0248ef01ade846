"""Random kernels through a client and a daemon: instantiations, headers, structs by value, cooperative launches."""

from __future__ import annotations

import hearth
from tests.support.cpu.differential import clients
from tests.support.cpu.differential.programs import program

SEED = 1


def test_random_kernels_equal_the_reference_through_a_daemon(gpu: hearth.Device) -> None:
    failures = clients.check(gpu, program(SEED))
    assert not failures, "\n\n".join(failure.report() for failure in failures)
