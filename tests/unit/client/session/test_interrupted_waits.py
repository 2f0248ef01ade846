"""Ctrl-C and signal handlers during a wait over a lane: no reply and no command is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

import hearth
from hearth.session import protocol
from hearth.session.attachment import Attachment
from hearth.session.reply import Reply
from tests.support.client.interrupts import interrupted_wait, interrupting
from tests.support.client.lane_daemon import LaneDaemon, serving
from tests.support.client.lane_requests import answer, held_request, note, notes, role
from tests.support.client.waits import wait_for
from tests.support.compiled import skip_if_compiled

HITS = 4
"""Number of waits that a test interrupts at least."""


@pytest.fixture
def daemon() -> Iterator[LaneDaemon]:
    with serving() as daemon:
        yield daemon


def test_an_interrupted_wait_releases_the_role(daemon: LaneDaemon, work: Attachment) -> None:
    daemon.never_answer.add("memory_usage")
    for _ in range(3):
        reply = work.request(held_request())
        with pytest.raises(KeyboardInterrupt), interrupted_wait(work):
            reply.wait(60)
        assert reply.abandoned and role(work).holder != threading.get_ident() and not work.waiters.sleepers
        answer(daemon)
        assert wait_for(lambda reply=reply: reply.answered), "the background thread receives it"
    assert daemon.attaches == 1, "nothing had arrived, so the lane was kept"


def interrupted_waits(work: Attachment, rounds: int, before: Callable[[int], None], seed: int) -> int:
    """Waits for answers in the main thread, under Ctrl-C at random times, until several waits were interrupted.

    Makes at least `rounds` waits, each after a call of `before` with its number, and returns their number.
    """
    me, pauses, over = threading.main_thread().ident, random.Random(seed), threading.Event()
    assert me == threading.get_ident()

    def disturb() -> None:
        while not over.wait(pauses.uniform(0, 2e-3)):
            signal.pthread_kill(me, signal.SIGINT)

    number = hits = 0
    disturbing = threading.Thread(target=disturb)
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    disturbing.start()
    try:
        while number < rounds or (hits < HITS and number < 50 * rounds):  # a busy machine may delay the other thread
            number += 1
            before(number)
            reply = work.request(held_request())
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                reply.wait(20)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            except KeyboardInterrupt:
                ignored = False
                while not ignored:
                    with contextlib.suppress(KeyboardInterrupt):  # another one, directly after the first
                        signal.signal(signal.SIGINT, signal.SIG_IGN)
                        ignored = True
                hits += 1
                reply.wait(20)
    finally:
        over.set()
        disturbing.join()
        signal.signal(signal.SIGINT, old)
    assert hits >= HITS
    return number


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

    rounds = interrupted_waits(work, 200, before, seed)
    assert work.session.error is None
    assert notes(daemon) == list(range(3, 3 * rounds + 3)), "each once, in order"
    assert daemon.count("memory_usage") == rounds
    work.request(held_request()).wait(10)
    assert not work.waiters.sleepers and work.session.receipts.responses == len(daemon.kept)


@pytest.mark.parametrize("timing", [{"lane_hold": 0.05, "lane_retry": 0.05}], indirect=True)
def test_ctrl_c_at_any_line_of_a_wait_loses_nothing(daemon: LaneDaemon, work: Attachment, gpu: hearth.Device) -> None:
    """The waiting thread may also send work that was held back for an ack."""
    skip_if_compiled(protocol)
    f = gpu.RawModule(code="source").get_function("f")
    last = requested = missed = step = hits = 0
    me = threading.get_ident()

    def channel() -> bool:
        """Makes a request, because no more lanes are opened after several that received nothing. Returns True if there
        is a live lane."""
        nonlocal requested
        work.request(held_request()).wait(20)
        requested += 1
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
        assert wait_for(lambda: len(daemon.records) >= last and daemon.count("memory_usage") >= requested)
        answer(daemon)

    strides = random.Random(5)
    while missed < 3 and step < 250:  # the number of lines depends on the timing of messages, too
        step += strides.randint(1, 9)
        for _ in range(2):
            work.request(held_request()).wait(20)  # so that the background thread stays parked
        daemon.never_answer.add("memory_usage")
        daemon.gate.clear()
        reply = work.request(held_request())
        requested += 3
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
        assert wait_for(channel), "a lane is opened again after an answer was pending and work was sent over the stream"
    work.request(held_request()).wait(20)
    assert hits > 10
    assert [number for number in notes(daemon) if number] == list(range(1, last + 1))
    assert [int.from_bytes(record.params[:8], "little") for record in daemon.records] == list(range(1, last + 1))
    assert daemon.count("memory_usage") == requested + 1
    assert work.session.receipts.responses == len(daemon.kept)


def test_ctrl_c_leaves_another_thread_to_receive(daemon: LaneDaemon, work: Attachment) -> None:
    """After a Ctrl-C at any line, another waiting thread gets its answer, even if the interrupted thread does nothing
    afterwards."""
    skip_if_compiled(protocol)
    me, step, missed, requested = threading.get_ident(), 0, 0, 0
    while missed < 2 and step < 150:
        step += 1
        daemon.never_answer.clear()
        work.request(held_request()).wait(20)
        daemon.never_answer.add("memory_usage")
        first, second = work.request(held_request()), work.request(held_request())
        requested += 3
        assert wait_for(lambda requested=requested: daemon.count("memory_usage") == requested)

        left = threading.Event()
        waiting = threading.Thread(target=second.wait, args=(60,))

        def wait(left: threading.Event = left, other: Reply = second, waiting: threading.Thread = waiting) -> None:
            """The first is answered once it is received for by a thread that has done so for long."""

            def received(long: bool) -> bool:
                channel = work.channel
                if left.is_set() or channel is None:
                    return left.is_set()
                is_parked = channel.role.parked and not channel.role.ticking
                if not long:
                    return channel.role.holder == me or bool(work.waiters.sleepers)
                return channel.role.holder == me and is_parked and work.waiters.sleepers == [other]

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
        waiting.join(20)
        assert not waiting.is_alive(), f"no thread received after a Ctrl-C at line {step}"
        first.wait(20)
    assert step > 30


def test_ctrl_c_while_others_wait(daemon: LaneDaemon, work: Attachment, unheard: None) -> None:
    over, failures, counts = threading.Event(), list[BaseException](), [0] * 4

    def use(index: int) -> None:
        try:
            while not over.is_set():
                work.request(held_request()).wait(20)
                counts[index] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    interrupted_waits(work, 150, lambda number: None, 7)
    over.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not failures and all(counts)
    assert work.session.error is None and not work.waiters.sleepers


def test_a_signal_handler_that_waits_inside_of_a_wait(daemon: LaneDaemon, work: Attachment) -> None:
    daemon.never_answer.add("memory_usage")
    outer = work.request(held_request())
    assert wait_for(lambda: daemon.count("memory_usage") == 1)
    inner: list[bool] = []

    def handle(number: int, frame: object) -> None:
        answer(daemon)  # to the outer request, which the inner wait may receive
        daemon.never_answer.clear()
        inner.append(bool(work.request(held_request()).wait(10)))

    old = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        outer.wait(20)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert inner == [True]
    work.request(held_request()).wait(10)
