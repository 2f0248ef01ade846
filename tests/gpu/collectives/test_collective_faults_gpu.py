"""GPUs whose process or daemon is killed, stopped or blocked during NCCL operations: the other ranks get the error
within a second after the timeout, keep their data, and continue; a rebuilt group works. No round hangs.

Requires HEARTH_TEST_BACKEND=cuda; HEARTH_TEST_ROUNDS=50 is the full test.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

import hearth
from tests.support.collectives.losses import (
    DEVICES,
    RankData,
    Survivors,
    recovers,
    reduced_once,
    shuffled,
    strike,
    works,
)
from tests.support.collectives.ranks import several
from tests.support.collectives.two_daemons import TwoDaemons
from tests.support.daemon.harness import on_gpu
from tests.support.daemon.kernels import gated
from tests.support.timing import LATE

ROUNDS = int(os.environ.get("HEARTH_TEST_ROUNDS", "3"))
LARGE = 1 << 26
"""Number of elements of 4 bytes: an operation takes about 0.9 ms on two H200s."""
MANY = 300
"""Number of operations, which together take some tenths of a second."""
LIMIT_S = 2.0
"""Timeout in seconds of the operations that will fail; without a fault all would complete in less."""
KINDS = ("held and killed", "held", "killed", "stopped")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    on_gpu,
    pytest.mark.timeout(90 + 25 * ROUNDS, method="thread"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


def play(kind: str, group: hearth.Group, victim: int, pid: int, rng: random.Random) -> contextlib.ExitStack:
    """Starts collectives that must fail. Returns when the surviving ranks have got the error in time and work again.
    The victim stays in its state until the returned stack is closed. `pid` is the process that is killed or stopped."""
    survivors, held = Survivors(group, victim), kind.startswith("held")
    arrays = reduced_once(group, 10 if held else LARGE)
    with contextlib.ExitStack() as stack:
        if held:
            stack.enter_context(gated(group.devices[victim])).hold()
        began = time.monotonic()
        for _ in range(1 if held else MANY):
            group.all_reduce(arrays, timeout=LIMIT_S)
        if kind != "held":
            time.sleep(rng.uniform(0, 0.04))  # a random moment
            strike(pid, signal.SIGSTOP if kind == "stopped" else signal.SIGKILL, stack)
            # Operations in progress fail immediately; those not reached by the lost rank fail at their own timeout.
            began = time.monotonic()
        if kind == "stopped":  # its GPU completes all work submitted before
            group.all_reduce(arrays, timeout=LIMIT_S)
        survivors.go_on(began, LIMIT_S)
        return stack.pop_all()


def test_devices_of_a_daemon(cache: Path) -> None:
    with several(cache, 2, harmed=True, devices=DEVICES) as daemon, daemon.connect() as node:
        gpus = node.devices[:4]
        for kind, rng in shuffled(KINDS, ROUNDS):
            order = rng.sample(gpus, len(gpus))
            victim = rng.randrange(len(gpus))
            with play(kind, hearth.Group(order), victim, daemon.device_pid(order[victim].ordinal), rng):
                pass
            recovers(lambda order=order: works(hearth.Group(order)), f"the group after a rank was {kind}")


def test_a_survivor_is_busy(cache: Path) -> None:
    """A kernel of the surviving rank keeps running while its communicator is aborted: the rank gets the error in time,
    and its data can be read."""
    with several(cache, 2, harmed=True, devices=DEVICES) as daemon, daemon.connect() as node:
        gpus = node.devices[:2]
        group, victim = hearth.Group(gpus), daemon.device_pid(1)
        kept, arrays = RankData(gpus[0], 7), reduced_once(group, LARGE)
        with gated(gpus[0]) as gate:
            gate.hold(stream=gpus[0].stream())
            for _ in range(MANY):
                group.all_reduce(arrays, timeout=LIMIT_S)
            strike(victim, signal.SIGKILL, contextlib.ExitStack())
            began = time.monotonic()
            with pytest.raises(hearth.HearthError):
                arrays[0].get()
            kept.check()
            assert time.monotonic() - began < LIMIT_S + LATE
        recovers(lambda: works(hearth.Group(gpus)), "the group")


def test_two_daemons(cache: Path) -> None:
    with TwoDaemons(cache) as world:
        assert [len(node.devices) for node in world.nodes] == [1, 1]
        assert len({gpu.properties.uuid for gpu in world.gpus}) == 2
        works(hearth.Group(world.gpus))
        for kind, rng in shuffled(("daemon killed", "held", "killed"), ROUNDS):
            order = rng.sample([0, 1], 2)  # the order decides which daemon coordinates
            victim = rng.randrange(2)
            daemon = world.daemons[order[victim]]
            pid = daemon.process.pid if kind == "daemon killed" else daemon.device_pid(0)
            with play(kind, world.group(order), victim, pid, rng):
                pass
            world.mend(order[victim] if kind == "daemon killed" else None)
            recovers(lambda order=order: works(world.group(order)), f"the group after a rank was {kind}")
