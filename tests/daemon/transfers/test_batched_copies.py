"""Arrays small enough for a batch are transferred by shared memory if the session repeats such copies, and never wait
for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.transfer import plan, ring_copy
from hearth.transfer.ring_buffer import INITIAL_SLOTS, Ring
from hearth.transport import memory_segments
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import gated
from tests.support.daemon.pinned_arrays import noise, same

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")
SIZE = 512 << 10
HABIT = 4
Rings = Callable[[], tuple[int, int]]


@pytest.fixture
def fresh(daemon: DaemonProcess) -> Iterator[hearth.Device]:
    """A device of a new session, without previous copies."""
    with daemon.connect() as node:
        yield node.device(0)


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Rings:
    """Yields a function that returns the number of uploads and downloads through the ring since its last call."""
    counts = {"RingUpload": 0, "RingDownload": 0}
    for name in counts:
        run = getattr(ring_copy, name).run

        def counted(self: Any, run: Any = run, name: str = name) -> int:
            moved: int = run(self)
            counts[name] += bool(moved)
            return moved

        monkeypatch.setattr(getattr(ring_copy, name), "run", counted)

    def asked() -> tuple[int, int]:
        found = counts["RingUpload"], counts["RingDownload"]
        counts.update(RingUpload=0, RingDownload=0)
        return found

    return asked


def test_repeated_copies_use_ring(fresh: hearth.Device, rings: Rings) -> None:
    x, out = fresh.empty(SIZE, np.uint8), np.empty(SIZE, np.uint8)
    for turn in range(HABIT // 2):
        x.set(noise(SIZE, turn))
        same(x.get(out=out), noise(SIZE, turn))
    assert rings() == (0, 0)
    for turn in range(5):
        x.set(noise(SIZE, 10 + turn))
        same(x.get(out=out), noise(SIZE, 10 + turn))
    assert rings() == (5, 5)


def test_small_copies_do_not_use_ring(fresh: hearth.Device, rings: Rings) -> None:
    size = plan.MIN_RING_BYTES - 1
    x = fresh.empty(size, np.uint8)
    for turn in range(2 * HABIT):
        x.set(noise(size, turn))
        same(x.get(), noise(size, turn))
    assert rings() == (0, 0)


def formed(gpu: hearth.Device, rings: Rings) -> hearth.DeviceArray:
    x = gpu.zeros(SIZE, np.uint8)
    for _ in range(HABIT + 1):
        x.get()
    assert rings() == (0, 1)
    return x


def test_copies_of_rows_and_copies_during_a_capture(fresh: hearth.Device, rings: Rings) -> None:
    formed(fresh, rings)
    wide = fresh.zeros((512, 4096), np.uint8)
    half = noise(512 * 1024, 5).reshape(512, 1024)
    wide[:, 1024:2048] = half
    same(np.ascontiguousarray(wide[:, 1024:2048].get()), half)
    assert wide.get().sum() == half.sum(dtype=np.uint64)
    ups, downs = rings()
    assert ups == 1 and downs >= 1
    y = fresh.zeros(SIZE, np.uint8)
    with pytest.raises(hearth.LaunchError, match="records graph"), fresh.graph():
        y.set(half.reshape(-1))
    assert rings() == (0, 0)


def test_without_lanes(daemon: DaemonProcess, rings: Rings) -> None:
    with daemon.connect(lanes=False) as node:
        x = node.device(0).empty(SIZE, np.uint8)
        for turn in range(2 * HABIT):
            x.set(noise(SIZE, turn))
            same(x.get(), noise(SIZE, turn))
    assert rings() == (0, 0)


def test_copies_do_not_wait_for_slots(fresh: hearth.Device, rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a kernel runs, no slot is returned: copies without a slot are sent in batches."""
    x = formed(fresh, rings)

    def wait(*_: object) -> bool:
        raise AssertionError("a copy waits")

    monkeypatch.setattr(Ring, "_await", wait)
    with gated(fresh) as gate:
        gate.hold()
        for turn in range(3 * INITIAL_SLOTS):
            x.set(noise(SIZE, turn))
        assert rings()[0] == INITIAL_SLOTS
    same(x.get(), noise(SIZE, 3 * INITIAL_SLOTS - 1))


def test_many_concurrent_threads(fresh: hearth.Device) -> None:
    arrays = [fresh.zeros(SIZE, np.uint8) for _ in range(6)]
    wrong: list[int] = []

    def work(number: int) -> None:
        x = arrays[number]
        for turn in range(10):
            host = noise(SIZE, number * 100 + turn)
            x.set(host)
            if not (x.get() == host).all():
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
