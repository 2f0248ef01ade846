"""GPUs whose process or daemon is killed, stopped or held up in the middle of NCCL's work: the others are told within a
second after the timeout, keep their data, and go on; a group that is rebuilt works. No round hangs.

HEARTH_TEST_BACKEND=cuda; HEARTH_TEST_ROUNDS=50 is the whole of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hearth
from tests.daemon.collective_ranks import LATE, several
from tests.daemon.harness import DaemonProcess, on_gpu
from tests.daemon.kernels import gated
from tests.daemon.test_collective_chaos import DEVICES, HEALED_S, Kept, recovers, strike, told, works

ROUNDS = int(os.environ.get("HEARTH_TEST_ROUNDS", "3"))
SEED = int(os.environ.get("HEARTH_TEST_SEED", "1"))
LARGE = 1 << 26
"""Elements of 4 bytes: some 0.9 ms on two H200s."""
MANY = 300
"""So many of them are under way for some tenths of a second."""
LIMIT_S = 2.0
"""Timeout of the operations that are going to fail: all would be done in less."""
KINDS = ("killed", "held and killed", "held", "stopped")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    on_gpu,
    pytest.mark.timeout(90 + 25 * ROUNDS, method="thread"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


def in_turn(kinds: tuple[str, ...]) -> Iterator[tuple[str, random.Random]]:
    """Each kind as often as any other, in random order."""
    rng = random.Random(SEED)
    left: list[str] = []
    for _ in range(ROUNDS):
        if not left:
            left = list(kinds)
            rng.shuffle(left)
        yield left.pop(), rng


def play(kind: str, group: hearth.Group, victim: int, pid: int, rng: random.Random) -> contextlib.ExitStack:
    """Collectives that cannot end well; when it returns the survivors were told in time and go on. The victim stays as
    it is until the stack is closed. `pid`: of what is killed or stopped."""
    survivors = [gpu for rank, gpu in enumerate(group.devices) if rank != victim]
    kept = [Kept(gpu, seed) for seed, gpu in enumerate(survivors)]
    held = kind.startswith("held")
    arrays = [gpu.ones(10 if held else LARGE, np.float32) for gpu in group.devices]
    group.all_reduce(arrays, timeout=HEALED_S)
    for gpu in group.devices:
        gpu.synchronize()
    with contextlib.ExitStack() as stack:
        if held:
            stack.enter_context(gated(group.devices[victim])).hold()
        began = time.monotonic()
        for _ in range(1 if held else MANY):
            group.all_reduce(arrays, timeout=LIMIT_S)
        if kind != "held":
            time.sleep(rng.uniform(0, 0.04))  # the moment is what is tried
            strike(pid, signal.SIGSTOP if kind == "stopped" else signal.SIGKILL, stack)
            # What is under way ends at once; what the lost one had not come to yet, at the end of its own time.
            began = time.monotonic()
        for survivor in survivors:
            told(survivor, began, LIMIT_S)
        for each in kept:
            each.check()
        works(group.rebuild(without=victim))
        return stack.pop_all()


def test_devices_of_a_daemon(cache: Path) -> None:
    with several(cache, 2, harmed=True, devices=DEVICES) as daemon, daemon.connect() as node:
        gpus = node.devices[:4]
        for kind, rng in in_turn(KINDS):
            order = rng.sample(gpus, len(gpus))
            victim = rng.randrange(len(gpus))
            with play(kind, hearth.Group(order), victim, daemon.device_pid(order[victim].ordinal), rng):
                pass
            recovers(lambda order=order: works(hearth.Group(order)), f"the group after a rank was {kind}")


def test_a_survivor_is_busy(cache: Path) -> None:
    """A kernel of its own runs on while its communicator is aborted: it is told in time, and its data can be read."""
    with several(cache, 2, harmed=True, devices=DEVICES) as daemon, daemon.connect() as node:
        gpus = node.devices[:2]
        group, victim = hearth.Group(gpus), daemon.device_pid(1)
        kept, arrays = Kept(gpus[0], 7), [gpu.ones(LARGE, np.float32) for gpu in gpus]
        group.all_reduce(arrays, timeout=HEALED_S)
        for gpu in gpus:
            gpu.synchronize()
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


class Daemons:
    """Two, of one GPU each, and a session of each."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.daemons: list[DaemonProcess] = []
        self.nodes: list[hearth.Node] = []
        try:
            for index in range(2):
                self.daemons.append(DaemonProcess(cache, self._config(index), 1))
                self.nodes.append(self.daemons[-1].connect())
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _config(index: int) -> dict[str, dict[str, object]]:
        return {"devices": {**DEVICES, "visible": [index]}}

    @property
    def gpus(self) -> list[hearth.Device]:
        return [node.device(0) for node in self.nodes]

    def mend(self) -> None:
        """One that was killed is started again, on its old addresses."""
        for index, daemon in enumerate(self.daemons):
            if daemon.process.poll() is not None:
                self.nodes[index].close()
                daemon.stop()
                assert not daemon.left_behind()
                self.daemons[index] = DaemonProcess(self._cache, self._config(index), 1, after=daemon)
                self.nodes[index] = self.daemons[index].connect()

    def close(self) -> None:
        left: list[str] = []
        for node in self.nodes:
            node.close()
        for daemon in self.daemons:
            daemon.stop()
            left += daemon.left_behind()
            daemon.remove()
        assert not left


def test_two_daemons(cache: Path) -> None:
    world = Daemons(cache)
    try:
        assert [len(node.devices) for node in world.nodes] == [1, 1]
        assert len({gpu.properties.uuid for gpu in world.gpus}) == 2
        works(hearth.Group(world.gpus))
        for kind, rng in in_turn(("daemon killed", "killed", "held")):
            order = rng.sample([0, 1], 2)  # whose daemon coordinates
            victim = rng.randrange(2)
            daemon = world.daemons[order[victim]]
            pid = daemon.process.pid if kind == "daemon killed" else daemon.device_pid(0)
            with play(kind, hearth.Group([world.gpus[index] for index in order]), victim, pid, rng):
                pass
            world.mend()
            gpus = [world.gpus[index] for index in order]
            recovers(lambda gpus=gpus: works(hearth.Group(gpus)), f"the group after a rank was {kind}")
    finally:
        world.close()
