"""Receiving over a lane by one waiting thread at a time, or by the background thread."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hearth
from hearth.session import reply as reply_module
from hearth.session.attachment import Attachment
from hearth.session.receiver_role import ReceiverRole
from hearth.session.reply import Reply
from hearth.session.timing import Timing
from hearth.transport import lane
from hearth.transport.spin_wait import UP
from hearth_proto import reasons
from hearth_proto.v1 import device_pb2
from tests.support.client.fake_daemon import Response
from tests.support.client.internals import connection_of
from tests.support.client.lane_daemon import LaneDaemon, serving
from tests.support.client.lane_requests import answer, held_request, note, notes, role
from tests.support.client.replies import lone_reply
from tests.support.client.waits import wait_for
from tests.support.compiled import skip_if_compiled


@pytest.fixture
def daemon() -> Iterator[LaneDaemon]:
    with serving() as daemon:
        yield daemon


@pytest.mark.parametrize("cores", [1, 64], indirect=True)
def test_waiting_thread_receives(work: Attachment, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, by = work.channel, []
    assert channel is not None and bool(work.spin_wait.max_spin_s) == (cores > 2)
    receive = channel.lane.receive

    def counted() -> None:
        receive()
        by.append(threading.get_ident())

    monkeypatch.setattr(channel.lane, "receive", counted)
    for _ in range(200):
        work.request(held_request()).wait(10)
    assert by.count(threading.get_ident()) > 100
    assert wait_for(lambda: not role(work).parked and not role(work).holder), "the background thread receives again"


def test_background_thread_stays_parked_while_others_receive(work: Attachment) -> None:
    parked = 0
    for _ in range(300):
        work.request(held_request()).wait()
        parked += role(work).parked
    assert parked > 150


Background: TypeAlias = tuple[ReceiverRole, threading.Lock, threading.Thread]


@pytest.fixture
def passed() -> list[bool]:
    """Arguments of the background thread's ticks: True for each tick that passed in full."""
    return []


@pytest.fixture
def background(request: pytest.FixtureRequest, passed: list[bool]) -> Iterator[Background]:
    """A background thread that has found thread 1 receiving for more than a tick. The parameter is the length of slow
    ticks in seconds."""
    lock = threading.Lock()
    role = ReceiverRole(lock, [], lambda: False, passed.append, Timing(slow_tick=request.param))
    role.holder, role.acquisitions = 1, 1
    thread = threading.Thread(target=role.wait_for_role)
    thread.start()
    assert wait_for(lambda: role.parked and not role.ticking)
    yield role, lock, thread
    with lock:
        role.end()
    thread.join(20)


@pytest.mark.parametrize("background", [1e-3], indirect=True)
def test_leaving_after_a_long_wait_wakes_the_background_thread(background: Background) -> None:
    role, lock, thread = background
    assert wait_for(lambda: role.parked_indefinitely)
    with lock:
        role.leave(1)
        assert not role.parked
    thread.join(20)
    assert not thread.is_alive(), "the background thread receives, because no other thread does"


@pytest.mark.parametrize("background", [60.0], indirect=True)
def test_thread_that_leaves_and_returns_wakes_no_other(background: Background) -> None:
    role, lock, thread = background
    for _ in range(10):
        with lock:
            role.leave(1)
            assert role.parked
            role.holder, role.acquisitions = 1, role.acquisitions + 1
    with lock:
        role.leave(1)
        role.wake_thread()
    thread.join(20)
    assert not thread.is_alive(), "the background thread is woken when it is needed"


@pytest.mark.parametrize("background", [60.0], indirect=True)
def test_background_thread_polls_soon_if_work_remains(background: Background, passed: list[bool]) -> None:
    role, lock, thread = background
    with lock:
        passed.clear()
        role.leave(1)
        assert role.tick_soon()
    thread.join(20)
    assert passed == [False, True], "after one tick without work no thread receives"


@pytest.mark.parametrize("background", [0.1], indirect=True)
def test_background_thread_polls_without_being_woken(background: Background) -> None:
    role, lock, thread = background
    with lock:
        role.leave(1)
    thread.join(20)
    assert not thread.is_alive()


def test_many_threads_wait_concurrently(daemon: LaneDaemon, work: Attachment) -> None:
    """The answers arrive in any order. Each thread wakes for its own answer, and the last one still has a receiver."""
    daemon.never_answer.add("memory_usage")
    replies = [work.request(held_request()) for _ in range(16)]
    assert wait_for(lambda: daemon.count("memory_usage") == 16 and work.session.idle)
    done: list[int] = []

    def wait(index: int) -> None:
        replies[index].wait(20)
        done.append(index)

    threads = [threading.Thread(target=wait, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: len(work.waiters.sleepers) == 15 and role(work).holder)
    order = list(range(16))
    random.Random(3).shuffle(order)
    for count, index in enumerate(order, 1):
        answer(daemon, index)
        assert wait_for(lambda count=count: len(done) == count)
        assert done[-1] == index
    for thread in threads:
        thread.join(10)
    assert not work.waiters.sleepers
    work.request(held_request()).abandon()
    daemon.never_answer.clear()
    work.request(held_request()).wait(10)


@pytest.mark.parametrize("cores", [64], indirect=True)
def test_spinning_thread_finds_an_answer_at_any_time(
    daemon: LaneDaemon, work: Attachment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer arrives immediately, when a copy is due, later, or when no thread polls."""
    lookout, size, channel = work.spin_wait, 64 << 20, work.channel
    assert channel is not None
    asleep: list[float] = []
    select, descriptor = lane.select.select, channel.lane.fileno()

    def sleep(read: Sequence[Any], write: Sequence[Any], failed: Sequence[Any], seconds: float | None = None) -> Any:
        if seconds is not None and [each.fileno() for each in read] == [descriptor]:
            asleep.append(seconds)
        return select(read, write, failed, seconds)

    monkeypatch.setattr(lane.select, "select", sleep)
    for late in (0.0, 0.005, 0.02, 0.05):
        for _ in range(3):
            work.request(held_request()).wait(20)  # so that the background thread stays parked
        daemon.never_answer.add("memory_usage")
        now = time.monotonic()
        lookout.begin(UP, size, now - 1.0)
        lookout.copy_ended(UP, size, now - 0.02, now)  # the duration of such copies
        count = daemon.count("memory_usage")
        reply = work.request(held_request())
        lookout.begin(UP, size, now)

        def answer_late(late: float = late, count: int = count) -> None:
            assert wait_for(lambda: daemon.count("memory_usage") > count)
            time.sleep(late)
            answer(daemon)

        answering = threading.Thread(target=answer_late)
        answering.start()
        reply.wait(20)
        answering.join(10)
        daemon.never_answer.clear()
    assert asleep


def test_threads_wait_for_one_reply(daemon: LaneDaemon, work: Attachment) -> None:
    daemon.never_answer.add("memory_usage")
    reply = work.request(held_request())
    assert wait_for(lambda: work.session.idle), "the background thread receives while an ack is pending"
    answered: list[bool] = []
    threads = [threading.Thread(target=lambda: answered.append(bool(reply.wait(20)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: len(work.waiters.sleepers) == 3)
    answer(daemon)
    for thread in threads:
        thread.join(10)
    assert len(answered) == 4 and not work.waiters.sleepers


def test_a_wait_that_times_out_leaves_the_role_to_others(daemon: LaneDaemon, work: Attachment) -> None:
    daemon.never_answer.add("memory_usage")
    # the second timeout is for a machine that is too busy to start another wait within the first one
    assert any(_times_out_while_another_waits(daemon, work, timeout) for timeout in (2.0, 15.0))
    for seconds in (0.0, -1.0):
        with pytest.raises(hearth.TimeoutError):
            work.request(held_request()).wait(seconds)


def _times_out_while_another_waits(daemon: LaneDaemon, work: Attachment, timeout: float) -> bool:
    """Returns False if the wait had timed out before the other thread waited."""
    requested = daemon.count("memory_usage") + 2
    first, second = work.request(held_request()), work.request(held_request())
    # else the background receives
    assert wait_for(lambda: daemon.count("memory_usage") == requested and work.session.idle)
    waiting = threading.Thread(target=second.wait, args=(60,))

    def late() -> None:
        with pytest.raises(hearth.TimeoutError):
            first.wait(timeout)

    def sleeps() -> bool:
        return work.waiters.sleepers == [second]

    holder = threading.Thread(target=late)
    holder.start()
    assert wait_for(lambda: role(work).holder == holder.ident or not holder.is_alive())
    waiting.start()
    assert wait_for(lambda: sleeps() or not holder.is_alive(), 20)
    in_time = sleeps() and holder.is_alive()
    holder.join(timeout + 20)
    assert wait_for(lambda: role(work).holder == waiting.ident), "it was woken, or it began to wait later"
    answer(daemon)
    waiting.join(20)
    assert not waiting.is_alive() and second.answered and not first.answered
    answer(daemon, -2)
    assert wait_for(lambda: first.done)
    return in_time


def test_wake_up_before_the_thread_sleeps_is_not_lost() -> None:
    reply = lone_reply()
    reply.wake()
    sleeping = threading.Thread(target=reply.sleep, args=(60.0,), daemon=True)
    sleeping.start()
    sleeping.join(20)
    assert not sleeping.is_alive()


@pytest.mark.parametrize("timing", [{"tick": 0.3, "slow_tick": 0.3}], indirect=True)
def test_thread_that_is_woken_to_receive_after_its_timeout_leaves_the_role_to_others(
    daemon: LaneDaemon, work: Attachment, gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop, or a callback, waits for an answer without a thread: the background thread must receive it."""
    skip_if_compiled(reply_module)
    daemon.never_answer.add("memory_usage")
    first, second, third = (work.request(held_request()) for _ in range(3))
    assert wait_for(lambda: daemon.count("memory_usage") == 3 and work.session.idle)
    sleep, timed_out, may_continue = Reply.sleep, threading.Event(), threading.Event()

    def sleep_long(self: Reply, seconds: float | None) -> None:
        sleep(self, seconds)
        if self is second:
            timed_out.set()
            may_continue.wait(60)

    def hold() -> None:
        while not role(work).parked:
            gpu.synchronize()  # the background thread notices that another thread receives
        first.wait(60)

    def give_up() -> None:
        with pytest.raises(hearth.TimeoutError):
            second.wait(0.01)

    monkeypatch.setattr(Reply, "sleep", sleep_long)
    holder, other = threading.Thread(target=hold), threading.Thread(target=give_up)
    holder.start()
    assert wait_for(lambda: role(work).holder == holder.ident and role(work).parked_indefinitely)
    answered = threading.Event()
    third.listen(answered.set)
    other.start()
    assert timed_out.wait(20)
    answer(daemon, -3)
    holder.join(20)  # it leaves the role to the other thread, whose timeout has passed
    may_continue.set()
    other.join(20)
    assert not role(work).parked, "the background thread was woken"
    answer(daemon)
    assert answered.wait(20)


def test_responses_without_a_waiting_thread(daemon: LaneDaemon, work: Attachment, gpu: hearth.Device) -> None:
    """Output, late errors, and answers that are only polled for arrive right after a wait."""
    printed: list[str] = []
    work.session.on_output = printed.append
    for number in range(20):
        work.request(held_request()).wait(10)
        with daemon.working:
            daemon.say(Response(event=device_pb2.Event(output=device_pb2.Output(text=str(number)))))
        assert wait_for(lambda number=number: len(printed) == number + 1)
        work.request(held_request()).wait(10)
        reply = work.request(held_request())
        assert wait_for(lambda reply=reply: reply.done)
    daemon.fail_next["memory_usage"] = reasons.Refusal(reasons.Reason.OUT_OF_MEMORY, "full")
    work.request(held_request(), reports=True).abandon()
    assert wait_for(lambda: connection_of(gpu).late_errors)
    with pytest.raises(hearth.HearthError, match="full"):
        gpu.synchronize()


def test_work_is_sent_without_the_expected_wait(daemon: LaneDaemon, work: Attachment) -> None:
    channel, last = work.channel, 0
    assert channel is not None
    while last < 30 or not channel.inspect().expects_request:
        last += 1
        assert last < 1000, "no wait is expected, though each work is followed by one"
        work.submit(note(last))
        work.request(held_request()).wait(10)
    work.submit(note(last + 1))
    assert wait_for(lambda: notes(daemon)[-1:] == [last + 1])
    assert notes(daemon) == list(range(1, last + 2))


def test_a_launch_and_a_wait_are_one_message(daemon: LaneDaemon, work: Attachment) -> None:
    for number in range(1, 20):
        work.submit(note(number))
        work.request(held_request()).wait(10)
    before = len(daemon.batches)
    for number in range(20, 120):
        work.submit(note(number))
        work.request(held_request()).wait(10)
    assert len(daemon.batches) - before < 120
    together = [len(batch.batch.commands) for batch in daemon.batches[before:]]
    assert together.count(2) > 80


@pytest.mark.parametrize("timing", [{"tick": 60.0, "idle": 60.0, "request_window": -1.0}], indirect=True)
def test_acks_open_the_window_without_a_waiting_thread(daemon: LaneDaemon, work: Attachment) -> None:
    """Work that waits for an ack continues directly after a wait, whichever thread had the role, and not only at the
    next tick or when the sending thread checks periodically. No work waits for a request; the tick sends it."""
    for start in range(1, 1001, 10):
        work.request(held_request()).wait(10)
        for number in range(start, start + 10):
            work.submit(note(number))
        assert wait_for(lambda last=start + 9: notes(daemon)[-1:] == [last])
    assert notes(daemon) == list(range(1, 1001))


def test_end_wakes_waiting_threads(daemon: LaneDaemon, work: Attachment) -> None:
    daemon.never_answer.add("memory_usage")
    replies, errors = [work.request(held_request()) for _ in range(6)], list[hearth.HearthError]()
    assert wait_for(lambda: work.session.idle), "the background thread receives while an ack is pending"

    def wait(reply: Reply) -> None:
        try:
            reply.wait(20)
        except hearth.HearthError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait, args=(reply,)) for reply in replies]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: len(work.waiters.sleepers) == 5)
    work.end(hearth.ClosedError("over.", reason="CANCELLED"))
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(errors) == 6 and all(isinstance(error, hearth.ClosedError) for error in errors)


def test_lane_breaks_under_a_waiting_thread(daemon: LaneDaemon, work: Attachment) -> None:
    """The answer arrives over the next lane."""
    daemon.never_answer.add("memory_usage")
    for number in range(1, 6):
        reply = work.request(held_request())
        assert wait_for(lambda number=number: daemon.count("memory_usage") == number)
        waiting = threading.Thread(target=reply.wait, args=(20,))
        waiting.start()
        assert wait_for(
            lambda reply=reply, thread=waiting: work.waiters.sleepers == [reply] or role(work).holder == thread.ident
        )
        lane = daemon.lane
        assert lane is not None
        lane.close()
        answer(daemon)
        waiting.join(10)
        assert reply.answered
        assert wait_for(lambda: daemon.lane is not None)


_step = st.sampled_from(["wait", "late", "note", "poll", "drop", "pause"])


@settings(max_examples=15, deadline=None)
@given(
    threads=st.lists(st.lists(_step, max_size=25), min_size=1, max_size=6),
    cuts=st.lists(st.tuples(st.integers(100, 3000), st.integers(100, 3000)), max_size=2),
)  # fmt: skip
def test_each_thread_gets_its_answer_from_any_receiver(threads: list[list[str]], cuts: list[tuple[int, int]]) -> None:
    with serving() as daemon:
        daemon.cuts = list(cuts)
        failures: list[BaseException] = []
        with hearth.connect(daemon.target) as node:
            work, numbers, asked = connection_of(node.device(0)).attachment(), iter(range(1, 10**6)), []

            def run(steps: list[str]) -> None:
                try:
                    for step in steps:
                        if step == "note":
                            work.submit(note(next(numbers)))
                        elif step == "pause":
                            time.sleep(0.003)
                        else:
                            reply = work.request(held_request())
                            asked.append(reply)
                            if step == "wait":
                                reply.wait(20)
                            elif step == "late":
                                try:
                                    reply.wait(1e-4)
                                except hearth.TimeoutError:
                                    reply.wait(20)
                            elif step == "poll":
                                assert wait_for(lambda reply=reply: reply.done, 20)
                except BaseException as error:
                    failures.append(error)

            running = [threading.Thread(target=run, args=(steps,)) for steps in threads]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join(60)
                assert not thread.is_alive()
            for reply in asked:
                reply.wait(20)
            assert not failures and not work.waiters.sleepers and work.session.error is None
        steps = [step for each in threads for step in each]
        assert len(notes(daemon)) == len(set(notes(daemon))) == steps.count("note")
        assert daemon.count("memory_usage") == len(asked) == len(daemon.kept)
