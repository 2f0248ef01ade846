"""The contract of DeviceHandle, over both implementations: a thread of this process, and a child process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from hearthd.device.handle import DeviceHandle, HandleClosed, HandleFull, TaskErrors, ThreadHandle
from hearthd.device.process_handle import ProcessHandle


class Service:
    """What the device thread owns in these tests; every method proves that it runs on that thread."""

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.items: list[Any] = []
        self.gate = threading.Event()

    def check(self) -> None:
        assert threading.get_ident() == self.owner, "called off the device thread"

    def close(self) -> None:
        self.check()


def append(item: Any, service: Service) -> None:
    service.check()
    service.items.append(item)


def items(service: Service) -> list[Any]:
    service.check()
    return list(service.items)


def pid(_: Service) -> int:
    return os.getpid()


def fail(text: str, service: Service) -> None:
    service.check()
    raise ValueError(text)


class OddError(Exception):
    """Does not come back from pickle: it wants two arguments."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"odd {a} {b}")


def fail_oddly(_: Service) -> None:
    raise OddError(1, 2)


def sleep(seconds: float, _: Service) -> None:
    time.sleep(seconds)


def nested(handle: DeviceHandle[Service]) -> list[Any]:
    handle.submit(partial(append, "inner one-way"))
    handle.call(partial(append, "inner call"))
    assert handle.exclusive(inline_items) == handle.call(items)
    return handle.call(items)


def inline_items(handle: DeviceHandle[Service]) -> list[Any]:
    return handle.call(items)


def shut_down_inside(handle: DeviceHandle[Service]) -> None:
    handle.shutdown()


def broken_factory() -> Service:
    raise RuntimeError("no device here")


Make = Callable[..., DeviceHandle[Service]]


@pytest.fixture(params=[ThreadHandle, ProcessHandle], ids=["thread", "process"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[DeviceHandle[Service]] = []

    def factory(**options: int) -> DeviceHandle[Service]:
        handle: DeviceHandle[Service] = request.param(Service, **options)
        made.append(handle)
        return handle

    yield factory
    for handle in made:
        assert handle.shutdown()


def test_state_lives_on_the_device_thread(make: Make) -> None:
    handle = make()
    handle.submit(partial(append, 1))
    assert handle.call(items) == [1]


def test_fifo_for_one_producer(make: Make) -> None:
    handle = make()
    for number in range(500):
        handle.submit(partial(append, number))
    assert handle.call(items) == list(range(500))


def test_fifo_for_each_of_many_producers(make: Make) -> None:
    handle = make()

    def produce(name: int) -> None:
        for number in range(100):
            handle.submit(partial(append, (name, number)))

    threads = [threading.Thread(target=produce, args=(name,)) for name in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = handle.call(items)
    assert len(everything) == 1000
    for name in range(10):
        assert [number for who, number in everything if who == name] == list(range(100))


def test_a_lone_task_runs_at_once(tmp_path: Any, make: Make) -> None:
    handle = make()
    mark = tmp_path / "ran"
    handle.submit(partial(touch, str(mark)))
    deadline = time.monotonic() + 5
    while not mark.exists():  # nothing else is submitted and nobody flushes
        assert time.monotonic() < deadline, "a lone one-way task was held back"
        os.sched_yield()


def touch(path: str, _: Service) -> None:
    with open(path, "w"):  # noqa: PTH123
        pass


def test_call_raises_what_the_task_raised(make: Make) -> None:
    handle = make()
    with pytest.raises(ValueError, match="boom 1"):
        handle.call(partial(fail, "boom 1"))
    with pytest.raises(ValueError, match="boom 2"):
        handle.call(partial(fail, "boom 2"))
    handle.submit(partial(append, "alive"))
    assert handle.call(items) == ["alive"]


def test_an_exception_that_cannot_travel_keeps_its_text(make: Make) -> None:
    with pytest.raises(Exception, match="odd 1 2"):
        make().call(fail_oddly)


def test_one_way_errors_are_kept_for_flush(make: Make) -> None:
    handle = make()
    handle.submit(partial(fail, "first"))
    handle.submit(partial(append, "between"))
    handle.submit(partial(fail, "second"))
    with pytest.raises(TaskErrors) as caught:
        handle.flush()
    assert [str(error) for error in caught.value.exceptions] == ["first", "second"]
    handle.flush()
    assert handle.call(items) == ["between"]


def test_exclusive_runs_inline_and_nothing_interleaves(make: Make) -> None:
    handle = make()
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            handle.submit(partial(append, "other"))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        seen = handle.exclusive(nested)
    finally:
        stop.set()
        thread.join()
    place = seen.index("inner one-way")
    assert seen[place : place + 2] == ["inner one-way", "inner call"]


def test_it_cannot_be_shut_down_from_inside(make: Make) -> None:
    with pytest.raises(RuntimeError, match="own thread"):
        make().exclusive(shut_down_inside)


def test_back_pressure_when_full(make: Make) -> None:
    handle = make(capacity=4)
    handle.submit(partial(sleep, 0.3))
    refused = 0
    for number in range(50):
        try:
            handle.submit(partial(append, number), timeout=0.0)
        except HandleFull:
            refused += 1
    assert refused >= 40, "the queue has a bound"
    handle.submit(partial(append, "waited"))
    assert handle.call(items)[-1] == "waited"


def test_shutdown_runs_what_is_queued(make: Make, tmp_path: Any) -> None:
    handle = make()
    mark = tmp_path / "last"
    handle.submit(partial(sleep, 0.1))
    handle.submit(partial(touch, str(mark)))
    assert handle.shutdown()
    assert mark.exists()
    assert handle.shutdown(), "twice is once"
    with pytest.raises(HandleClosed):
        handle.submit(partial(append, 1))
    with pytest.raises(HandleClosed):
        handle.call(items)


def test_two_handles_share_nothing(make: Make) -> None:
    one, two = make(), make()
    one.submit(partial(append, 1))
    assert one.call(items) == [1]
    assert two.call(items) == []


@pytest.mark.parametrize("kind", [ThreadHandle, ProcessHandle])
def test_a_service_that_cannot_start_says_why(kind: Any) -> None:
    with pytest.raises(RuntimeError, match="no device here"):
        kind(broken_factory)


def test_a_killed_process_ends_every_call() -> None:
    handle: ProcessHandle[Service] = ProcessHandle(Service)
    child = handle.call(pid)
    assert child != os.getpid()
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            handle.call(partial(sleep, 60))
        except HandleClosed as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    os.kill(child, 9)
    waiter.join(10)
    assert len(outcome) == 1
    with pytest.raises(HandleClosed):
        handle.call(items)
    assert handle.shutdown()
