"""Accounting of device time among sessions with work on the device: no time is lost, and none is charged twice."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.frames import Kind
from hearthd.device.platform.telemetry import Telemetry
from hearthd.device.scheduler.backlog import Backlog
from hearthd.device.scheduler.device_time import REPORT_S, DeviceTimeMeter
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import PooledStream


def payer(name: str, debt: float = math.inf) -> Backlog:
    backlog = Backlog(DeviceSession(1, {"session": name}, lambda priority: PooledStream(0, None, priority)))
    backlog.debt = debt
    return backlog


class Rig:
    def __init__(self) -> None:
        self.now = 100.0
        self.told: dict[str, int] = {}
        self.reports = 0
        self.charged: dict[str, float] = {}
        self.telemetry = Telemetry()
        self.meter = DeviceTimeMeter(self.put, self.telemetry, self.charge, lambda: self.now)

    def put(self, kind: int, payload: bytes) -> None:
        assert kind == Kind.METER
        self.reports += 1
        for session, nanoseconds in json.loads(payload).items():
            assert nanoseconds
            self.told[session] = self.told.get(session, 0) + nanoseconds

    def charge(self, payer: Backlog, seconds: float) -> None:
        name = payer.session.id
        self.charged[name] = self.charged.get(name, 0.0) + seconds


moves = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("bes"), st.floats(0.0, 2.0), st.none() | st.floats(0.0, 0.5)),
    max_size=40,
)


@given(moves)
def test_charged_time_equals_busy_time(steps: list[tuple[int, str, float, float | None]]) -> None:
    rig = Rig()
    sessions = [payer(str(number)) for number in range(4)]
    under_way = [0] * 4
    busy = 0.0
    for number, what, seconds, owes in steps:
        if what == "b":
            rig.meter.begin(sessions[number])
            under_way[number] += 1
            sessions[number].debt = math.inf if owes is None else owes
        elif what == "s":
            if not any(under_way):
                since, before = rig.now, sessions[number].used
                rig.now += seconds
                busy += seconds
                assert rig.meter.charge_interval(sessions[number], since) == rig.now
                assert sessions[number].used == pytest.approx(before + seconds)
        elif under_way[number]:
            rig.meter.end(sessions[number])
            under_way[number] -= 1
        before = [session.used for session in sessions]
        rig.now += seconds
        busy += seconds if any(under_way) else 0.0
        rig.meter.advance()
        for session, start, count in zip(sessions, before, under_way, strict=True):
            assert session.used >= start
            assert count or session.used == start, "a session without work on the device is not charged"
        rig.meter.poll(None)
    rig.meter.report()
    assert sum(session.used for session in sessions) == pytest.approx(busy)
    assert sum(rig.charged.values()) == pytest.approx(busy)
    for session in sessions:
        assert rig.told.get(session.session.id, 0) == pytest.approx(session.used * 1e9, abs=len(steps) + 1)
    assert rig.telemetry.device_busy_ns == pytest.approx(busy * 1e9, abs=100)


def test_session_that_has_paid_its_cost_is_not_charged_while_others_can_be() -> None:
    rig = Rig()
    short, long = payer("short", debt=0.001), payer("long")
    rig.meter.begin(short)
    rig.meter.begin(long)
    rig.now += 0.010
    rig.meter.advance()
    assert short.used == pytest.approx(0.001)
    assert long.used == pytest.approx(0.009)
    rig.meter.end(long)
    rig.now += 0.010
    rig.meter.advance()
    assert short.used == pytest.approx(0.011), "the only session is charged"


def test_work_is_charged_from_its_begin() -> None:
    rig = Rig()
    first, second = payer("first"), payer("second")
    rig.now += 1.0
    assert rig.meter.begin(first, rig.now - 0.25) == pytest.approx(rig.now - 0.25)
    assert rig.meter.begin(second, rig.now - 0.25) == rig.now, "the earlier work is known by then"
    assert first.used == pytest.approx(0.25) and not second.used
    rig.now += 0.5
    rig.meter.end(first)
    rig.meter.end(second)
    assert first.used == pytest.approx(0.5) and second.used == pytest.approx(0.25)
    rig.meter.begin(first, rig.now - 3.0)
    rig.now += 0.5
    rig.meter.end(first)
    assert first.used == pytest.approx(1.0), "no time is charged twice"
    assert rig.telemetry.device_busy_ns == pytest.approx(1.25e9, abs=10)


def test_completed_work_noted_late_is_reported_to_the_front() -> None:
    rig = Rig()
    session = payer("a")
    rig.now += 60.0
    rig.meter.charge_interval(session, rig.now - 0.5)
    assert rig.meter.poll(None) == pytest.approx(REPORT_S), "not before others would be"
    rig.now += 1.1
    rig.meter.poll(None)
    assert rig.told == {"a": pytest.approx(0.5e9, abs=1)}
    assert rig.meter.poll(None) is None


def test_front_gets_device_time_once_a_second_while_there_is_some() -> None:
    rig = Rig()
    session = payer("a")
    assert rig.meter.poll(None) is None
    assert rig.meter.poll(3.0) == 3.0
    rig.meter.begin(session)
    assert rig.meter.poll(None) == pytest.approx(REPORT_S)
    rig.now += 0.4
    assert rig.meter.poll(None) == pytest.approx(REPORT_S - 0.4)
    assert rig.meter.poll(0.1) == 0.1
    rig.now += 0.7
    assert rig.meter.poll(None) == pytest.approx(REPORT_S)
    assert rig.told == {"a": pytest.approx(1.1e9, abs=1)}
    rig.meter.end(session)
    rig.now += 1.0
    rig.meter.poll(None)
    assert rig.meter.poll(None) is None, "an idle process is not woken"
    rig.now += 60.0
    rig.meter.begin(session)
    assert rig.meter.poll(None) == pytest.approx(REPORT_S)
    assert rig.told["a"] == pytest.approx(1.1e9, abs=2)


def test_departed_session_is_reported_immediately() -> None:
    rig = Rig()
    session = payer("a")
    rig.meter.begin(session)
    rig.now += 0.25
    rig.meter.forget(session)
    assert rig.told == {"a": pytest.approx(0.25e9, abs=1)}
    rig.now += 5.0
    rig.meter.forget(payer("b"))
    assert rig.reports == 1
