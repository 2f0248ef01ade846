"""Who waits for a large copy is awake when its answer comes, and asks for it no longer than is worth it."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hearth import lookout
from hearth.lookout import DOWN, UP, Lookout
from hearth.transport import lane as lanes
from hearth.transport.lane import Lane
from hearth_proto.frames import FrameReader

SIZE = 64 << 20


class Foresight(Lookout):
    """Says what the test wants, and counts how often it is asked."""

    def __init__(self, at: float, until: float) -> None:
        super().__init__()
        self.at, self.until = at, until
        self.asked = 0

    @property
    def ahead(self) -> float:
        self.asked += 1
        now = time.perf_counter()
        return math.inf if now >= self.until else max(0.0, self.at - now)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Lane]]:
    theirs, ours = socket.socketpair()
    yield theirs, Lane(ours, FrameReader(), [])
    theirs.close()
    ours.close()


def foresight(ahead: float, length: float = 0.05) -> Foresight:
    now = time.perf_counter()
    return Foresight(now + ahead, now + ahead + length)


def test_where_nothing_is_foreseen_nobody_asks(ends: tuple[socket.socket, Lane]) -> None:
    nothing = Foresight(math.inf, math.inf)
    ends[1].look_out(nothing)
    assert nothing.asked == 1


def test_it_sleeps_until_shortly_before_and_is_awake_then(
    ends: tuple[socket.socket, Lane], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, lane = ends
    slept: list[float] = []
    select = lanes._select
    monkeypatch.setattr(lanes, "_select", lambda number, seconds: slept.append(seconds) or select(number, seconds))
    ahead = foresight(0.0207, 5.0)
    threading.Timer(0.05, theirs.send, (b"x",)).start()
    lane.look_out(ahead)
    assert lane.readable(0) and time.perf_counter() < ahead.until
    assert ahead.asked > 5, "it did not ask"
    assert all(0 < each < 0.0207 for each in slept)


def test_what_comes_before_ends_the_sleep(ends: tuple[socket.socket, Lane]) -> None:
    theirs, lane = ends
    ahead = foresight(30.0)
    threading.Timer(0.02, theirs.send, (b"x",)).start()
    lane.look_out(ahead)
    assert lane.readable(0) and time.perf_counter() < ahead.at
    assert ahead.asked <= 3


def test_it_gives_up_when_it_is_likely_no_more(ends: tuple[socket.socket, Lane]) -> None:
    lane, ahead = ends[1], foresight(0.003, 0.002)
    lane.look_out(ahead)
    assert time.perf_counter() >= ahead.until and not lane.readable(0)


def test_a_high_descriptor_sleeps_as_ever(ends: tuple[socket.socket, Lane]) -> None:
    assert not lanes._select(4096, 10.0)


def test_a_lane_that_was_closed(ends: tuple[socket.socket, Lane]) -> None:
    lane, ahead = ends[1], foresight(30.0)
    threading.Timer(0.02, lane.close).start()
    lane.look_out(ahead)
    lane.release()
    lane.look_out(ahead)
    assert time.perf_counter() < ahead.at


def test_answers_are_foreseen_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(lookout.time, "perf_counter", lambda: now)
    look = Lookout()
    first = look.sent(UP, SIZE)
    assert look.ahead == math.inf
    now += 1e-3
    look.ended(first, well=True)
    failed = look.sent(UP, SIZE)
    assert 0.9e-3 < look.ahead < 1e-3
    now += 1e-6
    look.ended(failed, well=False)
    look.ended(failed, well=True)  # a second time does nothing
    assert look.ahead == math.inf and look.sent(DOWN, SIZE) is not None and look.ahead == math.inf
    assert look.sent(UP, SIZE) is not None
    assert 0.9e-3 < look.ahead < 1e-3, "what failed at once has told nothing"
    now += 1e-3
    assert look.ahead == 0.0
    now += 1e-3
    assert look.ahead == math.inf
    look.ended(None, well=True)


def test_only_where_cores_are_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, made in ((lookout.CORES - 1, False), (lookout.CORES, True)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert (lookout.lookout() is not None) is made
