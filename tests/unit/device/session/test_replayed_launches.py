"""Remembered launches survive changes of objects that they do not use, and no change of an object that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from tests.support.device.lane_rig import Laned, add, summed
from tests.support.device.rig import Command


class Bound(CpuServer):
    """Counts the launches that were prepared for repetition, and refuses their repetition while `refuses` is set."""

    bound = 0
    refuses = False

    def bind_launch(self, *what: Any) -> Callable[[], object]:
        self.bound += 1
        again = super().bind_launch(*what)

        def call() -> None:
            if self.refuses:
                raise Refusal(Reason.LAUNCH_FAILED, "not by this way")
            again()

        return call


@pytest.fixture
def rig() -> Iterator[Laned]:
    made = Laned(Bound)
    made.prepare()
    yield made
    made.stop()


def launch(rig: Laned, times: int = 8) -> None:
    rig.batch(Command(launches=add(1).launches * times))


def bound(rig: Laned) -> int:
    rig.call(sync=c.Sync())
    return rig.server.bound  # type: ignore[attr-defined, no-any-return]


def test_unrelated_changes_keep_replay_valid(rig: Laned) -> None:
    launch(rig)
    assert bound(rig) == 1
    for number in range(2, 6):
        rig.batch(
            Command(allocate=c.Allocate(buffer=number, size=8)),
            Command(record_event=c.RecordEvent(event=number)),
            add(1),
            Command(destroy_event=c.DestroyEvent(event=number)),
            Command(free=c.Free(buffers=[number])),
            add(1),
        )
    assert bound(rig) == 1
    assert rig.sum() == summed(*[1] * 16)


def test_freed_buffer_invalidates_its_replays(rig: Laned) -> None:
    rig.batch(Command(allocate=c.Allocate(buffer=2, size=8)), Command(fill=c.Fill(buffer=2, size=8, pattern=b"\0")))
    launch(rig)
    rig.batch(Command(launches=add(1, buffer=2).launches * 4))
    assert bound(rig) == 2
    rig.batch(Command(free=c.Free(buffers=[2])), add(1, buffer=2))
    error = from_status(rig.call(sync=c.Sync()).error)
    assert error.reason == Reason.INVALID_HANDLE
    assert "buffer 2" in error.message
    launch(rig)
    assert bound(rig) == 3, "all launches are checked again"
    assert rig.sum() == summed(*[1] * 16)


def test_refused_replay_takes_queued_path(rig: Laned) -> None:
    launch(rig)
    assert bound(rig) == 1
    rig.server.refuses = True  # type: ignore[attr-defined]
    launch(rig)
    assert rig.sum() == summed(*[1] * 16)
    rig.server.refuses = False  # type: ignore[attr-defined]
    launch(rig)
    assert rig.sum() == summed(*[1] * 24)
