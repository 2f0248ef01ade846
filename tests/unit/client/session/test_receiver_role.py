"""Receiving over a lane by one waiting thread at a time, or by the background thread, also under Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hearth
from hearth.session import attachment
from hearth.session.attachment import Attachment
from hearth.session.receiver_role import ReceiverRole
from hearth.session.reply import Reply
from hearth.session.timing import Timing
from hearth.transport import lane
from hearth.transport.spin_wait import UP
from hearth_proto import reasons
from hearth_proto.v1 import commands_pb2, device_pb2
from tests.support.client.fake_daemon import Response
from tests.support.client.internals import connection_of
from tests.support.client.interrupts import interrupting
from tests.support.client.lane_daemon import LaneDaemon, serving
from tests.support.client.waits import wait_for


@pytest.fixture
def daemon() -> Iterator[LaneDaemon]:
    with serving() as daemon:
        yield daemon


@pytest.fixture
def cores(request: pytest.FixtureRequest) -> int:
    """Number of the client's cores; with one or two, a waiting thread does not poll before it sleeps."""
    return int(getattr(request, "param", 1))


@pytest.fixture
def timing(request: pytest.FixtureRequest) -> Timing:
    """The times of the attachment."""
    return Timing(**getattr(request, "param", {}))


@pytest.fixture
def work(
    daemon: LaneDaemon, gpu: hearth.Device, cores: int, timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> Attachment:
    monkeypatch.setattr(attachment, "cores", lambda: cores)
    connection_of(gpu).timing = timing
    gpu.synchronize()
    return connection_of(gpu).attachment()


def ask() -> commands_pb2.Command:
    return commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage())


def note(number: int) -> commands_pb2.Command:
    return commands_pb2.Command(create_stream=commands_pb2.CreateStream(), stream=number)


def notes(daemon: LaneDaemon) -> list[int]:
    return [command.stream for command in daemon.commands if command.WhichOneof("kind") == "create_stream"]


def role(work: Attachment) -> ReceiverRole:
    assert work.channel is not None
    return work.channel.role


def answer(daemon: LaneDaemon, index: int = -1) -> None:
    """Sends the held-back answer to a `memory_usage` request."""
    with daemon.working:
        asked = [command for command in daemon.commands if command.WhichOneof("kind") == "memory_usage"]
        result = commands_pb2.Result(request=asked[index].request)
        result.done.SetInParent()
        daemon.say(Response(result=result))


@pytest.mark.parametrize("cores", [1, 64], indirect=True)
def test_waiting_thread_receives(work: Attachment, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, by = work.channel, []
    assert channel is not None and bool(work.spin_wait.most) == (cores > 2)
    receive = channel.lane.receive

    def counted() -> None:
        receive()
        by.append(threading.get_ident())

    monkeypatch.setattr(channel.lane, "receive", counted)
    for _ in range(200):
        work.request(ask()).wait(10)
    assert by.count(threading.get_ident()) > 100
    assert wait_for(lambda: not role(work).parked and not role(work).holder), "the background is back"


def test_the_background_stays_away_while_others_receive(work: Attachment) -> None:
    parked = 0
    for _ in range(300):
        work.request(ask()).wait()
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
    role.holder, role.taken = 1, 1
    thread = threading.Thread(target=role.await_turn)
    thread.start()
    assert wait_for(lambda: role.parked and not role.ticking)
    yield role, lock, thread
    with lock:
        role.end()
    thread.join(20)


@pytest.mark.parametrize("background", [1e-3], indirect=True)
def test_who_leaves_after_long_wakes_a_background_that_sleeps_for_good(background: Background) -> None:
    role, lock, thread = background
    assert wait_for(lambda: role.watching)
    with lock:
        role.leave(1)
        assert not role.parked
    thread.join(20)
    assert not thread.is_alive(), "no other thread receives, so that it does"


@pytest.mark.parametrize("background", [60.0], indirect=True)
def test_thread_that_leaves_and_returns_wakes_no_other(background: Background) -> None:
    role, lock, thread = background
    for _ in range(10):
        with lock:
            role.leave(1)
            assert role.parked
            role.holder, role.taken = 1, role.taken + 1
    with lock:
        role.leave(1)
        role.wake_background()
    thread.join(20)
    assert not thread.is_alive(), "it comes where it is needed"


@pytest.mark.parametrize("background", [60.0], indirect=True)
def test_a_background_that_looks_seldom_looks_soon_where_work_is_left_behind(
    background: Background, passed: list[bool]
) -> None:
    role, lock, thread = background
    with lock:
        passed.clear()
        role.leave(1)
        assert role.tick_soon()
    thread.join(20)
    assert passed == [False, True], "what is left behind is given a whole tick; then no thread receives any more"


@pytest.mark.parametrize("background", [0.1], indirect=True)
def test_a_background_that_looks_seldom_comes_by_itself(background: Background) -> None:
    role, lock, thread = background
    with lock:
        role.leave(1)
    thread.join(20)
    assert not thread.is_alive()


def test_many_threads_wait_at_once(daemon: LaneDaemon, work: Attachment) -> None:
    """The answers arrive in any order. Each thread wakes for its own answer, and the last one still has a receiver."""
    daemon.never_answer.add("memory_usage")
    replies = [work.request(ask()) for _ in range(16)]
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
    work.request(ask()).abandon()
    daemon.never_answer.clear()
    work.request(ask()).wait(10)


@pytest.mark.parametrize("cores", [64], indirect=True)
def test_spinning_thread_finds_an_answer_whenever_it_comes(
    daemon: LaneDaemon, work: Attachment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer arrives immediately, when a copy is due, later, or when no thread polls any more."""
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
            work.request(ask()).wait(20)  # so that the background stays away
        daemon.never_answer.add("memory_usage")
        now = time.monotonic()
        lookout.begin(UP, size, now - 1.0)
        lookout.end(UP, size, now - 0.02, now)  # which is how long they take
        count = daemon.count("memory_usage")
        reply = work.request(ask())
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
    reply = work.request(ask())
    assert wait_for(lambda: work.session.idle), "the background receives while an ack is to come"
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
    first, second = work.request(ask()), work.request(ask())
    assert wait_for(lambda: daemon.count("memory_usage") == 2 and work.session.idle)  # else the background receives
    waiting = threading.Thread(target=second.wait, args=(20,))
    started = threading.Event()

    def late() -> None:
        started.set()
        with pytest.raises(hearth.TimeoutError):
            first.wait(2.0)

    holder = threading.Thread(target=late)
    holder.start()
    assert started.wait(5) and wait_for(lambda: role(work).holder == holder.ident)
    waiting.start()
    assert wait_for(lambda: work.waiters.sleepers == [second])
    holder.join(10)
    assert wait_for(lambda: role(work).holder == waiting.ident), "it was called"
    answer(daemon)
    waiting.join(10)
    assert not waiting.is_alive() and second.answered and not first.answered
    answer(daemon, 0)
    assert wait_for(lambda: first.done)
    for seconds in (0.0, -1.0):
        with pytest.raises(hearth.TimeoutError):
            work.request(ask()).wait(seconds)


def test_responses_without_a_waiting_thread(daemon: LaneDaemon, work: Attachment, gpu: hearth.Device) -> None:
    """Output, late errors, and answers that are only polled for arrive right after a wait."""
    printed: list[str] = []
    work.session.on_output = printed.append
    for number in range(20):
        work.request(ask()).wait(10)
        with daemon.working:
            daemon.say(Response(event=device_pb2.Event(output=device_pb2.Output(text=str(number)))))
        assert wait_for(lambda number=number: len(printed) == number + 1)
        work.request(ask()).wait(10)
        reply = work.request(ask())
        assert wait_for(lambda reply=reply: reply.done)
    daemon.fail_next["memory_usage"] = reasons.Refusal(reasons.Reason.OUT_OF_MEMORY, "full")
    work.request(ask(), reports=True).abandon()
    assert wait_for(lambda: connection_of(gpu).late_errors)
    with pytest.raises(hearth.HearthError, match="full"):
        gpu.synchronize()


def test_lone_work_goes_though_a_wait_was_expected(daemon: LaneDaemon, work: Attachment) -> None:
    channel, last = work.channel, 0
    assert channel is not None
    while last < 30 or not channel.inspect().expects_request:
        last += 1
        assert last < 1000, "no wait is expected, though each work is followed by one"
        work.submit(note(last))
        work.request(ask()).wait(10)
    work.submit(note(last + 1))
    assert wait_for(lambda: notes(daemon)[-1:] == [last + 1])
    assert notes(daemon) == list(range(1, last + 2))


def test_a_launch_and_a_wait_are_one_message(daemon: LaneDaemon, work: Attachment) -> None:
    for number in range(1, 20):
        work.submit(note(number))
        work.request(ask()).wait(10)
    before = len(daemon.batches)
    for number in range(20, 120):
        work.submit(note(number))
        work.request(ask()).wait(10)
    assert len(daemon.batches) - before < 120
    together = [len(batch.batch.commands) for batch in daemon.batches[before:]]
    assert together.count(2) > 80


@pytest.mark.parametrize("timing", [{"tick": 60.0, "idle": 60.0, "soon": -1.0}], indirect=True)
def test_acks_that_open_the_window_come_without_a_waiting_thread(daemon: LaneDaemon, work: Attachment) -> None:
    """Work that is left for an ack continues right after a wait, whichever thread had the role, and not only at the
    next tick or when the sending thread checks by itself. None is left for a request, which goes with a tick."""
    for start in range(1, 1001, 10):
        work.request(ask()).wait(10)
        for number in range(start, start + 10):
            work.submit(note(number))
        assert wait_for(lambda last=start + 9: notes(daemon)[-1:] == [last])
    assert notes(daemon) == list(range(1, 1001))


def test_an_interrupted_wait_gives_the_role_back(daemon: LaneDaemon, work: Attachment) -> None:
    daemon.never_answer.add("memory_usage")
    for _ in range(3):
        reply = work.request(ask())
        threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            reply.wait(10)
        assert reply.abandoned and role(work).holder != threading.get_ident() and not work.waiters.sleepers
        answer(daemon)
        assert wait_for(lambda reply=reply: reply.answered), "the background receives it"
    assert daemon.attaches == 1, "nothing had come, so that nothing was in doubt"


def interrupted_waits(
    daemon: LaneDaemon, work: Attachment, rounds: int, before: Callable[[int], None], seed: int
) -> int:
    """Waits for answers in the main thread, under Ctrl-C at random times. Returns the number of interrupted waits."""
    me, pauses, over = threading.main_thread().ident, random.Random(seed), threading.Event()
    assert me == threading.get_ident()

    def disturb() -> None:
        while not over.wait(pauses.uniform(0, 2e-3)):
            signal.pthread_kill(me, signal.SIGINT)

    hits = 0
    disturbing = threading.Thread(target=disturb)
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    disturbing.start()
    try:
        for number in range(1, rounds + 1):
            before(number)
            reply = work.request(ask())
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                reply.wait(20)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            except KeyboardInterrupt:
                ignored = False
                while not ignored:
                    with contextlib.suppress(KeyboardInterrupt):  # one more, right behind the first
                        signal.signal(signal.SIGINT, signal.SIG_IGN)
                        ignored = True
                hits += 1
                reply.wait(20)
    finally:
        over.set()
        disturbing.join()
        signal.signal(signal.SIGINT, old)
    return hits


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silences exceptions in finalizers, which cannot raise a Ctrl-C: pytest would format them and be interrupted
    itself."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


@pytest.mark.parametrize(("seed", "cores"), [(0, 1), (1, 1), (2, 64)], indirect=["cores"])
def test_ctrl_c_in_a_wait_loses_nothing(daemon: LaneDaemon, work: Attachment, unheard: None, seed: int) -> None:
    daemon.gate.set()

    def before(number: int) -> None:
        for each in range(3):
            work.submit(note(3 * number + each))

    rounds = 200
    hits = interrupted_waits(daemon, work, rounds, before, seed)
    assert hits > 3
    assert work.session.error is None
    assert notes(daemon) == list(range(3, 3 * rounds + 3)), "each once, in order"
    assert daemon.count("memory_usage") == rounds
    work.request(ask()).wait(10)
    assert not work.waiters.sleepers and work.session.receipts.responses == len(daemon.kept)


@pytest.mark.parametrize("timing", [{"held": 0.05, "lane_again": 0.05}], indirect=True)
def test_ctrl_c_at_any_line_of_a_wait_loses_nothing(daemon: LaneDaemon, work: Attachment, gpu: hearth.Device) -> None:
    """The waiting thread may also send work that was held back for an ack."""
    f = gpu.RawModule(code="source").get_function("f")
    last = asked = missed = step = hits = 0
    me = threading.get_ident()

    def channel() -> bool:
        """Makes a request, because no more lanes are opened after several that received nothing. Returns True if there
        is a live lane."""
        nonlocal asked
        work.request(ask()).wait(20)
        asked += 1
        return work.channel is not None and not work.channel.over

    def submit() -> None:
        """Submits work while the main thread receives, which then sends the work that was held back for an ack."""
        nonlocal last
        assert wait_for(lambda: work.channel is not None and (role(work).holder == me or work.waiters.sleepers))
        for _ in range(100):
            last += 1
            work.submit(note(last))
            f((1,), (1,), (last,))
        daemon.gate.set()
        assert wait_for(lambda: len(daemon.records) >= last and daemon.count("memory_usage") >= asked)
        answer(daemon)

    strides = random.Random(5)
    while missed < 3 and step < 250:  # how many lines it is depends on when what comes, too
        step += strides.randint(1, 9)
        for _ in range(2):
            work.request(ask()).wait(20)  # so that the background stays away
        daemon.never_answer.add("memory_usage")
        daemon.gate.clear()
        reply = work.request(ask())
        asked += 3
        submitting = threading.Thread(target=submit)
        submitting.start()
        interrupted = interrupting(reply.wait, step)
        reply.wait(20)
        submitting.join(20)
        daemon.never_answer.clear()
        if not interrupted:
            missed += 1
            continue
        missed = 0
        hits += 1
        assert work.session.error is None and not work.waiters.sleepers
        assert wait_for(channel), "a lane comes again where an answer was owed and work went over the stream"
    work.request(ask()).wait(20)
    assert hits > 10
    assert [number for number in notes(daemon) if number] == list(range(1, last + 1))
    assert [int.from_bytes(record.params[:8], "little") for record in daemon.records] == list(range(1, last + 1))
    assert daemon.count("memory_usage") == asked + 1
    assert work.session.receipts.responses == len(daemon.kept)


def test_ctrl_c_leaves_another_thread_to_receive(daemon: LaneDaemon, work: Attachment) -> None:
    """Wherever the Ctrl-C occurs, another waiting thread gets its answer, even if the interrupted thread does nothing
    more."""
    me, step, missed, asked = threading.get_ident(), 0, 0, 0
    while missed < 2 and step < 150:
        step += 1
        daemon.never_answer.clear()
        work.request(ask()).wait(20)
        daemon.never_answer.add("memory_usage")
        first, second = work.request(ask()), work.request(ask())
        asked += 3
        assert wait_for(lambda asked=asked: daemon.count("memory_usage") == asked)

        left = threading.Event()
        waiting = threading.Thread(target=second.wait, args=(20,))

        def wait(left: threading.Event = left, other: Reply = second, waiting: threading.Thread = waiting) -> None:
            """The first is answered once it is received for by a thread that has done so for long."""

            def received(long: bool) -> bool:
                channel = work.channel
                if left.is_set() or channel is None:
                    return left.is_set()
                behind = channel.role.parked and not channel.role.ticking
                if not long:
                    return channel.role.holder == me or bool(work.waiters.sleepers)
                return channel.role.holder == me and behind and work.waiters.sleepers == [other]

            assert wait_for(lambda: received(False))
            waiting.start()
            wait_for(lambda: received(True), 0.05)
            answer(daemon, -2)

        answering = threading.Thread(target=wait)
        answering.start()
        missed = 0 if interrupting(first.wait, step) else missed + 1
        left.set()
        answering.join(10)
        answer(daemon)
        waiting.join(5)
        assert not waiting.is_alive(), f"no thread received after a Ctrl-C at line {step}"
        first.wait(20)
    assert step > 30


def test_ctrl_c_while_others_wait(daemon: LaneDaemon, work: Attachment, unheard: None) -> None:
    over, failures, counts = threading.Event(), list[BaseException](), [0] * 4

    def use(index: int) -> None:
        try:
            while not over.is_set():
                work.request(ask()).wait(20)
                counts[index] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    hits = interrupted_waits(daemon, work, 150, lambda number: None, 7)
    over.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert hits and not failures and all(counts)
    assert work.session.error is None and not work.waiters.sleepers


def test_a_signal_handler_that_waits_inside_of_a_wait(daemon: LaneDaemon, work: Attachment) -> None:
    daemon.never_answer.add("memory_usage")
    outer = work.request(ask())
    assert wait_for(lambda: daemon.count("memory_usage") == 1)
    inner: list[bool] = []

    def handle(number: int, frame: object) -> None:
        answer(daemon)  # the outer one's, which the inner wait may receive
        daemon.never_answer.clear()
        inner.append(bool(work.request(ask()).wait(10)))

    old = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        outer.wait(20)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert inner == [True]
    work.request(ask()).wait(10)


def test_end_wakes_waiting_threads(daemon: LaneDaemon, work: Attachment) -> None:
    daemon.never_answer.add("memory_usage")
    replies, errors = [work.request(ask()) for _ in range(6)], list[hearth.HearthError]()
    assert wait_for(lambda: work.session.idle), "the background receives while an ack is to come"

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
        reply = work.request(ask())
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
                            reply = work.request(ask())
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
