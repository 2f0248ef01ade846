"""Many launches with one command: in order, as often as requested, and never more in flight than a track accepts."""

from __future__ import annotations

import itertools
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.graphs import repeat
from hearthd.device.graphs.repeat import MAX_PER_ITERATION, LaunchProgram, Rounds, check_count
from hearthd.device.launch.holdings import Holdings, Keepers, Uses
from hearthd.device.launch.watchdog import Watchdog
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_pool import WINDOW, WINDOWS, PooledStream, StreamPool
from tests.support.compiled import skip_if_compiled


class Event:
    def __init__(self) -> None:
        self.done = False


class Server:
    """A server with one stream that runs only on request."""

    def __init__(self) -> None:
        self.queue: deque[Event | int] = deque()
        self.most = 0

    def on_progress(self, _wake: Any) -> bool:
        return True

    def create_stream(self, _priority: int) -> object:
        return object()

    def record(self, _stream: object, *, timing: bool = False) -> Event:
        self.queue.append(Event())
        return cast(Event, self.queue[-1])

    def done(self, event: Event) -> bool:
        return event.done

    def release_event(self, event: Event) -> None:
        assert event.done

    def give(self, cost: int) -> None:
        self.queue.append(cost)
        self.most = max(self.most, sum(each for each in self.queue if isinstance(each, int)))

    @property
    def busy(self) -> bool:
        return any(isinstance(each, int) for each in self.queue)

    def run(self, steps: int) -> None:
        for _ in range(min(steps, len(self.queue))):
            each = self.queue.popleft()
            if isinstance(each, Event):
                each.done = True


class Fake(LaunchProgram):
    __slots__ = ("price",)

    def __init__(self, price: int, buffers: list[Buffer]) -> None:
        keeper = SimpleNamespace(hold=lambda _: None, unhold=lambda *_: None)
        super().__init__(1, Holdings(cast(DeviceSession, None), cast(Keepers, Keepers(keeper, keeper, keeper))))
        self.price = price
        self.holdings.add(Uses(written=tuple(buffers)))

    empty = property(lambda self: not self.price)
    cost = property(lambda self: self.price)
    names = property(lambda self: ["kernel"])


class Bench:
    """A track on that server, and rounds on the track."""

    def __init__(self, price: int) -> None:
        skip_if_compiled(repeat)  # an interpreted class cannot inherit from a compiled one
        self.server = Server()
        self.tracks = StreamPool(cast(Any, self.server), 1, lambda: None)
        self.track: PooledStream = self.tracks.acquire()
        self.stream = LogicalStream(0, self.track)
        self.again = 0
        """Number of requests to be tried again in the next iteration of the loop."""
        self.device = cast(
            DeviceContext, SimpleNamespace(tracks=self.tracks, begin=lambda _stream: None, retry_soon=self._count_again)
        )
        self.program = Fake(price, [Buffer(1, 8)])
        self.given = 0

    def _count_again(self) -> None:
        self.again += 1

    def rounds(self, count: int, **more: Any) -> Rounds:
        def issue(some: int) -> None:
            self.given += some
            for _ in range(some):
                self.server.give(self.program.price)

        return Rounds(self.device, Watchdog(self.tracks), self.stream, self.program, count, issue, **more)

    def finish(self, rounds: Rounds, pace: int) -> int:
        """Runs all rounds, and returns the number of attempts; the device runs `pace` steps between two attempts."""
        turns = 1
        while not rounds.run():
            self.server.run(pace)
            self.tracks.poll()
            assert not (self.tracks.done(self.track) and self.server.busy), "done before all submitted launches are"
            turns += 1
            assert turns < 100_000, "stuck"
        return turns


@given(st.integers(1, 3 * WINDOW), st.integers(1, 5000), st.integers(1, 2000), st.integers(0, 2 * WINDOW))
def test_all_rounds_run_and_the_track_regains_its_capacity(price: int, count: int, pace: int, before: int) -> None:
    bench = Bench(min(price, WINDOW))
    for _ in range(before):  # other commands on the track
        bench.tracks.claim_position(bench.track, ())
    count = min(count, 40_000 // bench.program.price)
    bench.finish(bench.rounds(count), pace)
    assert bench.given == count
    assert bench.server.most <= WINDOW * (WINDOWS + 1)
    bench.server.run(10**9)
    bench.tracks.poll()
    assert WINDOW * (WINDOWS - 1) < bench.track.budget <= WINDOW * WINDOWS
    assert not bench.track.pending


def test_a_turn_of_the_loop_gives_a_bounded_number() -> None:
    bench = Bench(1)
    rounds = bench.rounds(10_000)
    assert not rounds.run()
    assert bench.given == MAX_PER_ITERATION
    while bench.given < WINDOW * WINDOWS:
        before = bench.given
        assert not rounds.run()
        assert bench.given - before <= MAX_PER_ITERATION
    assert not rounds.run() and bench.given == WINDOW * WINDOWS  # full, and the device has not progressed


@pytest.mark.parametrize("price", [1, 10, WINDOW])
def test_launches_are_submitted_before_the_device_is_idle(price: int) -> None:
    """Otherwise the device would be idle after each turn until completion is noticed."""
    bench = Bench(price)
    rounds = bench.rounds(10_000)
    for turns in itertools.count(1):
        assert not rounds.run()
        if bench.track.closed:
            break
        assert bench.again == turns
    assert turns > 1 and bench.again == turns - 1, "then it waits until the device has completed launches"
    assert bench.server.busy


def test_last_round_requests_no_further_turn() -> None:
    bench = Bench(1)
    assert bench.rounds(MAX_PER_ITERATION).run() and not bench.again


def test_an_empty_program_and_one_that_was_not_made() -> None:
    bench = Bench(0)
    assert bench.rounds(2**64 - 1).run() and not bench.given
    bench = Bench(1)
    bench.program.error = Refusal(Reason.CAPTURE_INVALID, "it was not made")
    with pytest.raises(Refusal, match="not made"):
        bench.rounds(1).run()
    assert not bench.given


def test_each_round_has_its_own_time() -> None:
    bench = Bench(5)
    names = iter(f"kernel {number}" for number in range(1000))
    rounds = bench.rounds(300, limit=lambda: (next(names), 2.0))
    bench.finish(rounds, 50)
    assert bench.given == 300 and next(names) == "kernel 300"


def test_launching_nothing_is_refused() -> None:
    check_count(1, "graph 3")
    with pytest.raises(Refusal, match="graph 3 is to be launched 0 times"):
        check_count(0, "graph 3")
