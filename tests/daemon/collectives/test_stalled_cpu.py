"""A daemon that is stopped while an operation of its devices is late: the errors of its ranks must name the cause."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.collectives.communicators import DECISION_S
from tests.support.collectives.ranks import A, B, Ranks, collective, operation, several
from tests.support.daemon.harness import DaemonProcess, on_cpu, wait_until
from tests.support.daemon.kernels import GATE

TIMEOUTS_S = (1.0, 10.0)
"""Deadlines of the late operation. The second one is for machines that are too busy to launch it, and to stop the
daemon, within the first one."""

pytestmark = on_cpu


def states(ranks: Ranks, sequence: int) -> list[str]:
    """Returns the states of the operation, if it has been presented; the session has only one group."""
    return [each.state for group in ranks.groups() for each in group.operations if each.sequence == sequence]


def test_rank_that_aborts_alone_ends_no_other(cache: Path) -> None:
    """The deadline of one rank passes, and the daemon does not decide in time. The other rank has more time and waits
    for the daemon's decision; it does not fail because the first rank has left."""
    for timeout in TIMEOUTS_S:
        with several(cache, 2, harmed=True) as daemon, Ranks(daemon, 2) as ranks:
            if rank_aborts_while_daemon_is_stopped(daemon, ranks, timeout):
                return
    raise AssertionError("the daemon was not stopped before the deadline")


def rank_aborts_while_daemon_is_stopped(daemon: DaemonProcess, ranks: Ranks, timeout: float) -> bool:
    """Returns False if the deadline may have passed before the daemon was stopped."""
    ranks.work()
    function, one = ranks.raw.function(GATE, "hold"), c.Dim3(x=1)
    hold = c.Launch(function=function, grid=one, block=one, arguments=[c.Argument(uint64=0)])
    number = ranks.next()
    late, waits = (
        collective(ranks.devices, number, operation("all_reduce", A, B), timeout=seconds) for seconds in (timeout, 60)
    )
    began = time.monotonic()
    ranks.streams[0].batch(c.Command(launch=hold), late)
    ranks.streams[1].batch(waits)
    wait_until(lambda: {"launched", "failed"} & {*states(ranks, number)}, "the launch")
    os.kill(daemon.process.pid, signal.SIGSTOP)
    in_time = time.monotonic() - began < timeout
    if in_time:
        time.sleep(timeout + 3 * DECISION_S)  # no event announces that nothing happens
    os.kill(daemon.process.pid, signal.SIGCONT)
    if in_time:
        refusal = ranks.failure(1)
        assert refusal.reason == Reason.COLLECTIVE_TIMEOUT, refusal
        assert refusal.details["sequence"] == str(number)
    os.kill(daemon.device_pid(0), signal.SIGKILL)  # its kernel is endless
    return in_time
