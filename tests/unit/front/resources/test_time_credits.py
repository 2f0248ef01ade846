"""Time slices of the processes of a device, on a simulated device."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearthd.front.resources.time_credits import (
    ALONE,
    AWAITED,
    MAY,
    OVERDUE_S,
    OVERLAP_S,
    QUANTUM_S,
    WANTS,
    WORKS,
    DeviceTimeSlices,
    ProcessShare,
)


class Flood:
    """A process that always has work: it submits work while it may, and its work continues for `drain` seconds
    afterwards."""

    def __init__(self, drain: float) -> None:
        self.drain = drain
        self.may = False
        self.until: float | None = None
        """Time at which its work has left the device, after it may submit no more."""
        self.used = 0.0


class Simulation:
    """Processes on one device. The simulated time advances from event to event; reports arrive immediately."""

    def __init__(self) -> None:
        self.turns: DeviceTimeSlices[str] = DeviceTimeSlices()
        self.now = 0.0
        self.floods: dict[str, Flood] = {}
        self.places: dict[str, ProcessShare] = {}
        self.flags: dict[str, int] = {}
        self.most_beside = 0.0

    def hear(self, news: list[tuple[str, int]]) -> None:
        for key, flags in news:
            self.flags[key] = flags
            flood = self.floods.get(key)
            if flood is None:
                continue
            if flags & MAY:
                flood.may, flood.until = True, None
                self.report(key, WANTS | WORKS)
            elif flood.may:
                flood.may = False
                flood.until = self.now + flood.drain
                self.report(key, WANTS | WORKS)
            elif flood.until is None:
                self.report(key, WANTS)

    def report(self, key: str, state: int) -> None:
        self.hear(self.turns.report(key, state, self.places[key], self.now))

    def join(self, key: str, place: ProcessShare, drain: float | None = None) -> None:
        self.places[key] = place
        if drain is not None:
            self.floods[key] = Flood(drain)
        self.hear(self.turns.join(key, self.now))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            moments = [flood.until for flood in self.floods.values() if flood.until is not None]
            if self.turns.advance_at is not None:
                moments.append(self.turns.advance_at)
            after = min([end, *(max(moment, self.now) for moment in moments)])
            working = [flood for flood in self.floods.values() if flood.may or flood.until is not None]
            for flood in working:
                flood.used += (after - self.now) / len(working)
            self.now = after
            for key, flood in self.floods.items():
                if flood.until is not None and flood.until <= after:
                    flood.until = None
                    self.report(key, WANTS)
            if self.turns.advance_at is not None and self.turns.advance_at <= after:
                self.hear(self.turns.advance(after))

    @property
    def shares(self) -> dict[str, float]:
        total = sum(flood.used for flood in self.floods.values())
        return {key: flood.used / total for key, flood in self.floods.items()}


def test_lone_process_gets_no_message() -> None:
    turns: DeviceTimeSlices[str] = DeviceTimeSlices()
    assert turns.join("a", 0.0) == []
    assert turns.advance_at is None
    assert turns.advance(5.0) == []


def test_turns_begin_with_the_second_process_and_end_with_it() -> None:
    turns: DeviceTimeSlices[str] = DeviceTimeSlices()
    turns.join("a", 0.0)
    assert dict(turns.join("b", 1.0)) == {"a": MAY, "b": MAY}
    assert turns.remove_process("b", 2.0) == [("a", MAY | ALONE)]
    assert turns.advance_at is None
    assert dict(turns.join("b", 3.0)) == {"a": MAY, "b": MAY}


def test_light_process_is_not_delayed_by_turns() -> None:
    simulation = Simulation()
    simulation.join("flood", ProcessShare("a"), drain=0.002)
    simulation.join("light", ProcessShare("b"))
    simulation.run(0.1)
    for _ in range(200):
        assert simulation.flags["light"] & MAY
        simulation.report("light", WANTS | WORKS)
        simulation.run(0.0005)
        assert simulation.flags["light"] & MAY
        assert simulation.flags["flood"] & (MAY | AWAITED) == MAY | AWAITED
        simulation.report("light", 0)
        assert not simulation.flags["flood"] & AWAITED
        simulation.run(0.001)


def test_long_work_needs_the_turn() -> None:
    simulation = Simulation()
    simulation.join("flood", ProcessShare("a"), drain=0.0)
    simulation.join("other", ProcessShare("b"))
    simulation.run(0.001)
    simulation.report("other", WANTS | WORKS)
    simulation.run(OVERLAP_S * 0.9)
    assert simulation.flags["other"] & MAY
    simulation.run(OVERLAP_S * 0.2)
    both = [bool(simulation.flags[key] & MAY) for key in ("flood", "other")]
    assert sum(both) == 1, "one process has the turn now"


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.5, 8.0), st.floats(0.0, 0.03)), min_size=2, max_size=5),
)
def test_floods_get_shares_by_their_weights_however_long_their_kernels(floods: list[tuple[float, float]]) -> None:
    simulation = Simulation()
    for number, (weight, drain) in enumerate(floods):
        simulation.join(f"p{number}", ProcessShare(f"t{number}", weight), drain)
    simulation.run(20.0)
    total = sum(weight for weight, _ in floods)
    for number, (weight, _) in enumerate(floods):
        assert simulation.shares[f"p{number}"] == pytest.approx(weight / total, rel=0.1)


def test_the_processes_of_one_tenant_share_its_weight() -> None:
    simulation = Simulation()
    for key in ("a1", "a2", "a3"):
        simulation.join(key, ProcessShare("a", 1.0), 0.001)
    simulation.join("b", ProcessShare("b", 1.0), 0.001)
    simulation.run(10.0)
    assert simulation.shares["b"] == pytest.approx(0.5, rel=0.05)
    for key in ("a1", "a2", "a3"):
        assert simulation.shares[key] == pytest.approx(1 / 6, rel=0.1)


def test_a_turn_begins_when_the_work_of_the_last_is_off_the_device_or_takes_too_long() -> None:
    turns: DeviceTimeSlices[str] = DeviceTimeSlices()
    for key in "ab":
        turns.join(key, 0.0)
    turns.report("a", WANTS | WORKS, ProcessShare("a"), 0.0)
    turns.report("b", WANTS | WORKS, ProcessShare("b"), 0.0)
    now, told = 0.0, {"a": MAY, "b": MAY}

    def until(condition: str) -> None:
        nonlocal now
        for _ in range(1000):
            if eval(condition, {"told": told, "MAY": MAY}):
                return
            assert turns.advance_at is not None
            now = max(now, turns.advance_at)
            told.update(turns.advance(now))
        raise AssertionError(condition)

    until("not told['b'] & MAY")  # it started while another process has the turn
    told.update(turns.report("b", WANTS, ProcessShare("b"), now))
    until("not told['a'] & MAY")
    began = now
    assert not told["b"] & MAY, "work of the other process is still on the device"
    told.update(turns.advance(now + OVERDUE_S / 2))
    assert not told["b"] & MAY
    until("told['b'] & MAY")
    assert now == pytest.approx(began + OVERDUE_S)


def test_process_without_credit_is_let_through_periodically() -> None:
    """The kernel may wait for work that is queued after it. The process is charged all the time, so that it never has
    credit again."""
    simulation = Simulation()
    simulation.join("flood", ProcessShare("flood"), 0.001)
    simulation.join("stuck", ProcessShare("stuck"))
    let_through = 0
    for _ in range(5000):
        had = simulation.flags["stuck"] & MAY
        simulation.report("stuck", WANTS | WORKS)
        simulation.run(0.001)
        if simulation.now > 1.0:
            let_through += not had and bool(simulation.flags["stuck"] & MAY)
    assert simulation.now > 4.9
    assert let_through >= 0.5 * (simulation.now - 1.0) / OVERDUE_S
    assert simulation.floods["flood"].used > 0.9 * simulation.now


def test_an_idle_holder_passes_its_turn_immediately() -> None:
    simulation = Simulation()
    for key in "abc":
        simulation.join(key, ProcessShare(key))
    for key in "abc":
        simulation.report(key, WANTS | WORKS)
    simulation.run(OVERLAP_S * 1.01)
    (holder,) = [key for key in "abc" if simulation.flags[key] & MAY]
    for key in "abc":
        if key != holder:
            simulation.report(key, WANTS)
    simulation.report(holder, 0)
    others = [key for key in "abc" if key != holder and simulation.flags[key] & MAY]
    assert len(others) == 1


def test_a_process_that_ends_leaves_its_turn() -> None:
    simulation = Simulation()
    for key in "abc":
        simulation.join(key, ProcessShare(key), 0.001)
    simulation.run(0.05)
    (holder,) = [key for key in "abc" if simulation.flags[key] & MAY]
    del simulation.floods[holder]
    simulation.hear(simulation.turns.remove_process(holder, simulation.now))
    left = [key for key in "abc" if key != holder]
    simulation.run(1.0)
    assert simulation.shares == pytest.approx(dict.fromkeys(left, 0.5), rel=0.1)
    assert simulation.turns.remove_process("unheard of", simulation.now) == []
    assert simulation.turns.report("unheard of", WANTS, ProcessShare(), simulation.now) == []


def test_urgent_tenant_runs_first_and_leaves_a_share() -> None:
    simulation = Simulation()
    simulation.join("urgent", ProcessShare("a", priority=-1), 0.001)
    simulation.join("other", ProcessShare("b"), 0.001)
    simulation.run(20.0)
    assert 0.03 < simulation.shares["other"] < 0.12


def test_no_process_is_examined_without_need() -> None:
    simulation = Simulation()
    simulation.join("a", ProcessShare("a"))
    simulation.join("b", ProcessShare("b"))
    simulation.report("a", WANTS | WORKS)
    looks = 0
    while simulation.turns.advance_at is not None and simulation.turns.advance_at < 10 * QUANTUM_S:
        looks += 1
        assert looks < 10
        simulation.now = simulation.turns.advance_at
        simulation.hear(simulation.turns.advance(simulation.now))
