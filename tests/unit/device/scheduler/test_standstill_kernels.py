"""A full stream: later commands stay in the queue while the stream makes progress, and are deferred afterwards."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.device.streams.track import WHOLE_WINDOW, WINDOW
from tests.support.device.lane_rig import Laned, add, summed
from tests.support.device.rig import Command

LONG = 3600.0
FLOOD = 3 * WHOLE_WINDOW


class Gated(CpuServer):
    """A server whose kernels run one by one, as the test allows."""

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.launches = 0
        self._allowed = 0
        self._more = threading.Condition()

    def let(self, launches: int) -> None:
        with self._more:
            self._allowed += launches
            self._more.notify_all()

    def _wait(self) -> None:
        with self._more:
            self._more.wait_for(lambda: self._allowed > 0)
            self._allowed -= 1

    def launch(self, function: Any, grid: Any, block: Any, shared_mem: Any, stream: Any, *more: Any) -> None:
        self.launches += 1
        stream.submit(self._wait)
        super().launch(function, grid, block, shared_mem, stream, *more)


class Standing(Laned):
    server: Gated

    def __init__(self) -> None:
        super().__init__(Gated)

    def let(self, launches: int = 1 << 40) -> None:
        """Allows `launches` further launches to run."""
        self.server.let(launches)

    def stand(self, seconds: float) -> None:
        """Changes the time for which queues wait, for open sessions and later ones."""
        sharing = self.process.executor.sharing
        sharing.standstill_s = seconds
        for backlog in tuple(sharing.backlogs.values()):
            backlog.standstill.timeout = seconds

    def waiting(self) -> int:
        """Returns the number of deferred commands."""
        return int(self.gauges()["commands_waiting"])

    def given(self) -> int:
        """Returns the number of launches submitted to the device: about one full stream while the gate is closed."""
        assert self.server.launches > WHOLE_WINDOW - WINDOW
        return self.server.launches

    def flood(self, values: Sequence[int], stream: int = 0, buffer: int = 1) -> None:
        self.batch(Command(launches=b"".join(add(each, stream=stream, buffer=buffer).launches for each in values)))

    def stop(self) -> None:
        self.let()
        super().stop()


@pytest.fixture
def rig() -> Iterator[Standing]:
    made = Standing()
    made.prepare()
    yield made
    made.stop()


def test_launches_after_a_stalled_kernel_stay_queued(rig: Standing) -> None:
    rig.stand(LONG)
    values = [each % 7 for each in range(FLOOD)]
    rig.flood(values)
    assert rig.waiting() == 0
    assert rig.given() <= WHOLE_WINDOW
    rig.let()
    assert rig.sum() == summed(*values)
    assert rig.server.launches == FLOOD
    assert rig.waiting() == 0


def test_repeated_launches_after_a_stalled_kernel_stay_queued(rig: Standing) -> None:
    rig.stand(LONG)
    rig.let(100)
    rig.flood([5] * 100)
    assert rig.sum() == summed(*[5] * 100)
    rig.flood([5] * FLOOD)
    assert rig.waiting() == 0
    assert rig.given() <= 100 + WHOLE_WINDOW
    rig.let()
    assert rig.sum() == summed(*[5] * (100 + FLOOD))


def test_copies_and_fills_after_a_stalled_kernel_wait(rig: Standing) -> None:
    rig.stand(LONG)
    rig.flood([1] * WHOLE_WINDOW)
    rig.batch(
        Command(fill=c.Fill(buffer=1, size=8, pattern=b"\0")),
        Command(write=c.Write(buffer=1, data=(7).to_bytes(8, "little"))),
        add(1),
    )
    assert rig.waiting() == 0
    rig.let()
    assert rig.sum() == 7 * 3 + 1


def test_a_stalled_stream_delays_no_other(rig: Standing) -> None:
    rig.stand(0.05)
    rig.batch(
        Command(create_stream=c.CreateStream(stream=5)),
        Command(allocate=c.Allocate(buffer=2, size=8)),
        Command(stream=5, fill=c.Fill(buffer=2, size=8, pattern=b"\1")),
    )
    rig.call(stream=5, sync=c.Sync())
    rig.flood([1] * FLOOD)
    rig.batch(Command(stream=5, fill=c.Fill(buffer=2, size=8, pattern=b"\2")))
    result = rig.call(stream=5, read=c.Read(buffer=2, size=8))
    assert result.read.data == bytes([2] * 8)
    assert rig.waiting() == FLOOD - rig.given()
    rig.let()
    assert rig.sum() == summed(*[1] * FLOOD)


def test_deferred_commands_are_waited_for_while_the_stream_progresses(rig: Standing) -> None:
    rig.stand(0.0)
    rig.flood([1] * FLOOD)
    while (put_off := rig.waiting()) < FLOOD - WHOLE_WINDOW:
        pass
    rig.stand(LONG)
    rig.let(WINDOW)
    while rig.waiting() == put_off:
        pass
    rig.flood([2] * FLOOD)
    for _ in range(3):
        assert rig.waiting() < put_off, "no more of them"
    rig.let()
    assert rig.sum() == summed(*[1] * FLOOD, *[2] * FLOOD)


def test_ended_session_does_not_run_its_queued_launches(rig: Standing) -> None:
    rig.stand(LONG)
    rig.flood([1] * FLOOD)
    call = rig.start(read=c.Read(buffer=1, size=8))
    rig.send(Kind.CLOSE, channel=1)
    error = from_status(rig.answer(call).error)
    assert error.reason == Reason.SESSION_EXPIRED
    rig.let()
    rig.until(Kind.CLOSED)
    assert rig.given() <= WHOLE_WINDOW


def test_second_session_during_a_standstill(rig: Standing) -> None:
    rig.stand(LONG)
    values = [each % 5 for each in range(FLOOD)]
    rig.flood(values)
    rig.send(Kind.OPEN, b'{"session": "other", "tenant": "t"}', channel=2)
    client = rig.lane(2)
    client.batch(
        Command(allocate=c.Allocate(buffer=1, size=8)),
        Command(fill=c.Fill(buffer=1, size=8, pattern=b"\3")),
        Command(request=1, read=c.Read(buffer=1, size=8)),
    )
    assert client.response().result.read.data == bytes([3] * 8)
    rig.let()
    assert rig.sum() == summed(*values)
    rig.send(Kind.CLOSE, channel=2)
    rig.until(Kind.CLOSED)


@pytest.fixture(scope="module")
def open_rig() -> Iterator[Standing]:
    made = Standing()
    made.let()
    yield made
    made.stop()


RUNS = st.lists(
    st.tuples(st.sampled_from([0, 0, 5]), st.sampled_from(["run", "run", "fill", "many"]), st.integers(1, 400)),
    max_size=12,
)


@settings(max_examples=15, deadline=None)
@given(runs=RUNS, wait=st.sampled_from([0.0, 1e-5, LONG]), seed=st.integers(0, 99))
def test_any_program_ends_as_if_there_were_room(
    open_rig: Standing,
    runs: list[tuple[int, str, int]],
    wait: float,
    seed: int,
) -> None:
    """Uses two streams, each with a separate buffer; `many` floods its stream."""
    rig, dice = open_rig, random.Random(seed)
    rig.stand(wait)
    number = next(rig.ids) + 10  # the number of a channel that was never used
    rig.send(Kind.OPEN, b'{"session": "me", "tenant": "t"}', channel=number)
    client = rig.lane(number)
    client.batch(
        Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=rig.source)),
        Command(get_function=c.GetFunction(function=1, module=1, name="add")),
        Command(create_stream=c.CreateStream(stream=5)),
        *(Command(allocate=c.Allocate(buffer=buffer, size=8)) for buffer in (1, 2)),
        Command(fill=c.Fill(buffer=1, size=8, pattern=b"\0")),
        Command(stream=5, fill=c.Fill(buffer=2, size=8, pattern=b"\0")),
    )
    expected = {1: 0, 2: 0}
    for stream, kind, count in runs:
        buffer = 2 if stream else 1
        if kind == "fill":
            client.batch(Command(stream=stream, fill=c.Fill(buffer=buffer, size=8, pattern=b"\1")))
            expected[buffer] = int.from_bytes(bytes([1] * 8), "little")
            continue
        values = [dice.choice((1, 1, 1, dice.randrange(1 << 20))) for _ in range(count * (5 if kind == "many" else 1))]
        for start in range(0, len(values), 500):
            part = values[start : start + 500]
            client.batch(Command(launches=b"".join(add(v, stream=stream, buffer=buffer).launches for v in part)))
        for value in values:
            expected[buffer] = (expected[buffer] * 3 + value) % (1 << 64)
    for request, (buffer, stream) in enumerate(((1, 0), (2, 5)), 1):
        client.batch(Command(request=request, stream=stream, read=c.Read(buffer=buffer, size=8)))
        assert int.from_bytes(client.response().result.read.data, "little") == expected[buffer]
    rig.send(Kind.CLOSE, channel=number)
    rig.until(Kind.CLOSED)
