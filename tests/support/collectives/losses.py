"""Loss of ranks in the middle of a collective: the ways to cause it, and the guarantees for the other ranks."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

import hearth
from tests.support.timing import LATE

SEED = int(os.environ.get("HEARTH_TEST_SEED", "1"))
HEALED_S = 30.0
DEVICES = {"max_faults": 100_000, "max_restarts": 100_000}
"""Settings of daemons whose devices are lost repeatedly."""

Kind = TypeVar("Kind")


def shuffled(kinds: Sequence[Kind], rounds: int) -> Iterator[tuple[Kind, random.Random]]:
    """Yields each kind equally often: in the given order at first, in random order afterwards."""
    rng = random.Random(SEED)
    remaining = [*kinds[::-1]]
    for _ in range(rounds):
        if not remaining:
            remaining = rng.sample(kinds, len(kinds))
        yield remaining.pop(), rng


def strike(pid: int, signal_number: signal.Signals, stack: contextlib.ExitStack) -> None:
    """Sends a signal to a process; a stopped process continues when `stack` is closed."""
    os.kill(pid, signal_number)
    if signal_number == signal.SIGSTOP:
        stack.callback(_continue, pid)


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def works(group: hearth.Group) -> None:
    """Checks that the group computes correct results, and closes it."""
    with group:
        devices, n = group.devices, len(group)
        arrays = [gpu.full(1000, rank + 1, np.int32) for rank, gpu in enumerate(devices)]
        group.all_reduce(arrays, timeout=HEALED_S)
        gathered = group.all_gather([gpu.full(7, rank, np.int8) for rank, gpu in enumerate(devices)], timeout=HEALED_S)
        for array, row in zip(arrays, gathered, strict=True):
            assert set(array.get()) == {n * (n + 1) // 2}
            np.testing.assert_array_equal(row.get(), np.repeat(np.arange(n), 7).reshape(n, 7))


def recovers(work: Callable[[], None], subject: str) -> None:
    """Repeats `work` until it succeeds: a process that is being replaced may fail it a few times, but only for a short
    time."""
    deadline = time.monotonic() + HEALED_S
    while True:
        try:
            return work()
        except hearth.HearthError as error:
            assert time.monotonic() < deadline, f"{subject} does not work again: {error}"
            time.sleep(0.02)


def reduced_once(group: hearth.Group, elements: int) -> list[hearth.DeviceArray]:
    """Returns float32 arrays that the group has reduced. Afterwards the group's communicator exists and no operation is
    pending."""
    arrays = [gpu.ones(elements, np.float32) for gpu in group.devices]
    group.all_reduce(arrays, timeout=HEALED_S)
    for gpu in group.devices:
        gpu.synchronize()
    return arrays


class RankData:
    """Data of a surviving rank, which must not change."""

    def __init__(self, gpu: hearth.Device, seed: int) -> None:
        self._host = np.random.default_rng(seed).integers(0, 1 << 30, 50_000)
        self._array = gpu.asarray(self._host)
        gpu.synchronize()

    def check(self) -> None:
        np.testing.assert_array_equal(self._array.get(), self._host)


def reported_reason(gpu: hearth.Device, began: float, timeout: float) -> str:
    """Returns the reason of the error that the rank raises for the operation begun at `began`, and checks that the
    error arrives in time."""
    try:
        gpu.synchronize(timeout=30)
    except hearth.CommunicatorError as error:
        seconds_late = time.monotonic() - began - timeout
        assert seconds_late < LATE, f"reported {seconds_late:.2f} s after the timeout: {error}"
        return error.reason
    raise AssertionError(f"{gpu!r} received no error")


class Survivors:
    """All ranks of a group except `victim`, each with its own data."""

    def __init__(self, group: hearth.Group, victim: int) -> None:
        self._group, self._victim = group, victim
        self._gpus = [gpu for rank, gpu in enumerate(group.devices) if rank != victim]
        self._kept = [RankData(gpu, seed) for seed, gpu in enumerate(self._gpus)]

    def go_on(self, began: float, timeout: float) -> None:
        """Checks that all surviving ranks get the error of the operation begun at `began` in time, that their data is
        unchanged, and that a group rebuilt without the victim works."""
        for gpu in self._gpus:
            reported_reason(gpu, began, timeout)
        for data in self._kept:
            data.check()
        works(self._group.rebuild(without=self._victim))
