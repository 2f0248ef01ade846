"""Ranks that are killed, stopped or blocked in the middle of a collective: the other ranks fail within a second after
its timeout, keep their data, and continue: without the lost rank immediately, with it when it serves again. No round
hangs.

HEARTH_TEST_ROUNDS=50 is the full test: that number of rounds of a node's devices, and of two daemons.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

import hearth
from tests.support.collectives.losses import (
    DEVICES,
    HEALED_S,
    Survivors,
    recovers,
    reduced_once,
    shuffled,
    strike,
    works,
)
from tests.support.collectives.ranks import several
from tests.support.collectives.two_daemons import TwoDaemons
from tests.support.daemon.harness import DaemonProcess, on_cpu
from tests.support.daemon.kernels import gated

ROUNDS = int(os.environ.get("HEARTH_TEST_ROUNDS", "4"))
TIMEOUT_S = 1.0
"""Timeout in seconds of the operations that will fail."""
LARGE = 3_000_000
"""Number of elements whose collective takes tens of milliseconds on the CPU backend."""

pytestmark = [on_cpu, pytest.mark.timeout(60 + 20 * ROUNDS, method="thread")]


class Round(NamedTuple):
    """A disturbance of the victim: a rank that a kernel keeps from entering the exchange, or a rank in the middle of
    it."""

    held: bool = True
    """True if an endless kernel runs before the collective."""
    device: signal.Signals | None = None
    """Signal that is then sent to its device process."""
    daemon: signal.Signals | None = None
    """Signal that is then sent to its daemon."""


def play(
    round_: Round, group: hearth.Group, victim: int, daemon: DaemonProcess, rng: random.Random
) -> contextlib.ExitStack:
    """Runs one collective that must fail. Returns when all surviving ranks have raised the error in time and work
    again. The victim stays in its state until the returned stack is closed. `daemon` is the victim's daemon."""
    survivors, gpu = Survivors(group, victim), group.devices[victim]
    pid = daemon.process.pid if round_.daemon else daemon.device_pid(gpu.ordinal)
    arrays = reduced_once(group, 10 if round_.held else LARGE)
    with contextlib.ExitStack() as stack:
        if round_.held:
            stack.enter_context(gated(gpu)).hold()
        timeout = TIMEOUT_S if round_.held else HEALED_S
        for _ in range(1 if round_.held else 60):
            group.all_reduce(arrays, timeout=timeout)
        began = time.monotonic()
        what = round_.device or round_.daemon
        if what:
            time.sleep(rng.uniform(0, 0.04))  # a random moment
            strike(pid, what, stack)
        if what == signal.SIGKILL:
            began, timeout = time.monotonic(), TIMEOUT_S  # its loss is noticed immediately
        survivors.go_on(began, timeout)
        return stack.pop_all()


DEVICE_ROUNDS = [
    Round(False, device=signal.SIGKILL), Round(device=signal.SIGSTOP), Round(), Round(device=signal.SIGKILL)
]  # fmt: skip
DAEMON_ROUNDS = [
    Round(daemon=signal.SIGKILL), Round(device=signal.SIGKILL), Round(daemon=signal.SIGSTOP),
    Round(False, daemon=signal.SIGKILL), *DEVICE_ROUNDS[:3],
]  # fmt: skip


def test_devices_of_a_daemon(cache: Path) -> None:
    with several(cache, 3, harmed=True, devices=DEVICES) as daemon, daemon.connect() as node:
        gpus = node.devices[:3]
        for round_, rng in shuffled(DEVICE_ROUNDS, ROUNDS):
            order = rng.sample(gpus, 3)
            victim = rng.randrange(3)
            group = hearth.Group(order)
            with play(round_, group, victim, daemon, rng):
                assert group.closed
            recovers(lambda order=order: works(hearth.Group(order)), f"the group after {round_}")


def test_two_daemons(cache: Path) -> None:
    with TwoDaemons(cache) as world:
        for round_, rng in shuffled(DAEMON_ROUNDS, ROUNDS):
            order = rng.sample([0, 1], 2)  # the order decides which daemon coordinates
            victim = rng.randrange(2)
            with play(round_, (group := world.group(order)), victim, world.daemons[order[victim]], rng):
                assert group.closed
            world.mend(order[victim] if round_.daemon == signal.SIGKILL else None)
            recovers(lambda order=order: works(world.group(order)), f"the group after {round_}")
