"""Steps: repeated launches with a wait bypass the backlog, only while the session is alone, with the same results."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto.frames import Kind
from hearth_proto.reasons import from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from tests.support.device.batch_programs import BROKEN, LAUNCH, Step, run
from tests.support.device.lane_rig import add, batch, summed, sync
from tests.support.device.passing import Passing, Polled, both_ways, prepared
from tests.support.device.rig import Command


@pytest.fixture(params=[CpuServer, Polled])
def rig(request: pytest.FixtureRequest) -> Iterator[Passing]:
    yield from prepared(Passing(request.param))


@pytest.fixture(scope="module", params=[CpuServer, Polled])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Passing, Passing]]:
    yield from both_ways(Passing, request.param)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """A batch of at most one launch, and a wait for one stream or for all."""
    records = draw(st.lists(st.one_of(LAUNCH, LAUNCH, LAUNCH, BROKEN), max_size=1))
    wait = Command(request=1, stream=draw(st.sampled_from([0, 0, 5])), sync=c.Sync(all_streams=draw(st.booleans())))
    return Step((*[Command(launches=each) for each in records], wait), True)


@given(st.lists(steps(), min_size=2, max_size=12))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_steps_give_the_results_of_the_general_way(pair: tuple[Passing, Passing], program: list[Step]) -> None:
    short, general = pair
    assert run(short, program) == run(general, program)
    assert not general.steps


def test_repeated_launch_with_a_wait_is_a_step(rig: Passing) -> None:
    client = rig.lane()
    for number in range(1, 41):
        client.batch(add(1), Command(request=number, sync=c.Sync(all_streams=bool(number % 2))))
        assert client.response().result.request == number
    client.batch(sync(41))
    assert client.response().result.request == 41
    rig.barrier()
    assert rig.steps >= 39 and rig.sum() == summed(*[1] * 40)  # the first two launches are not in the cache yet
    counters = rig.counters()
    assert counters["kernel_launches"] == 40 and counters["batches"] == 41 and counters["sync_points"] >= 41
    assert rig.end_lane() == 41
    copies = rig.copies()
    assert max(frame.id for frame in copies if frame.kind in (Kind.ACK, Kind.RESPONSE)) == 41


def test_a_step_reports_the_failure_of_a_launch_before_it(rig: Passing) -> None:
    client = rig.lane()
    client.batch(add(1), sync(1))
    client.response()
    client.batch(add(1, buffer=9))
    client.batch(sync(2))
    error = from_status(client.response().result.error)
    assert error.reason == "INVALID_HANDLE"
    client.batch(sync(3))
    assert client.response().result.HasField("done"), "the failure is reported once"


OTHERS: dict[str, Any] = {
    "permissions": lambda rig, session: setattr(session, "permissions", object()),
    "trace": lambda rig, session: setattr(session, "trace", object()),
    "dropping": lambda rig, session: setattr(session, "dropping", True),
    "slices": lambda rig, session: setattr(rig.process.executor.sharing.slicing, "on", True),
    "turns": lambda rig, session: setattr(rig.process.executor.sharing.turns, "on", True),
    "seq": lambda rig, session: setattr(session, "last_seq", session.last_seq + 1),
}


@pytest.mark.parametrize(
    "other", [*OTHERS, "deferred", "called", "capture", "request", "write", "two records", "nothing"]
)
def test_other_batches_and_busy_sessions_take_the_general_way(rig: Passing, other: str) -> None:
    client = rig.lane()
    for number in range(1, 4):
        client.batch(add(1), sync(number))
        client.response()
    if other == "deferred":
        client.batch(Command(write=c.Write(buffer=1, size=8, transfer=5)))
    elif other == "called":
        rig.start(write=c.Write(buffer=1, size=8, transfer=5))
    elif other == "capture":
        client.batch(Command(begin_capture=c.BeginCapture(graph=1)))
    rig.submitted(client)
    executor = rig.process.executor
    session = executor.session(1)
    assert session is not None
    seq, last = session.last_seq + 1, sync(0 if other == "request" else 9)
    first = {"write": Command(write=c.Write(buffer=1, data=b"12345678"))}.get(other, add(1))
    if other == "two records":
        first = Command(launches=first.launches * 2)
    payload = batch(seq, first, last)[20:]
    steps = executor.steps
    ran: list[bool] = []
    done = threading.Event()

    def attempt() -> None:
        OTHERS.get(other, lambda rig, session: None)(rig, session)
        ran.append(steps.execute(rig.process.outbox.lanes[1], session, seq, payload))
        executor.sharing.slicing.on = executor.sharing.turns.on = False
        session.permissions = session.trace = None
        session.dropping = False
        done.set()

    rig.process.loop.post(attempt)
    assert done.wait(30)
    assert ran == [other == "nothing"]
