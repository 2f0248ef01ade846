"""Thread pool of the asyncio client: few threads, tasks in order, and no threads after an idle time."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar

import pytest

from hearth.aio.event_loop import Home
from hearth.aio.thread_pool import Threads
from hearth.errors import UnsupportedError

_var: ContextVar[int] = ContextVar("test_var", default=0)


def running(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_number_of_threads_is_bounded_and_idle_threads_end() -> None:
    threads = Threads("test-few", 3, idle=0.05)
    go = threading.Event()
    works = [threads.run(lambda number=number: (go.wait(10), number)[1]) for number in range(20)]
    assert running("test-few") == 3
    go.set()
    assert [work.result(10) for work in works] == list(range(20))
    deadline = time.monotonic() + 10
    while running("test-few") and time.monotonic() < deadline:
        time.sleep(0.005)
    assert running("test-few") == 0
    assert threads.run(lambda: 7).result(10) == 7  # new threads are started on demand


def test_each_is_taken_however_idle_threads_end() -> None:
    threads = Threads("test-race", 2, idle=1e-4)
    for number in range(500):
        assert threads.run(lambda number=number: number).result(10) == number


def test_queued_work_can_be_cancelled() -> None:
    threads, go, done = Threads("test-off", 1), threading.Event(), []
    first = threads.run(lambda: go.wait(10))
    second = threads.run(lambda: done.append(2))
    assert second.cancel() and not first.cancel()
    go.set()
    assert threads.run(lambda: 3).result(10) == 3
    assert done == [] and first.result(10)


def test_work_runs_in_the_context_of_its_submitter() -> None:
    token = _var.set(5)
    try:
        work = Threads("test-context", 1).run(_var.get)
    finally:
        _var.reset(token)
    assert work.result(10) == 5


def test_result_of_a_cancelled_call_is_undone() -> None:
    undone: list[int] = []

    async def main() -> None:
        home, go = Home(asyncio.get_running_loop()), threading.Event()
        call = asyncio.ensure_future(home.call(lambda: (go.wait(10), 4)[1], undo=undone.append))
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go.set()
        while not undone:  # noqa: ASYNC110 - a thread appends to it
            await asyncio.sleep(0.001)
        assert await home.call(lambda: 5, undo=undone.append) == 5

        def fails() -> int:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await home.call(fails, undo=undone.append)

    asyncio.run(main())
    assert undone == [4]


def test_event_loop_bridge_belongs_to_one_loop() -> None:
    homes: list[Home] = []

    async def make() -> None:
        homes.append(Home(asyncio.get_running_loop()))
        homes[0].check()

    asyncio.run(make())
    homes[0].check()  # accepted without a running loop, as in a plain call from a thread
    homes[0].call_soon(lambda: None)  # the loop is closed, and no error is raised
    with pytest.raises(UnsupportedError, match="another event loop"):
        asyncio.run(make())
