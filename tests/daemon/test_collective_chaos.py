"""Ranks that are killed, stopped or held up in the middle of a collective: the others are told within a second after
its timeout, keep their data, and go on, without the lost rank at once, with it when it serves again. No round hangs.

HEARTH_TEST_ROUNDS=50 is the whole of it: so many rounds of a node's devices, and of two daemons.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import hearth

from .collective_ranks import BUILT_S, LATE, several
from .harness import DaemonProcess, on_cpu
from .kernels import gated

ROUNDS = int(os.environ.get("HEARTH_TEST_ROUNDS", "4"))
SEED = int(os.environ.get("HEARTH_TEST_SEED", "1"))
TIMEOUT_S = 1.0
"""Of the operations that are going to fail."""
HEALED_S = 30.0
LARGE = 3_000_000
"""Elements that take some tens of milliseconds on the CPU backend."""

pytestmark = [on_cpu, pytest.mark.timeout(60 + 20 * ROUNDS, method="thread")]


def works(group: hearth.Group) -> None:
    """It computes what it should, and is closed."""
    with group:
        devices, n = group.devices, len(group)
        arrays = [gpu.full(1000, rank + 1, np.int32) for rank, gpu in enumerate(devices)]
        group.all_reduce(arrays, timeout=HEALED_S)
        gathered = group.all_gather([gpu.full(7, rank, np.int8) for rank, gpu in enumerate(devices)], timeout=HEALED_S)
        for array, row in zip(arrays, gathered, strict=True):
            assert set(array.get()) == {n * (n + 1) // 2}
            np.testing.assert_array_equal(row.get(), np.repeat(np.arange(n), 7).reshape(n, 7))


def recovers(work: Callable[[], None], what: str) -> None:
    """Until it works: a process that is being replaced may fail it a few times, none of them for long."""
    deadline = time.monotonic() + HEALED_S
    while True:
        try:
            return work()
        except hearth.HearthError as error:
            assert time.monotonic() < deadline, f"{what} does not work again: {error}"
            time.sleep(0.02)


class Kept:
    """A survivor's data, which no trouble may change."""

    def __init__(self, gpu: hearth.Device, seed: int) -> None:
        self._host = np.random.default_rng(seed).integers(0, 1 << 30, 50_000)
        self._array = gpu.asarray(self._host)
        gpu.synchronize()

    def check(self) -> None:
        np.testing.assert_array_equal(self._array.get(), self._host)


def told(gpu: hearth.Device, began: float, timeout: float) -> str:
    """What the rank is told of the operation that it began then, in time."""
    try:
        gpu.synchronize(timeout=30)
    except hearth.CommunicatorError as error:
        late = time.monotonic() - began - timeout
        assert late < LATE, f"told {late:.2f} s after the timeout: {error}"
        return error.reason
    raise AssertionError(f"{gpu!r} was told nothing")


class Round(NamedTuple):
    """What befalls whom: a rank whose kernel keeps it from the exchange, or one in the middle of it."""

    held: bool = True
    """A kernel that has no end runs in front of the collective."""
    device: signal.Signals | None = None
    """What its device process gets then,"""
    daemon: signal.Signals | None = None
    """or its daemon."""


def strike(pid: int, what: signal.Signals, stack: contextlib.ExitStack) -> None:
    """A process that is stopped goes on when the stack is closed."""
    os.kill(pid, what)
    if what == signal.SIGSTOP:
        stack.callback(_continue, pid)


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def play(
    round_: Round, group: hearth.Group, victim: int, daemon: DaemonProcess, rng: random.Random
) -> contextlib.ExitStack:
    """One collective that cannot end well; when it returns all survivors have been told, in time, and go on. The victim
    stays as it is until the stack is closed. `daemon`: the victim's."""
    survivors = [gpu for rank, gpu in enumerate(group.devices) if rank != victim]
    kept = [Kept(gpu, seed) for seed, gpu in enumerate(survivors)]
    gpu = group.devices[victim]
    pid = daemon.process.pid if round_.daemon else daemon.device_pid(gpu.ordinal)
    arrays = [each.ones(10 if round_.held else LARGE, np.float32) for each in group.devices]
    group.all_reduce(arrays, timeout=HEALED_S)
    for each in group.devices:
        each.synchronize()
    with contextlib.ExitStack() as stack:
        if round_.held:
            stack.enter_context(gated(gpu)).hold()
        timeout = TIMEOUT_S if round_.held else HEALED_S
        for _ in range(1 if round_.held else 10):
            group.all_reduce(arrays, timeout=timeout)
        began = time.monotonic()
        what = round_.device or round_.daemon
        if what:
            time.sleep(rng.uniform(0, 0.04))  # the moment is what is tried
            strike(pid, what, stack)
        if what == signal.SIGKILL:
            began, timeout = time.monotonic(), TIMEOUT_S  # its loss is seen at once
        for survivor in survivors:
            told(survivor, began, timeout)
        for each in kept:
            each.check()
        works(group.rebuild(without=victim))
        return stack.pop_all()


DEVICE_ROUNDS = [
    Round(False, device=signal.SIGKILL), Round(device=signal.SIGSTOP), Round(), Round(device=signal.SIGKILL)
]  # fmt: skip
DAEMON_ROUNDS = [
    Round(daemon=signal.SIGKILL), Round(device=signal.SIGKILL), Round(daemon=signal.SIGSTOP),
    Round(False, daemon=signal.SIGKILL), *DEVICE_ROUNDS[:3],
]  # fmt: skip


def rounds(kinds: list[Round]) -> Iterator[tuple[Round, random.Random]]:
    """Each kind as often as any other; at first in this order, then in any."""
    rng = random.Random(SEED)
    left = kinds[::-1]
    for _ in range(ROUNDS):
        if not left:
            left = rng.sample(kinds, len(kinds))
        yield left.pop(), rng


DEVICES = {"max_faults": 100_000, "max_restarts": 100_000}


def test_devices_of_a_daemon(cache: Path) -> None:
    with several(cache, 3, harmed=True, devices=DEVICES) as daemon, daemon.connect() as node:
        gpus = node.devices[:3]
        for round_, rng in rounds(DEVICE_ROUNDS):
            order = rng.sample(gpus, 3)
            victim = rng.randrange(3)
            group = hearth.Group(order)
            with play(round_, group, victim, daemon, rng):
                assert group.closed
            recovers(lambda order=order: works(hearth.Group(order)), f"the group after {round_}")


def built(gpu: hearth.Device) -> None:
    """What is built for the first group of a cache is."""
    hearth.Group([gpu]).all_reduce([gpu.ones(1)], timeout=BUILT_S)
    gpu.synchronize()


class Daemons:
    """Two, of one device each, and a session of each."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.daemons: list[DaemonProcess] = []
        self.nodes: list[hearth.Node] = []
        try:
            for _ in range(2):
                self.daemons.append(DaemonProcess(cache, {"devices": DEVICES}, 1))
                self.nodes.append(self.daemons[-1].connect())
            built(self.gpus[0])
        except BaseException:
            self.close()
            raise

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
                self.daemons[index] = DaemonProcess(self._cache, {"devices": DEVICES}, 1, after=daemon)
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
        for round_, rng in rounds(DAEMON_ROUNDS):
            order = rng.sample([0, 1], 2)  # whose daemon coordinates
            victim = rng.randrange(2)
            group = hearth.Group([world.gpus[index] for index in order])
            with play(round_, group, victim, world.daemons[order[victim]], rng):
                assert group.closed
            world.mend()
            gpus = [world.gpus[index] for index in order]
            recovers(lambda gpus=gpus: works(hearth.Group(gpus)), f"the group after {round_}")
    finally:
        world.close()
