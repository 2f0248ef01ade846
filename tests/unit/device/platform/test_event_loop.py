"""Event loop of a device process: the guarantees for tasks, and naps that miss no event."""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest

from hearthd.device.platform.event_loop import Loop, countdown
from hearthd.device.platform.spin_policy import SpinPolicy
from tests.support.timing import LATE


class Napping:
    """A loop, on a separate thread, that naps whenever it is idle. `awake` is the result of its nap hook."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.awake: bool | None = None
        self.naps = self.iterations = 0
        self.loop.on_nap = self._nap
        self.loop.on_poll = self._poll
        self._thread = threading.Thread(target=self.loop.run)

    def __enter__(self) -> Napping:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.loop.close()

    def _nap(self) -> bool | None:
        self.naps += 1
        return self.awake

    def _poll(self) -> float:
        self.iterations += 1
        return 1e-4


@pytest.fixture
def napping() -> Iterator[Napping]:
    yield Napping()


def test_tasks_run_while_the_loop_polls(napping: Napping) -> None:
    with napping:
        done = threading.Event()
        napping.loop.post(done.set)
        assert done.wait(10)


def test_sockets_are_served_while_the_loop_polls(napping: Napping) -> None:
    test_end, process_end = socket.socketpair()
    with test_end, process_end:
        heard = threading.Event()

        def readable(_events: int) -> None:
            process_end.recv(1)
            heard.set()

        napping.loop.add_reader(process_end.fileno(), readable)
        with napping:
            before = napping.iterations
            test_end.send(b"x")
            assert heard.wait(10)
            assert napping.iterations <= before + 3, "and no other work was done meanwhile"


def test_awake_loop_does_not_sleep_and_serves_sockets(napping: Napping) -> None:
    test_end, process_end = socket.socketpair()
    with test_end, process_end:
        heard = threading.Event()

        def readable(_events: int) -> None:
            process_end.recv(1)
            heard.set()

        napping.loop.add_reader(process_end.fileno(), readable)
        napping.awake = True
        with napping:
            test_end.send(b"x")
            assert heard.wait(10)


def test_short_sleep_has_the_requested_duration(napping: Napping) -> None:
    napping.awake = False
    with napping:
        began, before = time.perf_counter(), napping.iterations
        time.sleep(0.05)
        while napping.iterations <= before + 1:
            assert time.perf_counter() - began < LATE
            time.sleep(0.001)
        iterations = napping.iterations - before
        assert iterations < (time.perf_counter() - began) / 90e-6, "100 us each"
    assert napping.naps <= napping.iterations, "the hook is called once in each iteration"


def test_lingering_loop_serves_events_without_sleep_and_finally_sleeps() -> None:
    """Events that arrive soon after the last work are noticed while the loop polls, later events while it sleeps."""
    test_end, process_end = socket.socketpair()
    loop, heard = Loop(), threading.Semaphore(0)
    loop.lingering = SpinPolicy(0.05)

    def readable(_events: int) -> None:
        process_end.recv(1)
        heard.release()

    loop.add_reader(process_end.fileno(), readable)
    thread = threading.Thread(target=loop.run)
    with test_end, process_end:
        thread.start()
        for pause in (0.0, 0.0, 0.2, 0.0, 0.01):
            time.sleep(pause)
            test_end.send(b"x")
            assert heard.acquire(timeout=10)
            loop.post(heard.release)
            assert heard.acquire(timeout=10)
        time.sleep(0.3)  # long enough for the loop to sleep
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.2
        loop.stop()
        thread.join(10)
        assert not thread.is_alive()
    loop.close()


class Running:
    """A loop on a thread of this process that only runs tasks."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.thread = threading.Thread(target=self.loop.run)

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.loop.close()

    def stop(self) -> None:
        self.loop.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()

    def settle(self) -> None:
        """Returns when all tasks posted earlier have run, and the loop has dropped its references to them."""
        for _ in range(2):
            done = threading.Event()
            self.loop.post(done.set)
            assert done.wait(10)


def test_tasks_run_on_the_thread_of_the_loop_alone() -> None:
    runs: list[int] = []
    with Running() as running:
        for _ in range(10):
            running.loop.post(lambda: runs.append(threading.get_ident()))
        running.settle()
        assert runs == [running.thread.ident] * 10


def test_two_loops_share_nothing() -> None:
    first_numbers: list[int] = []
    second_numbers: list[int] = []
    with Running() as first, Running() as second:
        for number in range(100):
            first.loop.post(lambda number=number: first_numbers.append(number))
            second.loop.post(lambda number=number: second_numbers.append(-number))
        first.stop()
        second.settle()  # the second loop still runs
    assert first_numbers == list(range(100)) and second_numbers == [-number for number in range(100)]


def test_a_lone_task_wakes_a_sleeping_loop() -> None:
    with Running() as running:
        for _ in range(20):
            time.sleep(0.01)  # long enough for the loop to sleep until an event
            ran: Future[float] = Future()
            naps = time.perf_counter()
            running.loop.post(lambda ran=ran: ran.set_result(time.perf_counter()))
            assert ran.result(10) - naps < 5


def test_tasks_of_each_of_ten_threads_run_once_in_their_order_and_never_interleave() -> None:
    runs: list[tuple[int, int]] = []
    running_now: list[int] = []
    with Running() as running:

        def task(name: int, number: int) -> None:
            assert not running_now
            running_now.append(name)
            time.sleep(0)  # gives another task the chance to run in between
            running_now.pop()
            runs.append((name, number))

        def produce(name: int) -> None:
            for number in range(100):
                running.loop.post(partial(task, name, number))

        threads = [threading.Thread(target=produce, args=(name,)) for name in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        running.settle()
    assert len(runs) == 1000
    for name in range(10):
        assert [number for producer, number in runs if producer == name] == list(range(100))


def test_tasks_posted_by_a_task_run_after_earlier_ones() -> None:
    order: list[str] = []
    with Running() as running:

        def first() -> None:
            running.loop.post(partial(order.append, "inner"))
            running.loop.post(partial(order.append, "second"))
            order.append("first")

        running.loop.post(first)
        running.settle()
    assert order == ["first", "inner", "second"]


def test_stop_runs_earlier_tasks_and_may_be_repeated() -> None:
    order: list[int] = []
    with Running() as running:
        running.loop.post(partial(time.sleep, 0.05))
        for number in range(10):
            running.loop.post(partial(order.append, number))
        running.stop()
        assert order == list(range(10))
        running.loop.post(partial(order.append, 10))  # stays queued, because the loop has ended
        assert order == list(range(10))


def test_a_task_that_raises_ends_the_loop_with_its_own_error() -> None:
    loop = Loop()
    loop.post(partial(int, "boom"))
    with pytest.raises(ValueError, match="boom"):
        loop.run()
    loop.close()


def test_completed_task_is_released() -> None:
    with Running() as running:
        payload = Payload()
        gone = weakref.ref(payload)
        running.loop.post(payload.touch)
        del payload
        running.settle()
        assert gone() is None


class Payload:
    """An object with a task as its method, used to detect remaining references."""

    def touch(self) -> None:
        pass


def test_an_idle_loop_uses_no_processor_time() -> None:
    with Running() as running:
        clock: Future[int] = Future()
        running.loop.post(lambda: clock.set_result(time.pthread_getcpuclockid(threading.get_ident())))
        thread = clock.result(10)
        began = time.clock_gettime(thread)
        time.sleep(0.4)  # the processor time of an idle loop is measured
        assert time.clock_gettime(thread) - began < 0.04


@pytest.mark.parametrize("count", [1, 2, 5])
def test_countdown_calls_once_with_the_last_completion(count: int) -> None:
    calls: list[str] = []
    complete_one = countdown(count, lambda: calls.append("done"))
    for _ in range(count):
        assert not calls
        complete_one()
    assert calls == ["done"]
