"""Waits for an idle device with loads, launches, kernel ends, closed sessions and time in any order: each load is
answered once, none is done while a kernel runs, and launches are eventually released."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.resources.idle_queue import FIRST_S, GRACE_S, LOG_AFTER_S, LONGEST_S
from hearthd.device.resources.idle_work import MAX_HOLD_S, IdleWork, Waiting
from hearthd.device.resources.running import RETRY_S
from hearthd.device.streams.stream_pool import PooledStream, StreamPool

LIMIT = 30.0


class Event:
    def __init__(self, done: bool) -> None:
        self.done = done


class Stream:
    """Kernels and events in order; events after a kernel wait for its `end`."""

    def __init__(self) -> None:
        self.queue: deque[Event | str] = deque()

    def end(self) -> None:
        """Ends the running kernel, if there is one."""
        if self.queue:
            self.queue.popleft()
        while self.queue and isinstance(self.queue[0], Event):
            self.queue.popleft().done = True  # type: ignore[union-attr]

    @property
    def running(self) -> bool:
        return bool(self.queue)


class Server:
    loading_waits = True

    def __init__(self) -> None:
        self.streams: list[Stream] = []

    def on_progress(self, _wake: Any) -> bool:
        return True

    def create_stream(self, _priority: int = 0) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    def record(self, stream: Stream, *, timing: bool = False) -> Event:
        event = Event(not stream.queue)
        if stream.queue:
            stream.queue.append(event)
        return event

    def done(self, event: Event) -> bool:
        return event.done

    def release_event(self, event: Event) -> None: ...

    @property
    def running(self) -> bool:
        return any(stream.running for stream in self.streams)


class Journal:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


class IdleRig:
    """An `IdleWork` with two tracks, on a clock that the test controls."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.server = Server()
        self.tracks = StreamPool(self.server, 4, lambda: None)  # type: ignore[arg-type]
        self.two = [self.tracks.acquire(), self.tracks.acquire()]
        self.now = 100.0
        self.kicks = 0
        self.journal = Journal()
        self.idle_work = IdleWork(
            self.server, self.tracks, self._kick, self.journal, limit, lambda: self.now  # type: ignore[arg-type]
        )  # fmt: skip
        self.idle_work.tenant_of = {"a": "one", "b": "one", "c": "two"}.get

    def _kick(self) -> None:
        self.kicks += 1

    def launch(self, track: PooledStream, name: str = "endless", session: str = "a") -> None:
        self.tracks.claim_position(track, ())
        track.launched.append((self.tracks.ordering.position(track.index), name, session))
        track.stream.queue.append(name)

    def end(self, track: PooledStream) -> None:
        track.stream.end()
        self.poll()

    def poll(self) -> float | None:
        self.tracks.poll()
        return self.idle_work.poll()

    def load(
        self, session: str, done: Callable[[], None], refuse: Callable[[Refusal], None], description: str = "the load"
    ) -> Waiting | None:
        waiting_session: Any = SimpleNamespace(id=session, tenant=self.idle_work.tenant_of(session))
        return self.idle_work.load(waiting_session, description, done, refuse)


class Orders(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = IdleRig()
        self.answers: dict[int, list[str]] = {}
        self.waiting: dict[int, tuple[str, float, Waiting]] = {}
        self.patient = self.urgent = 0
        self.done = 0
        self.run_on_thread: list[Callable[[], None]] = []
        self._poll = self.rig.idle_work.poll
        self.rig.idle_work.poll = self._checked  # type: ignore[method-assign]

    def _checked(self) -> float | None:
        """No load waits longer than the limit, except one that waits only for kernels of the same session."""
        before = [(session_id, waiter, waiter.not_before) for session_id, _, waiter in self.waiting.values()]
        delay = self._poll()
        for session_id, waiter, excused in before:
            assert waiter.not_before == excused or self.rig.tracks.running_sessions() == [session_id]
        return delay

    def _loaded(self, number: int) -> None:
        assert not self.rig.server.running, "loaded while a kernel runs"
        self._answer(number, "loaded")

    def _answer(self, number: int, answer: str) -> None:
        self.answers[number].append(answer)
        self.waiting.pop(number, None)

    @rule(session=st.sampled_from("abc"), launches=st.booleans())
    def load(self, session: str, launches: bool) -> None:
        number = len(self.answers)
        self.answers[number] = []

        def done() -> None:
            self._loaded(number)
            if launches:  # the first launch of a kernel, which must be made on an idle device
                self.rig.launch(self.rig.two[0], "first", session)

        def refuse(refusal: Refusal) -> None:
            assert refusal.reason is Reason.QUEUE_FULL and refusal.retry_after_s
            self._answer(number, "refused")

        waiter = self.rig.load(session, done, refuse)
        assert (waiter is None) == (self.answers[number] == ["loaded"])
        if waiter is not None:
            self.waiting[number] = session, self.rig.now, waiter

    @rule()
    def unload(self) -> None:
        def done() -> None:
            assert not self.rig.server.running
            self.done += 1

        self.patient += 1
        self.rig.idle_work.run(done, urgent=False)

    @rule(urgent=st.booleans())
    def free_on_thread(self, urgent: bool) -> None:
        def begin(done: Callable[[], None]) -> None:
            assert not self.rig.server.running
            self.done += 1
            self.urgent -= urgent
            self.run_on_thread.append(done)

        self.patient += 1
        self.urgent += urgent
        self.rig.idle_work.run_on_thread(begin, urgent=urgent)

    @precondition(lambda self: self.run_on_thread)
    @rule()
    def freed(self) -> None:
        self.run_on_thread.pop(0)()

    @rule(number=st.integers(0, 1), session=st.sampled_from("abc"))
    def launch(self, number: int, session: str) -> None:
        track = self.rig.two[number]
        if not track.closed:
            self.rig.launch(track, session=session)

    @rule(number=st.integers(0, 1))
    def end(self, number: int) -> None:
        self.rig.end(self.rig.two[number])

    @rule(session=st.sampled_from("abc"))
    def close(self, session: str) -> None:
        for number, (session_id, _, waiter) in list(self.waiting.items()):
            if session_id == session:
                self.rig.idle_work.drop(waiter)
                self._answer(number, "dropped")

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.5, LOG_AFTER_S, 7.0, LIMIT]))
    def wait(self, seconds: float) -> None:
        self.rig.now += seconds
        self.rig.poll()

    @rule()
    def sleep(self) -> None:
        """Sleeps as long as the loop would if nothing else happens."""
        delay = self.rig.poll()
        if delay is not None:
            self.rig.now += delay + 1e-6
            self.rig.poll()

    @invariant()
    def each_load_is_answered_at_most_once(self) -> None:
        assert all(len(answers) <= 1 for answers in self.answers.values())
        gauges = self.rig.idle_work.gauges()
        assert gauges["loads_waiting"] == len(self.waiting) == sum(not answers for answers in self.answers.values())
        if all(waiter.not_before == -math.inf for _, _, waiter in self.waiting.values()):
            assert gauges["load_wait_longest_ns"] <= (LIMIT + 8) * 1e9

    @invariant()
    def no_load_waits_for_too_long(self) -> None:
        self.rig.poll()
        for _, queued_at, waiter in self.waiting.values():
            assert self.rig.now < max(queued_at + LIMIT, waiter.not_before)
        if not (self.waiting or self.urgent or self.run_on_thread):
            assert not any(track.held for track in self.rig.two), "no load waits for an idle device"

    def teardown(self) -> None:
        """No load that waits for other sessions remains, whether kernels end or not. Then launches continue, and the
        remaining jobs run after they have ended."""
        for _ in range(20):
            self.rig.now += LONGEST_S
            self.rig.poll()
        assert all(self.rig.tracks.running_sessions() == [session_id] for session_id, _, _ in self.waiting.values())
        for done in self.run_on_thread:
            done()
        self.run_on_thread.clear()
        for _ in range(1000):
            for track in self.rig.two:
                self.rig.end(track)
            while self.run_on_thread:
                self.run_on_thread.pop()()
        assert self.done == self.patient
        assert not self.waiting and all(len(answers) == 1 for answers in self.answers.values())
        self.rig.now += MAX_HOLD_S
        assert self.rig.poll() is None and not any(track.held for track in self.rig.two)


TestOrders = Orders.TestCase
TestOrders.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# ---- logging and waking ----


def nothing() -> None:
    raise AssertionError("it was done")


def refusals(rig: IdleRig, session: str = "b") -> list[Refusal]:
    """Queues a load of the session after the running work. Returns the list that receives its refusal."""
    refused: list[Refusal] = []
    assert rig.load(session, nothing, refused.append, "the load of module 7") is not None
    return refused


def test_overdue_load_names_the_work_it_waits_for() -> None:
    rig = IdleRig()
    rig.launch(rig.two[0], "endless", "a")
    refused = refusals(rig)
    rig.now += LIMIT - 0.01
    rig.poll()
    assert not refused
    rig.now += 0.02
    rig.poll()
    (refusal,) = refused
    assert refusal.reason is Reason.QUEUE_FULL and refusal.retry_after_s
    assert "the load of module 7" in refusal.message and "within 30 s" in refusal.message
    assert "kernel endless of session a" in refusal.message and "hearth sessions end a" in refusal.fix
    assert 'isolation="dedicated"' in refusal.fix and "launch.timeout" in refusal.fix
    assert refusal.details == {
        "waited_s": "30.010", "load_timeout_s": "30", "kernels": "endless", "sessions": "a",
    }  # fmt: skip
    assert rig.poll() is None and not rig.two[0].held


def test_another_tenants_kernels_and_sessions_are_not_named() -> None:
    rig = IdleRig()
    rig.launch(rig.two[0], "secret", "c")
    rig.launch(rig.two[1], "known", "a")
    refused = refusals(rig)
    rig.now += LIMIT
    rig.poll()
    refusal = refused[0]
    assert "kernel known of session a and work of another tenant's session" in refusal.message
    assert 'devices.isolation = "tenant"' in refusal.fix and refusal.details["kernels"] == "known"
    assert "secret" not in str(refusal) + str(refusal.details) and "session c" not in str(refusal)


def test_a_wait_for_own_kernels_has_no_limit() -> None:
    rig = IdleRig()
    rig.launch(rig.two[0], "mine", "b")
    rig.launch(rig.two[0], "mine", "b")
    refused = refusals(rig)
    for _ in range(10):
        rig.now += LIMIT
        delay = rig.poll()
        assert not refused and delay is not None and delay > 0, "the wait is checked again, though not immediately"
    rig.launch(rig.two[1], "endless", "a")
    rig.now += RETRY_S
    rig.poll()
    assert "kernel mine of this session and kernel endless of session a" in refused[0].message
    assert "synchronize" in refused[0].fix and "hearth sessions end a" in refused[0].fix


def test_work_without_a_name_is_described() -> None:
    bare = IdleRig()
    bare.tracks.claim_position(bare.two[0], ())
    bare.two[0].stream.queue.append("a graph")
    refused = refusals(bare)
    bare.now += LIMIT
    bare.poll()
    assert "no kernel's name" in refused[0].message


def test_many_kernels_are_not_all_named() -> None:
    rig = IdleRig()
    for number in range(12):
        rig.launch(rig.two[0], f"k{number}", "a")
    refused = refusals(rig)
    rig.now += LIMIT
    rig.poll()
    assert refused[0].details["kernels"] == "k0, k1, k2, k3, k4, k5, k6, k7, ..."


def test_each_wait_is_logged_once() -> None:
    rig = IdleRig()
    rig.launch(rig.two[0], "endless", "c")
    refusals(rig, "a")
    refusals(rig, "b")
    for _ in range(5):
        rig.now += LOG_AFTER_S
        rig.poll()
    (line,) = rig.journal.lines
    assert line["event"] == "loads_wait" and line["loads"] == 2 and line["sessions"] == ["a", "b"]
    assert line["kernels"] == ["endless"] and line["sessions_of_kernels"] == ["c"] and line["waited_s"] == LOG_AFTER_S
    refusals(rig, "b")
    rig.now += LOG_AFTER_S
    rig.poll()
    assert [entry["loads"] for entry in rig.journal.lines] == [2, 1], "a later wait is separate"


@pytest.mark.parametrize("over", ["taken back", "refused"])
def test_launches_are_not_held_back_for_a_load_that_no_longer_waits(over: str) -> None:
    rig = IdleRig()
    rig.launch(rig.two[0])
    refused: list[Refusal] = []
    waiter = rig.load("b", nothing, refused.append)
    assert waiter is not None
    rig.idle_work.run(lambda: None, urgent=False)
    rig.poll()
    rig.now += GRACE_S + FIRST_S / 2
    rig.poll()
    assert rig.two[1].held
    before = rig.kicks
    if over == "refused":
        rig.idle_work.limit = FIRST_S / 2  # as a reload of the configuration does
        rig.poll()
        assert len(refused) == 1
    else:
        rig.idle_work.drop(waiter)
    assert not rig.two[1].held and rig.kicks > before
    assert rig.poll() is None, "no load waits"
    rig.now += 1e6
    rig.poll()
    assert not rig.two[1].held


def test_without_a_limit_a_load_waits_for_ever() -> None:
    rig = IdleRig(limit=0.0)
    rig.launch(rig.two[0])
    loaded: list[bool] = []
    assert rig.load("b", lambda: loaded.append(True), lambda _refusal: nothing()) is not None
    rig.now += 1e9
    rig.poll()
    assert rig.idle_work.gauges() == {"loads_waiting": 1, "load_wait_longest_ns": 10**18}
    rig.end(rig.two[0])
    assert loaded == [True] and rig.idle_work.gauges() == {"loads_waiting": 0, "load_wait_longest_ns": 0}


def test_load_waits_for_a_kernel_launched_on_the_idle_device() -> None:
    """The first launch of a kernel and a load wait for the same idle device: the load runs after that kernel."""
    rig = IdleRig()
    rig.launch(rig.two[0])
    done: list[str] = []

    def first() -> None:
        done.append("first")
        rig.launch(rig.two[1], "first", "b")

    rig.load("b", first, lambda _refusal: nothing())
    rig.load("c", lambda: done.append("load"), lambda _refusal: nothing())
    rig.end(rig.two[0])
    assert done == ["first"] and rig.server.running
    rig.end(rig.two[1])
    assert done == ["first", "load"]
