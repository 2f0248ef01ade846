"""Closed sessions whose work does not end: the policy, and its effect in a front with fake device processes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.frames import Kind
from hearth_proto.reasons import Refusal
from hearthd.front.supervisor.device import SERVING
from hearthd.front.supervisor.lingering_sessions import CLEANUP_GRACE, GRACE, LingeringSessions
from tests.support.front.fake_device import FakeDevice, FakeLauncher
from tests.support.front.fixture import run, until
from tests.support.front.isolated_workers import PATIENT, X, Y, node
from tests.support.timing import LATE

SOON = 0.1
"""The `grace` of `HASTY` in tests in which real time passes."""
HASTY = dataclasses.replace(PATIENT, grace=SOON)
UNHURRIED = dataclasses.replace(PATIENT, grace=60.0)
"""A policy whose `grace` does not end during a test."""


def busy(*channels: int) -> dict[str, Any]:
    return {str(each): {"busy": True, "kernels": ["endless"]} for each in channels}


# ---- policy ----


def test_a_process_without_others_ends_after_the_grace() -> None:
    sessions = LingeringSessions()
    assert not sessions.is_exclusive([]) and not sessions.must_end([], 1e9), (
        "a process without sessions is not affected"
    )
    sessions.add(1, "a", "x", 10.0)
    assert sessions.must_drain([1]) and not sessions.must_end([1], 11.9)
    assert sessions.next_deadline(10.0) == 10.0 + GRACE
    assert sessions.must_query(12.0)
    sessions.mark_queried(12.0)
    sessions.on_answer(busy(1))
    assert not sessions.must_query(12.0) and sessions.must_end([1], 12.0)
    assert [each.description for each in sessions.overdue(12.0)] == ["kernel endless of session a"]


def test_process_is_kept_while_other_sessions_remain() -> None:
    sessions = LingeringSessions()
    sessions.add(1, "a", "x", 0.0)
    assert not sessions.must_drain([1, 2]), "a new session counts like the others"
    assert not sessions.must_end([1, 2], 1e6) and sessions.overdue(1e6)
    sessions.add(2, "b", "x", 1e6)
    assert not sessions.must_end([1, 2], 1e6 + 0.1), "the new session has its own grace period"
    sessions.remove(2)
    assert sessions.must_end([1], 1e6 + 0.1), "immediately"


def test_lingering_session_that_only_frees_has_more_time_and_quarantines_none() -> None:
    sessions = LingeringSessions()
    sessions.add(1, "a", "x", 0.0)
    sessions.mark_queried(GRACE)
    sessions.on_answer({"1": {"busy": False, "kernels": []}})
    assert not sessions.must_drain([1]) and not sessions.must_end([1], GRACE) and not sessions.must_query(GRACE)
    assert sessions.next_deadline(GRACE) == CLEANUP_GRACE and sessions.must_query(CLEANUP_GRACE)
    sessions.mark_queried(CLEANUP_GRACE)
    sessions.on_answer({"1": {"busy": False, "kernels": []}})
    assert sessions.must_end([1], CLEANUP_GRACE)


@pytest.mark.parametrize("answer", [None, {}, [], {"1": None}, {"9": {"busy": False}}, {"1": {}}])
def test_process_without_a_report_is_considered_busy(answer: Any) -> None:
    sessions = LingeringSessions()
    sessions.add(1, "a", "x", 0.0)
    sessions.mark_queried(GRACE)
    sessions.on_answer(answer)
    assert sessions.must_end([1], GRACE) and sessions.overdue(GRACE)[0].description == "work of session a"


@given(st.lists(st.tuples(st.sampled_from(["open", "leave", "gone"]), st.integers(1, 4), st.floats(0, 3)), max_size=40))
def test_no_process_ends_under_a_session_that_uses_it(steps: list[tuple[str, int, float]]) -> None:
    sessions, channels, left, now = LingeringSessions(), set[int](), dict[int, float](), 0.0
    for what, channel, later in steps:
        now += later
        if what == "open":
            channels.add(channel)
        elif channel in channels and what == "leave":
            sessions.add(channel, str(channel), "x", now)
            left.setdefault(channel, now)
        elif channel in left:
            sessions.remove(channel)
            channels.discard(channel)
            del left[channel]
        ends = bool(channels) and channels == left.keys() and all(now >= at + GRACE for at in left.values())
        assert sessions.must_end(channels, now) == ends
        assert sessions.must_drain(channels) == (bool(channels) and channels == left.keys())
        due = sessions.next_deadline(now)
        assert due is None or now < due <= now + GRACE


# ---- front ----


def deaf() -> FakeLauncher:
    """Returns a launcher whose device processes never complete the close of a session."""
    launcher = FakeLauncher()
    launcher.closes = False
    return launcher


@pytest.mark.parametrize("dedicated", [False, True])
def test_process_of_closed_sessions_ends_without_attribution(dedicated: bool) -> None:
    async def scenario() -> None:
        strict = dataclasses.replace(HASTY, max_restarts=0, max_faults=0)
        async with node(strict, deaf()) as n:
            for round_ in (1, 2, 3):
                session = n.session(dedicated=dedicated)
                generation = await n.generation(session)
                assert await n.sessions.close(session, "done") == []
                await until(lambda: n.running == [1 if dedicated else round_ + 1])  # noqa: B023
                assert n.process(generation).exit_code == -9
                assert n.device.restarts == {"abandoned": round_}
            await until(lambda: n.device.state == SERVING)  # the process has been started by now, but is not ready yet
            assert n.supervisor.quarantine.refusal(session.id) is None
            assert [fault.reason for fault in n.device.faults] == ["abandoned"] * 3

    run(scenario())


def test_an_unawaited_close_completes() -> None:
    """The close completes even if its caller has disconnected, for example after the deadline of CloseSession."""

    async def scenario() -> None:
        async with node(UNHURRIED, deaf()) as n:
            own = n.session(dedicated=True)
            assert await n.generation(own) == 2
            call = asyncio.create_task(n.sessions.close(own, "done", time_limit=60.0))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert n.running == [1, 2]
            n.process(2).send(Kind.CLOSED, channel=1)  # its work has ended after all
            await until(lambda: n.running == [1], LATE)
            assert not n.device.restarts

    run(scenario())


def test_a_neighbour_keeps_the_process_until_it_leaves() -> None:
    async def scenario() -> None:
        async with node(HASTY, deaf()) as n:
            one, other = n.session(), n.session()
            assert [await n.generation(each) for each in (one, other)] == [1, 1]
            assert await n.sessions.close(one, "done", time_limit=2 * SOON) == [0], "the devices with running work"
            (worker,) = n.device.running
            await until(lambda: [each.session for each, _ in worker.overdue_sessions()] == [one.id])
            assert n.running == [1] and await n.generation(other) == 1
            third = n.session()
            assert await n.generation(third) == 1, "other sessions remain in the process"
            n.launcher.closes = True
            await n.sessions.close(third, "done")
            assert n.running == [1]
            await n.sessions.close(other, "done")
            await until(lambda: n.running == [2])
            assert not other.ended and n.lost == [(0, 1)]

    run(scenario())


@pytest.mark.parametrize("by_tenant", [False, True])
def test_session_opened_during_the_grace_gets_the_next_process(by_tenant: bool) -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(HASTY, by_tenant=by_tenant), deaf()) as n:
            one, other, third = n.session(X), n.session(X), n.session(Y)
            assert await n.generation(one) == 1
            closing = asyncio.create_task(n.sessions.close(one, "done"))
            await asyncio.sleep(0)
            came = [asyncio.create_task(n.generation(each)) for each in (other, third)]
            generations = await asyncio.gather(*came)
            assert 1 not in generations and not other.ended, "no loss was reported to it"
            assert by_tenant or generations == [2, 2]
            await closing

    run(scenario())


def test_a_spare_process_replaces_the_ended_one() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(HASTY, spare=True), deaf()) as n:
            await until(lambda: n.running == [1, 2])
            one = n.session()
            assert await n.generation(one) == 1
            await n.sessions.close(one, "done")
            assert await n.generation(n.session()) == 2
            await until(lambda: n.running == [2, 3])

    run(scenario())


def test_session_opened_during_a_close_gets_the_same_process() -> None:
    async def scenario() -> None:
        async with node(UNHURRIED, deaf()) as n:
            one, other = n.session(), n.session()
            assert await n.generation(one) == 1
            closing = asyncio.create_task(n.sessions.close(one, "done", time_limit=60.0))
            await until(lambda: n.process(1).closed)
            coming = asyncio.create_task(n.generation(other))
            await asyncio.sleep(0.01)
            assert not coming.done()
            n.process(1).send(Kind.CLOSED, channel=n.process(1).closed[0])
            async with asyncio.timeout(LATE):
                assert await coming == 1
            await closing

    run(scenario())


def test_session_opened_while_memory_is_freed_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clearing(FakeDevice):
        def send(self, kind: int, payload: bytes = b"", **fields: int) -> None:
            if kind == Kind.STATS:
                stats = {**json.loads(payload), "leaving": {"1": {"busy": False, "kernels": []}}}
                payload = json.dumps(stats).encode()
            super().send(kind, payload, **fields)

    monkeypatch.setattr("tests.support.front.fake_device.FakeDevice", Clearing)

    async def scenario() -> None:
        async with node(UNHURRIED, deaf()) as n:
            one, other = n.session(), n.session()
            assert await n.generation(one) == 1
            closing = asyncio.create_task(n.sessions.close(one, "done", time_limit=60.0))
            await asyncio.sleep(0)
            async with asyncio.timeout(LATE):
                assert await n.generation(other) == 1
            n.process(1).send(Kind.CLOSED, channel=1)
            await closing

    run(scenario())


def test_a_stop_during_the_grace_is_a_stop() -> None:
    async def scenario() -> None:
        async with node(HASTY, deaf()) as n:
            one = n.session()
            channel = await n.device.channel(one)
            closing = asyncio.create_task(n.sessions.close(one, "done"))
            await asyncio.sleep(0)
            await n.supervisor.stop()
            await closing
            assert not n.device.restarts and isinstance(channel.loss, Refusal)

    run(scenario())
